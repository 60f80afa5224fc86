"""How near one update of several workers comes to their sequential steps, by step size."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from experiments.claims.emulation_error import emulation
from experiments.claims.emulation_error.emulation import METHODS, STEP_SIZES
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, significance
from experiments.study import rows as ask
from experiments.study.datasets import LENET_RATE as RATE
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Group,
    Measure,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale

SETTINGS = {"lenet5": "LeNet-5", "softmax": "softmax regression", "toy": "toy logistic regression"}
LABELS = {"sum": "sum", "mean": "mean", "adasum": "Adasum", "second_order": "second order, exact Hessian"}
WORKERS = (2, 4)
SEEDS = 10
SEEN = 3  # seeds, the first, of which the window was read off before it was tested in the others
INSIDE, BELOW, ABOVE = (RATE / 2, RATE), RATE / 16, 2 * RATE  # step sizes of the tests
MARK = "DERIVED, another toy; not in the paper"
# Step size -> errors of the sum and of Adasum on another toy problem.
DERIVED = {0.1: (0.015, 0.179), 1.0: (0.103, 0.102), 8.0: (0.436, 0.313)}
WINDOW: Any = {"color": "#009E73", "alpha": 0.08, "linewidth": 0}
MINUTES: dict[Any, float] = {
    ("lenet5", 2): 0.9,
    ("lenet5", 4): 3.9,
}  # of one run on two cores; others take less than 0.1


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    images, smoke = datasets.image_set(scale)["data.name"], scale == "smoke"
    cases = [
        {
            "setting": setting,
            "data": "synthetic" if setting == "toy" else images,
            "num_workers": n,
            "steps": 2 if smoke else 20 if setting == "toy" else 500,
            "tuples": 1 if smoke or setting == "toy" else 4,
            "seed": seed,
        }
        for setting in STEP_SIZES
        for n in WORKERS
        for seed in range(1 if smoke else SEEDS)
    ]
    return [Run(labels=each, cost=MINUTES.get((each["setting"], each["num_workers"]), 0.08)) for each in cases]


def _errors(rows: Rows, *, setting: str, num_workers: int, method: str) -> list[Sample]:
    """Returns the error at each step size, over seeds."""
    return ask.curve(ask.select(rows, setting=setting, num_workers=num_workers), method, digits=3)


def window(row: Row) -> tuple[float, float] | None:
    """Returns the step sizes between which Adasum has the least error of the three, by interpolation.

    Returns:
      The lower and the upper edge, which is 0 or infinity where the measured step sizes end before; None if Adasum is
      nearest at no step size. Of several windows it is the one with the widest gap to the next best.

    >>> errors = {"adasum": [0.4] * 4, "sum": [0.2, 0.6, 0.7, 0.8], "mean": [0.9, 0.6, 0.6, 0.3]}
    >>> [round(edge, 3) for edge in window({"step_sizes": [1.0, 4.0, 16.0, 64.0], **errors})]
    [2.0, 40.317]
    """
    sizes = row["step_sizes"]
    others = zip(row["sum"], row["mean"], strict=True)
    gaps = [min(both) - adasum for both, adasum in zip(others, row["adasum"], strict=True)]
    peak = max(range(len(gaps)), key=gaps.__getitem__)

    def edge(direction: int, unknown: float) -> float:
        i = peak
        while 0 <= (beyond := i + direction) < len(gaps):
            if gaps[beyond] <= 0:
                share = gaps[i] / (gaps[i] - gaps[beyond])
                return sizes[i] * (sizes[beyond] / sizes[i]) ** share
            i = beyond
        return unknown

    return (edge(-1, 0.0), edge(1, math.inf)) if gaps[peak] > 0 else None


def _windows(rows: Rows, *, setting: str, num_workers: int) -> str:
    """Returns the window in words: the geometric mean of each edge over seeds, with its 95 % interval."""
    same = ask.select(rows, setting=setting, num_workers=num_workers)
    found = [window(row) for row in same]
    if None in found:
        return f"nearest at no step size in {found.count(None)} of {len(found)} seeds"
    lower, upper = ([each[i] for each in found if each] for i in (0, 1))
    return f"{_edge(lower, 'from')} {_edge(upper, 'to')} (n={len(found)})"


def _edge(values: Sequence[float], word: str) -> str:
    outside = sum(not 0 < value < math.inf for value in values)
    if outside:
        end = "least" if word == "from" else "greatest"
        return f"{word} beyond the {end} step size in {outside} of {len(values)} seeds"
    logs = [math.log(value) for value in values]
    mean = math.exp(sum(logs) / len(logs))
    if len(values) < 2:
        return f"{word} {mean:.4f}"
    spread = significance.paired(logs, [0.0] * len(logs), compared="edge of the window", side="two-sided")
    return f"{word} {mean:.4f} [{math.exp(spread.low):.4f}, {math.exp(spread.high):.4f}]"


def _settings(rows: Rows) -> list[tuple[str, int]]:
    return [(s, n) for s in SETTINGS for n in WORKERS if ask.select(rows, setting=s, num_workers=n)]


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for setting, n in _settings(rows):
        name = f"{SETTINGS[setting]}, {n} workers"
        quoted = Quoted("from 1 on, with no end up to 8", MARK) if (setting, n) == ("toy", 2) else None
        quantity = f"step sizes at which Adasum is the nearest of the three, {name}"
        found.append(Finding(quantity, ours=_windows(rows, setting=setting, num_workers=n), paper=quoted))
        for method in ("sum", "adasum") if (setting, n) == ("toy", 2) else ():
            samples = _errors(rows, setting=setting, num_workers=n, method=method)
            for a, values in DERIVED.items():
                value, ours = values[method == "adasum"], samples[STEP_SIZES["toy"].index(a)]
                paper, quantity = Quoted(f"{value}", MARK), f"error at step size {a:g}, {LABELS[method]}, {name}"
                found.append(Finding(quantity, ours=ours, paper=paper, paper_number=value))
    return found


def _tested(rows: Rows) -> list[Row]:
    """Returns the rows of LeNet-5 that the window was not read off."""
    return [row for row in ask.select(rows, setting="lenet5") if row["seed"] >= SEEN]


def _basis(rows: Rows) -> Basis:
    return ask.basis(_tested(rows) or rows, model="LeNet-5")


def _paper_table(rows: Rows) -> Table:
    workers = [n for setting, n in _settings(rows) if setting == "lenet5"]
    quoted = {"adasum": Quoted("well below the sum's", "MEM-lo, no values")}
    lines = {}
    for method, label in LABELS.items():
        samples = [_errors(rows, setting="lenet5", num_workers=n, method=method) for n in workers]
        lines[label] = [Cell(quoted.get(method), of[STEP_SIZES["lenet5"].index(RATE)]) for of in samples]
    note = (
        "The paper has a figure of LeNet-5, with the exact Hessian as the reference (MEM-lo), whose values we do not "
    )
    return paper_table.table(
        f"Error at step size {RATE}", [f"{n} workers" for n in workers], lines, note=f"{note}know."
    )


def _table(rows: Rows) -> Table:
    cells = []
    for setting, n in _settings(rows):
        columns = {method: _errors(rows, setting=setting, num_workers=n, method=method) for method in METHODS}
        for i, a in enumerate(STEP_SIZES[setting]):
            own = [f"{columns[method][i].mean:.3g} ± {columns[method][i].std:.1g}" for method in METHODS]
            cells.append([SETTINGS[setting], str(n), f"{a:.3g}", *own])
    data = ", ".join(value for value in ask.distinct(rows, "data") if value != "synthetic")
    note = f"Error: |u - s| / |s|, mean ± standard deviation over seeds. Nets on {data}."
    return Table(["Setting", "Workers", "Step size", *LABELS.values()], cells, note)


def _draw(rows: Rows, figure: Figure) -> None:
    settings = [setting for setting in SETTINGS if ask.select(rows, setting=setting)]
    grid = figure.subplots(len(WORKERS), len(settings), squeeze=False, sharex="col", sharey=True)
    for column, setting in enumerate(settings):
        for line, n in enumerate(WORKERS):
            axes = grid[line, column]
            for position, (method, label) in enumerate(LABELS.items()):
                samples = _errors(rows, setting=setting, num_workers=n, method=method)
                drawing.band(axes, STEP_SIZES[setting][: len(samples)], samples, position=position, label=label)
            if setting == "lenet5":
                axes.axvline(RATE, linestyle="--", **drawing.REFERENCE)
            found = [window(row) for row in ask.select(rows, setting=setting, num_workers=n)]
            if edges := [each for each in found if each]:
                low, high = (
                    statistics.geometric_mean(max(edge, 1e-9) for edge in of) for of in zip(*edges, strict=True)
                )
                axes.axvspan(max(low, STEP_SIZES[setting][0]), min(high, STEP_SIZES[setting][-1]), **WINDOW)
            axes.set(xscale="log", yscale="log", ylim=(1e-3, 2))
            axes.set_title(f"{SETTINGS[setting]}, {n} workers", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("step size")
    for axes in grid[:, 0]:
        axes.set_ylabel("error against sequential")
    drawing.legend_below(figure, grid[0, 0], columns=4, fontsize=9)


def _error(method: str, size: float, num_workers: int) -> Group:
    """Returns a method's error at a step size, in the runs of LeNet-5 that the window was not read off."""
    error = Measure(
        words="the error of an update on LeNet-5",
        values=lambda rows: [row[method][row["step_sizes"].index(size)] for row in rows],
        digits=3,
    )
    return Group(LABELS[method], error, lambda rows: ask.select(_tested(rows), num_workers=num_workers))


def _nearer(method: str, than: str, size: float, num_workers: int) -> Compare:
    ours, theirs = (_error(name, size, num_workers) for name in (method, than))
    at = f"step size {size:.4f} and {num_workers} workers"
    return Compare(ours=ours, is_="below", theirs=theirs, paired=True, at=at)


RULE = Rule(
    setting=f"seeds {SEEN} to {SEEDS - 1}, since the window of step sizes was read off those before; {INSIDE[1]} is "
    "the authors' rate",
    parts=lambda scale: [
        test
        for n in WORKERS
        for test in (
            *(_nearer("adasum", other, size, n) for size in INSIDE for other in ("sum", "mean")),
            _nearer("sum", "adasum", BELOW, n),
            _nearer("mean", "adasum", ABOVE, n),
        )
    ],
    listed=False,
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("538b63bd78b8",),
    hours={"smoke": 0.02, "laptop": 0.85},
    runs=_runs,
    measure=emulation.measure,
    findings=_findings,
    basis=_basis,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.2, 5.0),
)
