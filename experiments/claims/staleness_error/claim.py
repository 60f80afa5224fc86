"""The cost of staleness: test error against how many updates late each gradient is, with and without a ramp-up."""

import dataclasses
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Condition,
    Grows,
    Need,
    Rule,
)
from experiments.study.run import Rows, Run, Scale, evaluations_of
from experiments.study.significance import Contrast, holm, welch

Case = tuple[int, str]  # staleness, and how it starts
RAMP, ABRUPT = "ramp-up", "abrupt"
STARTS = {RAMP: "ramped up over 3/4 of the run", ABRUPT: "from the first update on"}
PAPER = {0: 0.36, 20: 0.47, 50: 0.79}  # % of test error
LEARNED = 20.0  # % of test error
FAILED = 50.0  # % of test error


class Map(NamedTuple):
    """The runs of a scale: each staleness with each learning rate, ramped up and from the first update on.

    Attributes:
      staleness: in updates; all but 0 are run with both starts.
      rates: peaks of the learning rate.
      updates: number of updates, of 32 examples.
      seeds: runs of each cell.
    """

    staleness: tuple[int, ...]
    rates: tuple[float, ...]
    updates: int
    seeds: int

    @property
    def cases(self) -> list[Case]:
        """All staleness and starts."""
        return [(s, RAMP) for s in self.staleness] + [(s, ABRUPT) for s in self.staleness if s]


MAPS: Mapping[Scale, Map] = {
    "smoke": Map((0, 2, 4), (0.02,), updates=20, seeds=1),
    "laptop": Map((0, 10, 20, 50), (0.0025, 0.005, 0.01, 0.02, 0.04), updates=1875, seeds=5),
    "gpu": Map((0, 20, 50), (0.005, 0.01, 0.02), updates=9375, seeds=5),
}


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    found = MAPS[scale]
    return [
        _run(scale, staleness=staleness, start=start, rate=rate, seed=seed)
        for seed in range(found.seeds)
        for rate in found.rates
        for staleness, start in found.cases
    ]


def _run(scale: Scale, *, staleness: int, start: str, rate: float, seed: int) -> Run:
    data, updates = datasets.image_set(scale), MAPS[scale].updates
    overrides = {
        **data,
        "batch_size_per_worker": 32,
        "optimizer.learning_rate": rate,
        "optimizer.momentum": 0.0,
        "schedule.name": "cosine_decay_schedule",
        "reducer.name": "stale",
        "reducer.delay_steps": staleness,
        "reducer.ramp_up_steps": 3 * updates // 4 if start == RAMP else 0,
        "train_steps": updates,
        "eval_every_steps": -(-updates // 2),
        "checkpoint_every_steps": updates,
        "data.evaluate_on": "test",
        "seed": seed,
    }
    labels = {"staleness": staleness, "start": start, "rate": rate, "seed": seed, "data": data["data.name"]}
    flags, cost = {"num_devices": 1}, 1 + staleness / 50
    return Run(labels=labels, spec="configs/mnist_cnn.py", overrides=overrides, flags=flags, cost=cost)


def _errors(rows: Rows, *, rate: float, staleness: int, start: str) -> list[float]:
    """Returns the test error in percent of each seed; a run that is not finite has that of guessing."""
    found = ask.select(ask.errors(rows), rate=rate, staleness=staleness, start=start)
    return [ask.last(row, "error") for row in sorted(found, key=lambda row: row["seed"])]


def _sample(rows: Rows, *, rate: float, staleness: int, start: str) -> Sample | None:
    errors = _errors(rows, rate=rate, staleness=staleness, start=start)
    return Sample.of(errors, digits=2, unit="%") if errors else None


def _cases_of(rows: Rows) -> list[Case]:
    """Returns the cases that have rows, ramped ones first."""
    return [
        (staleness, start) for start in STARTS for staleness in ask.distinct(ask.select(rows, start=start), "staleness")
    ]


def _best(rows: Rows, staleness: int, start: str) -> tuple[float, Sample]:
    """Returns the rate with the lowest mean error on the map, and the error."""
    found = {
        rate: sample
        for rate in ask.distinct(rows, "rate")
        if (sample := _sample(rows, rate=rate, staleness=staleness, start=start))
    }
    rate = min(found, key=lambda rate: found[rate].mean)
    return rate, found[rate]


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for staleness, start in _cases_of(rows):
        rate, error = _best(rows, staleness, start)
        name = f"lowest test error of the rates, staleness {staleness}{'' if start == RAMP else f' {STARTS[start]}'}"
        found += [Finding(name, ours=error), Finding(f"rate of the {name}", ours=f"{rate:g}")]
    return found


def _paper_table(rows: Rows) -> Table:
    if not ask.select(rows, staleness=0):
        return Table((), ())
    rate, _ = _best(rows, 0, RAMP)
    fails = Quoted("fails to converge from about 15 on", "MEM med")
    cells = {}
    for staleness, start in _cases_of(rows):
        quoted = Quoted(f"{PAPER[staleness]} %", "MEM med") if staleness in PAPER else None
        if start == ABRUPT:
            quoted = fails if staleness >= 15 else None
        error = _sample(rows, rate=rate, staleness=staleness, start=start)
        cells[f"{staleness}, {STARTS[start]}" if staleness else "0"] = [Cell(quoted, error)]
    note = f"Ours at {rate:g}, the rate with the lowest error without staleness; the paper's is not known."
    return paper_table.table("Staleness (updates)", ["test error"], cells, note=note)


def _table(rows: Rows) -> Table:
    rates = ask.distinct(rows, "rate")
    cells = []
    for staleness, start in _cases_of(rows):
        errors = [_sample(rows, rate=rate, staleness=staleness, start=start) for rate in rates]
        cells.append([str(staleness), STARTS[start], *(str(error or "") for error in errors)])
    return Table(["Staleness", "Start", *(f"test error, rate {rate:g}" for rate in rates)], cells)


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    rates = ask.distinct(rows, "rate")
    for axes, (start, title) in zip(panels, STARTS.items(), strict=True):
        for position, staleness in enumerate(ask.distinct(rows, "staleness")):
            case = {"staleness": staleness, "start": start if staleness else RAMP}
            found = {rate: sample for rate in rates if (sample := _sample(rows, rate=rate, **case))}
            if found:
                label = str(staleness) if staleness else "0 (fresh gradients)"
                drawing.band(axes, list(found), list(found.values()), position=position, label=label)
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="peak learning rate", xscale="log", yscale="log")
        drawing.ticks(axes, {rate: f"{rate:g}" for rate in rates})
        drawing.percent_ticks(axes)
    panels[0].set_ylabel("test error (%)")
    if panels[0].lines:
        panels[0].legend(fontsize=8, title="staleness", title_fontsize=8)


class Cells(NamedTuple):
    """What the ramp-up does, by cells of the map: a rate and a staleness.

    Attributes:
      rescued: cells in which training converges with it, and fails without.
      harmed: cells the other way round.
      tests: whether the two starts differ, of all cells.
    """

    rescued: list[str]
    harmed: list[str]
    tests: list[Contrast]


def _counting_rates(rows: Rows) -> list[float]:
    """Returns the rates at which little error is left without staleness."""
    fresh = {rate: _errors(rows, rate=rate, staleness=0, start=RAMP) for rate in ask.distinct(rows, "rate")}
    return [rate for rate, errors in fresh.items() if errors and statistics.fmean(errors) <= LEARNED]


def _ramped_levels(rows: Rows) -> list[int]:
    return ask.distinct(ask.select(rows, start=RAMP), "staleness")


def _cells(rows: Rows) -> Cells:
    contrasts, means = [], {}
    for rate in _counting_rates(rows):
        for staleness in filter(None, _ramped_levels(rows)):
            both = {start: _errors(rows, rate=rate, staleness=staleness, start=start) for start in STARTS}
            name = f"abrupt against ramped, staleness {staleness}, rate {rate:g}"
            found = welch(both[ABRUPT], both[RAMP], compared=name, side="two-sided", unit="%")
            contrasts.append(dataclasses.replace(found, most=100))
            means[name] = (statistics.fmean(both[ABRUPT]), statistics.fmean(both[RAMP]))
    tests = holm(contrasts)
    differ = [contrast.compared for contrast in tests if contrast.holds]
    rescued = [name for name in differ if means[name][0] > FAILED >= means[name][1]]
    harmed = [name for name in differ if means[name][1] > FAILED >= means[name][0]]
    return Cells(rescued, harmed, tests)


def _growing(rate: float) -> Grows:
    return Grows(
        words="the error with the ramp-up grows with staleness",
        by_run=lambda rows: list(
            zip(*(_errors(rows, rate=rate, staleness=level, start=RAMP) for level in _ramped_levels(rows)), strict=True)
        ),
        unit="%",
        at=f"rate {rate:g}",
        where=Condition(
            f"the mean error without staleness is at most {LEARNED:g} %", lambda rows: rate in _counting_rates(rows)
        ),
    )


RULE = Rule(
    setting="by test error after the last update, five seeds a cell, on a map of staleness x peak learning rate",
    needs=[
        Need(
            "no rate counts",
            lambda rows: (
                ""
                if _counting_rates(rows)
                else f"Without staleness, too, the test error is above {LEARNED:g} % at every rate."
            ),
        )
    ],
    parts=lambda scale: [
        *map(_growing, MAPS[scale].rates),
        Bound(
            words=f"the number of cells whose mean error is above {FAILED:g} % without the ramp-up and not with it, "
            "and differs by Welch's two-sided t-test, corrected by Holm's method over all cells,",
            values=lambda rows: [len(_cells(rows).rescued)],
            least=1,
            digits=0,
        ),
        Bound(
            words="the number of cells the other way round",
            values=lambda rows: [len(_cells(rows).harmed)],
            most=0,
            digits=0,
        ),
    ],
    shown=lambda rows: _cells(rows).tests,
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("6621e5df7b1a", "75b293649109"),
    hours={"smoke": 0.03, "laptop": 2.0, "gpu": 0.4},
    runs=_runs,
    reduce=evaluations_of("step", "epoch", "accuracy"),  # not the staleness of the records, which is a label
    findings=_findings,
    basis=lambda rows: ask.basis(rows, model="small CNN"),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(8.0, 3.4),
)
