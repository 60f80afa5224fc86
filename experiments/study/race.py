"""Methods that race to a target accuracy: each at its own learning rate, tuned on the validation split."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from experiments.study import figures, frames
from experiments.study.claim import Claim, Figure, Frame, Rows, Run, Scale, Value, evaluations_of
from experiments.study.tuning import BY_ACCURACY, LEARNING_RATE, NAMED_STAGES, Score, Tuned
from experiments.study.verdict import Verdict, decide, holm, not_finite, paired, untested

Along = Literal["epoch", "simulated_seconds", "wall_seconds"]
LABELS: dict[Along, str] = {"epoch": "epochs", "simulated_seconds": "simulated time (s)", "wall_seconds": "time (s)"}
UNITS: dict[Along, tuple[str, int]] = {"epoch": ("epochs", 2), "simulated_seconds": ("s", 0), "wall_seconds": ("s", 0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Race:
    """Methods that race to a target accuracy; ``claim`` makes a claim of them.

    Attributes:
      spec: config file, with an optional :variant.
      methods: name -> overrides of the config.
      common: scale -> overrides of all methods; "data.name" is one of them.
      rates: learning rates that are tried at each scale.
      target: name of the data -> accuracy to be reached.
      model: the model, in words.
      along: the quantity in which the way to the target is measured.
      picked_by: whether rates are picked by the way to the target, or by the accuracy at the end.
      live: arrival model by name and options, by which the workers of reported runs are delayed, which are processes;
        rates are picked by simulated time then. None for runs that are all simulated.
      seeds: number of seeds that are reported at each scale.
      drawn_below: percentage points below the target at which the figure's axis begins.
      floor: validation accuracy of an untrained model; rates that end at or below it are equally bad. None if every
        accuracy counts as measured.
    """

    spec: str
    methods: Mapping[str, Mapping[str, Any]]
    common: Callable[[Scale], Mapping[str, Any]]
    rates: Mapping[Scale, Sequence[float]]
    target: Mapping[str, float]
    model: str
    along: Along = "epoch"
    picked_by: Literal["target", "end"] = "target"
    seeds: Mapping[Scale, int] = dataclasses.field(default_factory=lambda: {"smoke": 1, "laptop": 20})
    drawn_below: float = 7.5
    floor: float | None = None
    live: Mapping[str, Any] | None = None

    def claim(self, **declared: Any) -> Claim:
        """Returns the claim; ``declared`` are its prose, judge, hours, and other attributes of its own."""
        unit, digits = UNITS[self.along]
        values = {
            **LEARNING_RATE,
            f"{LABELS[self.along]} to the target": Value("way", digits, unit),
            "test accuracy at the end": Value("end", 2, "%"),
        }
        parts: dict[str, Any] = {
            "frame": self.frame,
            "model": self.model,
            "labels": ["method"],
            "values": values,
            "draw": self.draw,
            "reduce": evaluations_of("step", "epoch", "simulated_seconds", "accuracy"),
        }
        return self.tuned.claim(**(parts | declared))

    def sooner(self, df: Frame, ours: str, *, than: Sequence[str]) -> Verdict:
        """Returns the verdict on one method that reaches the target before each of the others, by seeds.

        Runs of the same seed see the same batches and arrival times, so that their times are paired.
        """
        way = frames.by_seed(df, "method", "way").reindex(columns=[ours, *than])
        if late := not_finite(way):
            return untested(f"The target is not reached in a run of {late}.")
        unit, digits = UNITS[self.along]
        tests = [paired(ours, way[ours], "below", other, way[other], unit=unit, digits=digits) for other in than]
        return decide(holm(*tests))

    @property
    def tuned(self) -> Tuned:
        """The runs of the methods, each with the learning rate that is first at the target."""
        score = BY_ACCURACY
        if self.picked_by == "target":
            along = "simulated_seconds" if self.live else self.along
            score = Score(target=lambda rows: self.target[rows[0]["data"]], along=along)
        return Tuned(
            points=lambda scale: [{"method": method} for method in self.methods],
            grid=lambda scale, point: self.rates[scale],
            recipe=self._recipe,
            seeds=self.seeds,
            score=score._replace(floor=self.floor),
            stages=NAMED_STAGES,
            first=("stage", "data"),
            reported_flags={"live": True, "delays": json.dumps(self.live)} if self.live else {},
        )

    def frame(self, rows: Rows) -> Frame:
        """Returns the reported runs, with where they reach the target, and their accuracy at the end in percent."""
        df = self.tuned.frame(rows)
        return df.assign(way=frames.until(df, df["data"].map(self.target), along=self.along))

    def draw(self, df: Frame, figure: Figure) -> None:
        """Draws the test accuracy along the way, with its mean and standard deviation."""
        aim = 100 * self.target[df["data"].iloc[0]]
        (axes,) = figures.curves(
            figure,
            df,
            along=self.along,
            of="accuracy",
            by="method",
            order=list(self.methods),
            name=figures.with_rate,
            factor=100,
            xlabel=LABELS[self.along],
            ylabel="test accuracy (%)",
            xscale="log",
            ylim=(aim - self.drawn_below, 100),
        )
        figures.line(axes, aim, f"target, {aim:g} %", linestyle=":")
        axes.legend(loc="lower right")

    def _recipe(self, scale: Scale, *, method: str, rate: float) -> Run:
        overrides = {**self.common(scale), "optimizer.learning_rate": rate, **self.methods[method]}
        return Run(spec=self.spec, overrides=overrides)
