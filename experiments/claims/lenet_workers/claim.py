"""LeNet-5 with ever more workers: the learning rate of one worker, or one that is tuned; the sum, or Adasum."""

import math
import statistics
from collections.abc import Mapping
from fractions import Fraction

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, tuning
from experiments.study import rows as ask
from experiments.study.datasets import LENET_RATE as RATE
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    ACCURACY,
    Compare,
    Group,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale, scale_of
from experiments.study.tuning import Tuned

REDUCERS = ("sum", "adasum")
WORKERS: Mapping[Scale, tuple[int, ...]] = {"smoke": (2, 4), "laptop": (4, 8, 16, 32), "gpu": (4, 8, 16, 32)}
TUNED_WORKERS: Mapping[Scale, tuple[int, ...]] = {**WORKERS, "smoke": (4,)}
SEEDS: Mapping[Scale, int] = {"smoke": 1, "laptop": 5, "gpu": 3}
TUNING_SEEDS: Mapping[Scale, int] = {"smoke": 1, "laptop": 3, "gpu": 1}
EPOCHS = {"mnist": 2, "digits": 40}
GENTLE = 1.0  # percentage points
PAPER = {  # (reducer, whether it is tuned) -> what is known of its accuracy with 32 GPUs
    ("sum", "untuned"): Quoted("collapses", "MEM-lo"),
    ("sum", "tuned"): Quoted("below Adasum", "MEM-lo"),
    ("adasum", "untuned"): Quoted("a little below 4 GPUs", "MEM-lo"),
    ("adasum", "tuned"): None,
}


def factors(reducer: str, *, num_workers: int) -> tuple[float, ...]:
    """Returns the multiples of the untuned rate that are tried at first, which are a factor of the root of 2 apart.

    The sum of n deltas is up to n times as long as one, so its rate goes down with n: in all 2.8, 4 and 5.7 times that
    of one worker. Adasum is meant for the rate of one worker; Horovod's guide has 1 to 2.5 times that, but 32 workers
    were best at half of it.

    >>> factors("sum", num_workers=32), factors("adasum", num_workers=32)
    ((0.0884, 0.125, 0.177), (0.5, 0.707, 1.0))
    """
    middle = 4 / num_workers if reducer == "sum" else math.sqrt(0.5)
    return tuple(float(f"{middle * ratio:.3g}") for ratio in (math.sqrt(0.5), 1.0, math.sqrt(2)))


def _recipe(scale: Scale, *, num_workers: int, reducer: str, factor: float) -> Run:
    data = datasets.image_set(scale)
    epochs = 1 if scale == "smoke" else EPOCHS[data["data.name"]]
    overrides = {
        **data,
        "num_workers": num_workers,
        "reducer.name": reducer,
        "optimizer.learning_rate": factor * RATE,
        **tuning.epochs(epochs, evaluate=epochs / 2),
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist_adasum.py", overrides=overrides)


def _points(*workers: int) -> list[dict]:
    return [{"num_workers": n, "reducer": reducer} for n in workers for reducer in REDUCERS]


TUNED = Tuned(
    points=lambda scale: _points(*TUNED_WORKERS[scale]),
    grid=lambda scale, point: factors(point["reducer"], num_workers=point["num_workers"]),
    recipe=_recipe,
    seeds=SEEDS,
    key="factor",
    value="multiple of the rate of one worker",
    tuning_seeds=TUNING_SEEDS,
)


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns untuned runs, then one number of workers after the other, tuning runs and picks.

    A pick that is the untuned rate has its runs already.
    """
    untuned = [{"num_workers": 1, "reducer": "mean"}, *_points(*WORKERS[scale])]
    runs = [TUNED.run(scale, point, 1.0, stage=1, seed=seed) for point in untuned for seed in range(SEEDS[scale])]
    for n in TUNED_WORKERS[scale]:
        runs += TUNED.tuning_runs(scale, rows, _points(n))
        if not all(TUNED.is_tuned(scale, rows, point) for point in _points(n)):
            break
        finals = [run for point in _points(n) for run in TUNED.final_runs(scale, rows, point)]
        runs += [run for run in finals if run.labels["factor"] != 1.0]
    return runs


def _picked(rows: Rows, **point: int | str) -> float | None:
    """Returns the factor with the best accuracy on the validation split; None before all of them are finished."""
    return TUNED.picked(rows, **point) if TUNED.is_tuned(scale_of(rows), rows, point) else None


def _both(rows: Rows, **point: int | str) -> dict[str, list[Row]]:
    """Returns the test rows of the untuned rate, and those of the tuned one."""
    picks = {"untuned": 1.0, "tuned": _picked(rows, **point)}
    return {word: TUNED.tests(rows, **point, factor=factor) for word, factor in picks.items()}


def _workers(rows: Rows) -> list[int]:
    return [n for n in ask.distinct(rows, "num_workers") if n > 1]


def _findings(rows: Rows) -> list[Finding]:
    found = []
    if alone := TUNED.tests(rows, num_workers=1):
        quoted = Quoted("99.3 % in 2 epochs on one GPU", "READ: commit message of the authors' MNIST code")
        paper, number = (quoted, 99.3) if alone[0]["data"] == "mnist" else (None, None)
        found.append(Finding("test accuracy, one worker", ours=ask.accuracy(alone), paper=paper, paper_number=number))
    for n in _workers(rows):
        added, adasum = (_both(rows, num_workers=n, reducer=reducer)["tuned"] for reducer in REDUCERS)
        if added and adasum:
            gap = statistics.fmean(ask.accuracies(adasum)) - statistics.fmean(ask.accuracies(added))
            found.append(Finding(f"Adasum above the sum, tuned, {n} workers", ours=f"{gap:+.2f} points"))
    return found


def _paper_table(rows: Rows) -> Table:
    most = max(WORKERS["laptop"])

    def cell(reducer: str, word: str, n: int) -> Cell:
        found = _both(rows, num_workers=n, reducer=reducer)[word]
        return Cell(PAPER[reducer, word] if n == most else None, ask.accuracy(found) if found else None)

    cells = {
        f"{'sum' if reducer == 'sum' else 'Adasum'}, {word}": [cell(reducer, word, n) for n in WORKERS["laptop"]]
        for reducer, word in PAPER
    }
    data = ", ".join(ask.distinct(rows, "data"))
    note = (
        f"Test accuracy, ours on {data}, untuned with the rate {RATE} of one worker. The paper's figure is recalled "
        "and was not read, so that none of its values is given."
    )
    return paper_table.table("Reducer", [f"{n} GPUs" for n in WORKERS["laptop"]], cells, note=note)


def _basis(rows: Rows) -> Basis:
    """Returns what the verdict rests on, where a point has runs at the untuned rate and at its own."""
    parts = [part for point in _points(*_workers(rows)) for part in _both(rows, **point).values()]
    return TUNED.basis(rows, model="LeNet-5")._replace(n=min(map(len, parts), default=0))


def _draw(rows: Rows, figure: Figure) -> None:
    errors, tried = figure.subplots(1, 2)
    rows, workers = ask.errors(rows), _workers(rows)
    for position, reducer in enumerate(REDUCERS):
        for which, word in enumerate(("untuned", "tuned")):
            parts = {n: _both(rows, num_workers=n, reducer=reducer)[word] for n in workers}
            values = {n: [ask.last(row, "error") for row in part] for n, part in parts.items() if part}
            place = 2 * which + position
            samples = [Sample.of(of_seeds) for of_seeds in values.values()]
            drawing.band(errors, list(values), samples, position=place, label=f"{reducer}, {word}")
            if dots := [(n, value) for n, of_seeds in values.items() for value in of_seeds]:
                errors.scatter(*zip(*dots, strict=True), s=6, color=drawing.look(place)["color"], zorder=3)
        for n in workers:
            found: dict[float, list[float]] = {}
            for row in TUNED.tried(rows, num_workers=n, reducer=reducer):
                found.setdefault(row["factor"], []).append(ask.last(row, "error"))
            if by_factor := [(factor, statistics.fmean(found[factor])) for factor in sorted(found)]:
                tried.plot(*zip(*by_factor, strict=True), **drawing.look(2 + position))  # as the tuned runs on the left
                tried.annotate(f"{n}", by_factor[0], (-6, 6), textcoords="offset points", fontsize=7)
    if alone := TUNED.tests(rows, num_workers=1):
        errors.axhline(100 - ask.accuracy(alone).mean, label="one worker", **drawing.REFERENCE)
    errors.set(xscale="log", yscale="log", xlabel="workers", ylabel="test error (%)")
    tried.set(xscale="log", yscale="log", xlabel="rate (× one worker's)", ylabel="validation error (%), by workers")
    drawing.ticks(errors, {n: str(n) for n in workers})
    drawing.ticks(tried, {1 / 2**power: str(Fraction(1, 2**power)) for power in range(6)} | {2.0: "2"})
    for axes in (errors, tried):
        drawing.percent_ticks(axes)
    drawing.legend_below(figure, errors, columns=5)


def _with(num_workers: int, reducer: str, word: str) -> Group:
    name = f"{'Adasum' if reducer == 'adasum' else 'the sum'}, {word}, {num_workers} workers"
    return Group(name, ACCURACY, lambda rows: _both(rows, num_workers=num_workers, reducer=reducer)[word])


def _parts(scale: Scale) -> list[Compare]:
    fewest, *_, most = WORKERS[scale]
    untuned = _with(most, "adasum", "untuned")
    return [
        Compare(ours=untuned, is_="above", theirs=_with(most, "sum", "untuned")),
        Compare(ours=untuned, is_="above", theirs=_with(fewest, "adasum", "untuned"), by=-GENTLE),
        Compare(ours=_with(most, "adasum", "tuned"), is_="above", theirs=_with(most, "sum", "tuned")),
    ]


RULE = Rule(setting=f"untuned at the rate of one worker, {RATE}, or tuned, each at its own", parts=_parts)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("f7c91502a450",),
    model="LeNet-5",
    hours={"smoke": 0.05, "laptop": 4.8, "gpu": 0.45},
    runs=_runs,
    findings=_findings,
    basis=_basis,
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
