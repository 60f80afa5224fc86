"""Methods side by side: each at a learning rate of its own, tuned on the validation split, then over seeds."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from experiments import drawing
from experiments import rows as ask
from experiments.experiment import Experiment, Finding, Row, Rows, Run, Sample, Scale, Table, Verdict, evaluations_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Along = Literal["step", "epoch", "simulated_seconds"]
LABELS: dict[Along, str] = {"step": "updates", "epoch": "epochs", "simulated_seconds": "simulated time (s)"}
UNITS: dict[Along, str] = {"step": "updates", "epoch": "epochs", "simulated_seconds": "s"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What most experiments on training are; ``experiment`` makes one of it, with a claim and a rule.

    Attributes:
      spec: config file, with an optional :variant.
      methods: name -> overrides of the config.
      common: scale -> overrides of all methods; "data.name" is one of them.
      rates: of each scale, the learning rates that are tried.
      target: name of the data -> accuracy to be reached.
      along: what it takes to get there is counted in.
      seeds: of each scale, how many are reported.
    """

    spec: str
    methods: Mapping[str, Mapping[str, Any]]
    common: Callable[[Scale], Mapping[str, Any]]
    rates: Mapping[Scale, Sequence[float]]
    target: Mapping[str, float]
    along: Along = "epoch"
    reduce = staticmethod(evaluations_of(*LABELS, "accuracy"))
    seeds: Mapping[Scale, int] = dataclasses.field(default_factory=lambda: {"smoke": 1, "laptop": 3})

    def experiment(self, *, judge: Callable[[Rows], Verdict], **told: Any) -> Experiment:
        """Returns the ``Experiment``; ``told`` is what it says of itself: number, title, claim, rule and so on."""
        parts = {name: getattr(self, name) for name in ("selection", "runs", "reduce", "findings", "table", "draw")}
        return Experiment(judge=judge, **parts, **told)

    def first(self, rows: Rows, ours: str, *, than: Sequence[str]) -> Verdict:
        """Judges the claim that one method is at the target before each of the others, in every seed."""
        aim, unit = f"{100 * self.aim(rows):g} %", LABELS[self.along].partition(" (")[0]
        times = {method: self.until(rows, method) for method in (ours, *than)}
        if not all(found and all(map(math.isfinite, found)) for found in times.values()):
            return Verdict("not tested at this scale", f"Not all runs reach {aim}.")
        first = [own < min(others) for own, *others in zip(*times.values(), strict=True)]
        means = {method: self._until_in_words(rows, method) for method in times}
        others = ", ".join(f"{means[method]} for {method}" for method in than)
        because = (
            f"In {unit} to {aim}, {means[ours]} for {ours}, {others}; first in {sum(first)} of {len(first)} seeds."
        )
        return Verdict("supported" if all(first) else "not supported", because)

    @property
    def selection(self) -> str:
        """How learning rates are picked."""
        return (
            "Each method's learning rate: first at the target on the validation split (of several, or where none gets "
            f"there: most accurate at the end), seed 0, of {', '.join(f'{rate:g}' for rate in self.rates['laptop'])}."
        )

    def runs(self, scale: Scale, rows: Rows) -> list[Run]:
        """Each method's tuning; once it is there, its runs with the rate that was picked."""
        found = []
        for method in self.methods:
            found += [self._run(scale, "tuning", method, rate, 0) for rate in self.rates[scale]]
            rate = self.picked(rows, method) if self._is_tuned(scale, rows, method) else None
            if rate is not None:
                found += [self._run(scale, "final", method, rate, seed) for seed in range(self.seeds[scale])]
        return found

    def picked(self, rows: Rows, method: str) -> float | None:
        """Returns a method's learning rate; None before it is tuned."""
        tried = ask.select(rows, stage="tuning", method=method)
        if not tried:
            return None
        return ask.earliest(tried, target=self.aim(rows), of="accuracy", along=self.along)["rate"]

    def final(self, rows: Rows, method: str) -> list[Row]:
        """Returns a method's reported rows, by seed."""
        return sorted(ask.select(rows, stage="final", method=method), key=lambda row: row["seed"])

    def aim(self, rows: Rows) -> float:
        """Returns the accuracy to be reached."""
        return self.target[rows[0]["data"]]

    def until(self, rows: Rows, method: str) -> list[float]:
        """Returns what each seed takes to the target; infinity where it does not get there."""
        aim = self.aim(rows)
        return [ask.first_at(row, aim, of="accuracy", along=self.along) for row in self.final(rows, method)]

    def accuracy(self, rows: Rows, method: str) -> Sample:
        """Returns a method's final test accuracy, in percent."""
        return ask.accuracy(self.final(rows, method))

    def findings(self, rows: Rows) -> list[Finding]:
        """What each method takes to the target."""
        quantity = f"{LABELS[self.along].partition(' (')[0]} to {100 * self.aim(rows):g} %"
        return [
            Finding(quantity=f"{quantity}, {method}", ours=self._until_in_words(rows, method))
            for method in self._there(rows)
        ]

    def table(self, rows: Rows) -> Table:
        """Learning rate, what it takes to the target, and accuracy at the end, of each method."""
        cells = []
        for method in self._there(rows):
            rate = f"{self.final(rows, method)[0]['rate']:g}"
            cells.append([method, rate, str(self._until_in_words(rows, method)), str(self.accuracy(rows, method))])
        to_target = f"{LABELS[self.along]} to {100 * self.aim(rows):g} %"
        return Table(["Method", "Learning rate", to_target, "Test accuracy at the end"], cells)

    def draw(self, rows: Rows, figure: "Figure") -> None:
        """Test accuracy along the way, mean and standard deviation."""
        axes = figure.subplots()
        for position, method in enumerate(self.methods):
            found = self.final(rows, method)
            if found:
                length = min(len(row["accuracy"]) for row in found)
                xs = [Sample.of([row[self.along][i] for row in found]).mean for i in range(length)]
                ys = [Sample.of([100 * row["accuracy"][i] for row in found]) for i in range(length)]
                drawing.band(axes, xs, ys, position=position, label=f"{method}, rate {found[0]['rate']:g}")
                axes.lines[-1].set_markevery(max(1, length // 8))
        aim = 100 * self.aim(rows)
        axes.axhline(aim, color="#666666", linewidth=1, linestyle=":", label=f"target, {aim:g} %")
        axes.set(xlabel=LABELS[self.along], ylabel="test accuracy (%)", xscale="log", ylim=(aim - 7.5, 100))
        drawing.plain_numbers(axes.xaxis)
        axes.legend(fontsize=7, loc="lower right")

    def _run(self, scale: Scale, stage: str, method: str, rate: float, seed: int) -> Run:
        common = self.common(scale)
        overrides = {
            **common,
            "data.evaluate_on": "validation" if stage == "tuning" else "test",
            "optimizer.learning_rate": rate,
            "seed": seed,
            **self.methods[method],
        }
        tells = {"stage": stage, "data": common["data.name"], "method": method, "rate": rate, "seed": seed}
        return Run(tells=tells, spec=self.spec, overrides=overrides, flags={"num_devices": 1})

    def _is_tuned(self, scale: Scale, rows: Rows, method: str) -> bool:
        return len(ask.select(rows, stage="tuning", method=method)) == len(self.rates[scale])

    def _there(self, rows: Rows) -> list[str]:
        return [method for method in self.methods if self.final(rows, method)]

    def _until_in_words(self, rows: Rows, method: str) -> Sample | str:
        found = self.until(rows, method)
        reached = [value for value in found if math.isfinite(value)]
        if len(reached) < len(found):
            return f"{len(reached)} of {len(found)} runs get there"
        return Sample.of(found, digits=0 if self.along != "epoch" else 2, unit=UNITS[self.along])
