"""Methods side by side: each at its own learning rate, tuned on the validation split, then over seeds."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Sample, Table
from experiments.study.rule import ACCURACY, Compare, Group, Measure, Rule, all_finite, until
from experiments.study.run import Row, Rows, Run, Scale, evaluations_of
from experiments.study.tuning import BY_ACCURACY, NAMED_STAGES, Score, Tuned

PARTS = ("reduce", "findings", "table", "draw")  # of an experiment
Along = Literal["epoch", "simulated_seconds", "wall_seconds"]
NAMES: dict[Along, str] = {"epoch": "epochs", "simulated_seconds": "simulated time", "wall_seconds": "time"}
LABELS: dict[Along, str] = {"epoch": "epochs", "simulated_seconds": "simulated time (s)", "wall_seconds": "time (s)"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods that race to a target accuracy; ``experiment`` makes a claim of them.

    Attributes:
      spec: config file, with an optional :variant.
      methods: name -> overrides of the config.
      common: scale -> overrides of all methods; "data.name" is one of them.
      rates: learning rates that are tried at each scale.
      target: name of the data -> accuracy to be reached.
      along: the quantity in which the way to the target is measured.
      model: the model, in words.
      picked_by: whether rates are picked by the way to the target, or by the accuracy at the end.
      live: arrival model by name and options, by which the workers of reported runs are delayed, which are processes;
        rates are picked by simulated time then. None for runs that are all simulated.
      seeds: number of seeds that are reported at each scale.
      drawn_below: percentage points below the target at which the figure's axis begins.
      floor: validation accuracy of runs that have learnt nothing: rates that end no higher are equally bad; None if
        each accuracy counts as it is.
    """

    spec: str
    methods: Mapping[str, Mapping[str, Any]]
    common: Callable[[Scale], Mapping[str, Any]]
    rates: Mapping[Scale, Sequence[float]]
    target: Mapping[str, float]
    model: str
    along: Along = "epoch"
    picked_by: Literal["target", "end"] = "target"
    reduce = staticmethod(evaluations_of("step", "epoch", "simulated_seconds", "accuracy"))
    seeds: Mapping[Scale, int] = dataclasses.field(default_factory=lambda: {"smoke": 1, "laptop": 20})
    drawn_below: float = 7.5
    floor: float | None = None
    live: Mapping[str, Any] | None = None

    def experiment(self, **declared: Any) -> Experiment:
        """Returns the ``Experiment``; ``declared`` are its prose, rule, hours, and what else is its own."""
        parts = {name: getattr(self, name) for name in PARTS}
        return self.tuned.experiment(model=self.model, **{**parts, **declared})

    def sooner(self, ours: str, *, than: Sequence[str], setting: str) -> Rule:
        """Returns the rule that one method reaches the target before each of the others, by seeds that belong together.

        Runs of the same seed see the same batches and arrival times, so that their times are compared by a paired
        t-test, corrected by Holm's method for the number of the others.
        """
        groups = {method: self.group(method, self.way) for method in (ours, *than)}
        return Rule(
            setting=f"{self.seeds['laptop']} seeds, {setting}",
            needs=[all_finite(*groups.values())],
            parts=lambda scale: [
                Compare(ours=groups[ours], is_="below", theirs=groups[other], paired=True) for other in than
            ],
        )

    def group(self, method: str, measure: Measure = ACCURACY) -> Group:
        """Returns a method's reported runs, for a rule to compare."""
        return self.tuned.group(method, measure, method=method)

    @property
    def tuned(self) -> Tuned:
        """The runs of the methods, each with the learning rate that is first at the target."""
        along = "simulated_seconds" if self.live else self.along
        score = Score(target=self.aim, along=along) if self.picked_by == "target" else BY_ACCURACY
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

    def runs(self, scale: Scale, rows: Rows) -> list[Run]:
        """Returns one method's tuning and reported runs after the other's."""
        tuned, points = self.tuned, self.tuned.points(scale)
        return [
            run
            for point in points
            for run in tuned.tuning_runs(scale, rows, [point]) + tuned.final_runs(scale, rows, point)
        ]

    def final(self, rows: Rows, method: str) -> list[Row]:
        """Returns a method's reported rows, by seed."""
        return self.tuned.tests(rows, method=method)

    def ends(self, rows: Rows, method: str) -> list[float]:
        """Returns a method's accuracies at the end, in percent; 0 for a run that is not finite."""
        return ask.accuracies(self.final(rows, method))

    def aim(self, rows: Rows) -> float:
        """Returns the accuracy to be reached."""
        return self.target[rows[0]["data"]]

    @property
    def way(self) -> Measure:
        """Where a run reaches the target; infinity where it does not."""
        unit, digits = ("epochs", 2) if self.along == "epoch" else ("s", 0)
        targets = " or ".join(f"{100 * target:g} % on {data}" for data, target in self.target.items())
        words = f"{NAMES[self.along]} to test accuracy {targets}"
        return until(self.aim, words=words, along=self.along, unit=unit, digits=digits)

    def accuracy(self, rows: Rows, method: str) -> Sample:
        """Returns a method's final test accuracy, in percent."""
        return ask.accuracy(self.final(rows, method))

    def findings(self, rows: Rows) -> list[Finding]:
        """Returns how long each method takes to the target."""
        quantity = f"{NAMES[self.along]} to {100 * self.aim(rows):g} %"
        return [
            Finding(quantity=f"{quantity}, {method}", ours=self.way.reached(self.final(rows, method)))
            for method in self._there(rows)
        ]

    def table(self, rows: Rows) -> Table:
        """Returns each method's learning rate, its way to the target, and its accuracy at the end."""
        cells = []
        for method in self._there(rows):
            found = self.final(rows, method)
            cells.append([method, f"{found[0]['rate']:g}", str(self.way.reached(found)), str(ask.accuracy(found))])
        to_target = f"{LABELS[self.along]} to {100 * self.aim(rows):g} %"
        return Table(["Method", "Learning rate", to_target, "Test accuracy at the end"], cells)

    def draw(self, rows: Rows, figure: "Figure") -> None:
        """Draws the test accuracy along the way, with its mean and standard deviation."""
        axes = figure.subplots()
        for position, method in enumerate(self.methods):
            if found := self.final(rows, method):
                xs = [sample.mean for sample in ask.curve(found, self.along)]
                label, every = f"{method}, rate {found[0]['rate']:g}", max(1, len(xs) // 8)
                look: dict[str, Any] = {"position": position, "label": label, "within": (0.0, 100.0)}
                drawing.band(axes, xs, ask.curve(found, "accuracy", scale=100), markevery=every, **look)
        aim = 100 * self.aim(rows)
        axes.axhline(aim, linestyle=":", **drawing.REFERENCE, label=f"target, {aim:g} %")
        axes.set(
            xlabel=LABELS[self.along], ylabel="test accuracy (%)", xscale="log", ylim=(aim - self.drawn_below, 100)
        )
        drawing.plain_numbers(axes.xaxis)
        axes.legend(fontsize=7, loc="lower right")

    def _recipe(self, scale: Scale, *, method: str, rate: float) -> Run:
        common = self.common(scale)
        overrides = {**common, "optimizer.learning_rate": rate, **self.methods[method]}
        return Run(labels={"data": common["data.name"]}, spec=self.spec, overrides=overrides)

    def _there(self, rows: Rows) -> list[str]:
        return [method for method in self.methods if self.final(rows, method)]
