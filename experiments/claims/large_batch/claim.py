"""Residual networks with ever more examples before each communication, with the mean, Adasum and LARS."""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table, tuning
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    ACCURACY,
    Compare,
    Group,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale, scale_of
from experiments.study.tuning import Score, Tuned

SPECS = {
    "sum": "configs/imagenet_resnet50_sum.py",
    "adasum": "configs/imagenet_resnet50.py",
    "lars": "configs/imagenet_resnet50_lars.py",
}
LABELS = {"sum": "mean", "adasum": "Adasum", "lars": "mean, LARS"}
MARGIN = 3.0  # percentage points that a large batch may lose and still count as trained
TELLING: tuple[Scale, ...] = ("gpu", "paper")  # scales whose largest batch is a small part of the training set
# Reference convergence of MLPerf Training 4.0: batch -> epochs to 75.9 %, of plain data parallelism with LARS.
READ_MLPERF = "READ: mlcommons/logging, training 4.0.0"
MLPERF = {
    3_264: (35.2, 0.75, 15),
    4_096: (40.0, 1.0, 10),
    8_192: (42.0, 1.0, 10),
    13_056: (45.4, 0.7, 10),
    32_768: (56.0, 0.45, 10),
    65_536: (84.5, 0.9, 10),
    67_840: (85.9, 0.64, 28),
}
BATCHES_OF_PAPER = ("2K", "16K", "64K")
# Epochs to the target, by reducer and batch: the paper's, and beside them MLPerf's nearest batches.
PAPER = {
    ("sum", "2K"): Quoted("62", "MEM-lo"),
    ("sum", "16K"): Quoted("not reached", "MEM-lo"),
    ("sum", "64K"): Quoted("no MLPerf v0.5 entry converged above 16K", "READ: abstract, arXiv"),
    ("adasum", "2K"): Quoted("62", "MEM-lo"),
    ("adasum", "16K"): Quoted("69", "MEM-lo"),
    ("adasum", "64K"): Quoted("converges", "READ: abstract, arXiv"),
    ("lars", "2K"): Quoted("35.2 ± 0.75 (n=15) at 3,264", READ_MLPERF),
    ("lars", "16K"): Quoted("45.4 ± 0.7 (n=10) at 13,056", READ_MLPERF),
    ("lars", "64K"): Quoted("84.5 ± 0.9 (n=10) at 65,536", READ_MLPERF),
}


class Setting(NamedTuple):
    """The training at a scale."""

    data: str
    variant: str
    overrides: Mapping[str, Any]
    num_workers: int
    parts: Mapping[int, int]  # examples before a communication -> number of parts that a worker takes its own in
    epochs: float  # at most
    target: float  # accuracy
    eval_epochs: float
    rates: Mapping[
        tuple[str, int], tuple[float, ...]
    ]  # (reducer, examples) -> those tried; a sum's are those of a mean


def _of_all(rates: Mapping[str, tuple[float, ...]], batches: Mapping[int, int]) -> dict[tuple[str, int], tuple]:
    """Returns rates that do not depend on the batch."""
    return {(reducer, batch): tried for batch in batches for reducer, tried in rates.items()}


def _around(middles: Mapping[str, Mapping[int, float]]) -> dict[tuple[str, int], tuple[float, ...]]:
    """Returns five rates a factor of 2 apart around the given ones.

    >>> _around({"lars": {4096: 10.0}})
    {('lars', 4096): (2.5, 5.0, 10.0, 20.0, 40.0)}
    """
    return {
        (reducer, batch): tuple(middle * 2.0**power for power in range(-2, 3))
        for reducer, found in middles.items()
        for batch, middle in found.items()
    }


_NARROW = {"data.augment": "none", "model.num_filters": 4, "schedule.name": "constant"}
_CIFAR = {"schedule.name": "warmup_linear", "schedule.warmup_epochs": 5, "model.dtype": "bfloat16"}
_ONE = {"sum": (0.1,), "adasum": (0.1,)}
_DIGITS = {"sum": (0.1, 0.4, 1.6), "adasum": (0.025, 0.1, 0.4)}
_IMAGENET = {"sum": (0.8, 3.2, 12.8), "adasum": (0.05, 0.1, 0.2), "lars": (5.0, 10.0, 20.0)}
_OF_CIFAR = {
    "sum": {256: 0.2, 4096: 1.6, 8192: 1.6},
    "adasum": {256: 0.05, 4096: 0.2, 8192: 0.4},
    "lars": {8192: 10.0},
}
_TWO, _THREE, _BIG = {64: 1, 256: 1}, {64: 1, 256: 1, 1024: 1}, {2048: 1, 16384: 1, 65536: 4}
SETTINGS: dict[Scale, Setting] = {
    "smoke": Setting("digits", ":laptop", _NARROW, 4, _TWO, 2, 0.1, 1, _of_all(_ONE, _TWO)),
    "laptop": Setting("digits", ":laptop", _NARROW, 4, _THREE, 40, 0.95, 2, _of_all(_DIGITS, _THREE)),
    "gpu": Setting("cifar10", ":laptop", _CIFAR, 16, {256: 1, 4096: 1, 8192: 1}, 30, 0.85, 1, _around(_OF_CIFAR)),
    "paper": Setting("imagenet2012", "", {}, 64, _BIG, 93, 0.749, 1, _of_all(_IMAGENET, _BIG)),
}


def _recipe(scale: Scale, *, batch: int, reducer: str, rate: float) -> Run:
    setting = SETTINGS[scale]
    parts = setting.parts[batch]
    overrides = {
        **setting.overrides,
        "data.name": setting.data,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": batch // setting.num_workers,
        "accumulation.name": "local_steps" if reducer == "adasum" and parts > 1 else "micro_batches",
        "accumulation.count": parts,
        "optimizer.learning_rate": rate / setting.num_workers if reducer == "sum" else rate,
        **tuning.epochs(setting.epochs, evaluate=setting.eval_epochs, log=setting.eval_epochs),
    }
    labels = {"data": setting.data, "target": setting.target, "budget": setting.epochs}
    return Run(labels=labels, spec=SPECS[reducer] + setting.variant, overrides=overrides)


def _points(scale: Scale) -> list[dict[str, Any]]:
    setting = SETTINGS[scale]
    return [
        {"batch": b, "reducer": reducer} for b in setting.parts for reducer in SPECS if (reducer, b) in setting.rates
    ]


TUNED = Tuned(
    points=_points,
    grid=lambda scale, point: SETTINGS[scale].rates[point["reducer"], point["batch"]],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3, "gpu": 3, "paper": 1},
    score=Score(target=lambda tried: tried[0]["target"]),
    tuning_seeds=tuning.ONE_SEED,
)


def _epochs(row: Row) -> float:
    return ask.first_at(row, row["target"], of="accuracy", along="epoch")


def _reached(rows: Rows) -> int:
    return sum(_epochs(row) < math.inf for row in rows)


def _sample(rows: Rows) -> Sample:
    """Returns the epochs to the target; a run that does not get there counts as long as it was."""
    return Sample.of([min(_epochs(row), row["budget"]) for row in rows], digits=2)


def _in_words(rows: Rows) -> Sample | str:
    if not rows:
        return "not run"
    if not _reached(rows):
        return f"not reached in {rows[0]['budget']:g} epochs, at {ask.accuracy(rows)} then"
    return _sample(rows) if _reached(rows) == len(rows) else f"{_sample(rows)}, {_reached(rows)} runs of {len(rows)}"


def _reducers(rows: Rows) -> list[str]:
    return [reducer for reducer in SPECS if TUNED.tests(rows, reducer=reducer)]


def _ends(rows: Rows, batch: int, reducer: str) -> list[float]:
    """Returns the accuracies at the end, in percent."""
    return ask.accuracies(TUNED.tests(rows, batch=batch, reducer=reducer))


def _findings(rows: Rows) -> list[Finding]:
    """Returns what the largest batch costs, against the mean with the smallest."""
    batches = ask.distinct(rows, "batch")
    few, many = batches[0], batches[-1]
    baseline = _ends(rows, few, "sum")
    return [
        Finding(
            f"test accuracy with {many:,} examples less that of the mean with {few:,}, {LABELS[reducer]}",
            ours=f"{statistics.fmean(ends) - statistics.fmean(baseline):+.2f} points",
        )
        for reducer in _reducers(rows)
        if baseline and (ends := _ends(rows, many, reducer))
    ]


def _paper_table(rows: Rows) -> Table:
    batches = ask.distinct(rows, "batch")
    cells = {}
    for reducer, name in (("sum", "Sum"), ("adasum", "Adasum"), ("lars", "Mean with LARS (MLPerf, to 75.9 %)")):
        found = [TUNED.tests(rows, batch=batch, reducer=reducer) for batch in batches]
        ours = [f"{_in_words(of)} at {batch:,}" if of else None for batch, of in zip(batches, found, strict=True)]
        ours += [None] * (len(BATCHES_OF_PAPER) - len(ours))
        cells[name] = [Cell(PAPER[reducer, at], value) for at, value in zip(BATCHES_OF_PAPER, ours, strict=True)]
    mlperf = ", ".join(f"{batch:,}: {mean:g} ± {std:g} (n={n})" for batch, (mean, std, n) in MLPERF.items())
    note = (
        "Epochs to 74.9 % of ImageNet, by examples before a communication; ours are of another data set, with other "
        f"batches, to {rows[0]['target']:.0%}. Our sum is at a rate divided by the number of workers, which is the "
        f"mean. All of MLPerf's reference convergence [{READ_MLPERF}], epochs to 75.9 % by batch: {mlperf}."
    )
    return paper_table.table("Reducer", BATCHES_OF_PAPER, cells, note=note)


def _draw(rows: Rows, figure: Figure) -> None:
    axes, batches, budget = figure.subplots(), ask.distinct(rows, "batch"), rows[0]["budget"]
    for position, reducer in enumerate(_reducers(rows)):
        label = LABELS[reducer]
        found = {batch: TUNED.tests(rows, batch=batch, reducer=reducer) for batch in batches}
        found = {batch: of for batch, of in found.items() if of}
        drawing.band(axes, list(found), [_sample(of) for of in found.values()], position=position, label=label)
        fails = [batch for batch, of in found.items() if _reached(of) < len(of)]
        look = drawing.look(position) | {"linestyle": "", "marker": "x"}
        axes.plot(fails, [budget] * len(fails), markersize=10, **look)
    axes.axhline(budget, linestyle="--", label="end of the runs (x: not all)", **drawing.REFERENCE)
    axes.set(xscale="log", xlabel="examples before a communication", ylim=(0, None))
    axes.set(ylabel=f"epochs to {rows[0]['target']:.1%}")
    drawing.ticks(axes, {batch: f"{batch:,}" for batch in batches})
    axes.legend(fontsize=8)


def _with(batch: int, reducer: str) -> Group:
    return TUNED.group(f"{LABELS[reducer]} with {batch:,} examples", ACCURACY, batch=batch, reducer=reducer)


def _parts(scale: Scale) -> list[Compare]:
    few, *_, many = SETTINGS[scale].parts
    return [
        Compare(ours=_with(many, "adasum"), is_="above", theirs=_with(many, "sum")),
        Compare(ours=_with(many, "adasum"), is_="above", theirs=_with(few, "sum"), by=-MARGIN),
    ]


def _largest_is_large(rows: Rows) -> str:
    words = (
        f"The largest batch, {ask.distinct(rows, 'batch')[-1]:,} examples, is too large a part of the training set "
        "to say anything of large batches: the scale gpu is for that."
    )
    return "" if scale_of(rows) in TELLING else words


def _smallest_trains(rows: Rows) -> str:
    few = ask.distinct(rows, "batch")[0]
    first = TUNED.tests(rows, batch=few, reducer="sum")
    words = f"The mean does not reach {rows[0]['target']:.1%} in every run with {few:,} examples."
    return "" if _reached(first) == len(first) else words


RULE = Rule(
    needs=[
        Need("the images are digits, of which the largest batch is four fifths", _largest_is_large),
        Need("the mean with the fewest examples does not reach the target in every run", _smallest_trains),
    ],
    parts=_parts,
    other_scales=("gpu", "paper"),
    remark="Examples are those before a communication.",
)
COLUMNS: Mapping[str, Any] = {"Epochs to the target": _in_words, "Accuracy at the end": ask.accuracy}


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("1725aebef8f1",),
    model=lambda rows: f"ResNet-{50 if scale_of(rows) == 'paper' else 20}",
    columns=COLUMNS,
    hours={"smoke": 0.03, "laptop": 0.6, "gpu": 0.5, "paper": 320.0},
    findings=_findings,
    paper_table=_paper_table,
    draw=_draw,
)
