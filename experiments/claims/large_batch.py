"""Residual networks with ever more examples before each communication, with the mean, Adasum and LARS."""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table, tuning
from experiments.study import rows as ask
from experiments.study.experiment import (
    Experiment,
    Finding,
    Quoted,
    Row,
    Rows,
    Run,
    Sample,
    Scale,
    Table,
    Verdict,
    scale_of,
)
from experiments.study.paper_table import Cell
from experiments.study.significance import holm, welch
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


def _judge(rows: Rows) -> Verdict:
    target, batches = f"{rows[0]['target']:.1%}", ask.distinct(rows, "batch")
    few, many = batches[0], batches[-1]
    if scale_of(rows) not in TELLING:
        return Verdict.untested(
            f"The largest batch, {many:,} examples, is too large a part of the training set to say anything of large "
            "batches: the scale gpu is for that."
        )
    first = TUNED.tests(rows, batch=few, reducer="sum")
    if _reached(first) < len(first):
        return Verdict.untested(f"The mean does not reach {target} in every run with {few:,} examples.")
    mean, adasum, baseline = (_ends(rows, *case) for case in ((many, "sum"), (many, "adasum"), (few, "sum")))
    nearly = [end + MARGIN for end in adasum]
    contrasts = holm(
        [
            welch(adasum, mean, compared=f"Adasum above the mean, {many:,} examples", side="greater", unit="%"),
            welch(
                nearly,
                baseline,
                compared=f"Adasum with {many:,} examples above {MARGIN:g} points below the mean with {few:,}",
                side="greater",
                unit="%",
            ),
        ]
    )
    ends = [Sample.of(found, digits=2, unit="%") for found in (adasum, mean, baseline)]
    return Verdict.of(
        all(contrast.holds for contrast in contrasts),
        f"With {many:,} examples before each communication Adasum ends at {ends[0]} and the mean at {ends[1]}, where "
        f"the mean with {few:,} examples ends at {ends[2]}.",
        contrasts=contrasts,
    )


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


def _table(rows: Rows) -> Table:
    cells = []
    for batch in ask.distinct(rows, "batch"):
        for reducer in _reducers(rows):
            if tests := TUNED.tests(rows, batch=batch, reducer=reducer):
                rate = f"{tests[0]['rate']:g}"
                cells.append([f"{batch:,}", LABELS[reducer], rate, str(_in_words(tests)), str(ask.accuracy(tests))])
    header = ["Examples", "Reducer", "Rate", "Epochs to the target", "Accuracy at the end"]
    return Table(header, cells, "Rates of the mean are those that a sum has times the number of workers.")


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


EXPERIMENT = Experiment(
    number=11,
    title="Large batches with Momentum-SGD",
    claim="With Adasum, Momentum-SGD trains residual networks with many more examples before each communication (64K "
    "on ImageNet, four times as many) than with the mean.",
    source="arXiv 2006.02924, abstract, and the table of ResNet-50 on ImageNet",
    rule="By test accuracy at the end, one-sided Welch tests corrected by Holm's method, at 0.05. Supported if with "
    "the most examples before a communication Adasum ends above the mean, and less than "
    f"{MARGIN:g} points below the mean with the fewest examples. Not tested where the mean with the fewest examples "
    "does not reach the target accuracy in every run, and not on digits, of which the largest batch is four fifths.",
    selection="The learning rate of each reducer and batch: fewest epochs to the target on the validation split (last "
    "tenth of the training set), then accuracy; seed 0; on CIFAR-10 five rates a factor of 2 apart, elsewhere three, a "
    "grid that goes on until the pick is inside.",
    hours={"smoke": 0.03, "laptop": 0.6, "gpu": 0.5, "paper": 320.0},
    runs=TUNED.runs,
    findings=_findings,
    basis=lambda rows: TUNED.basis(rows, model=f"ResNet-{50 if scale_of(rows) == 'paper' else 20}"),
    tuned=TUNED,
    judge=_judge,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    notes=(
        "The scale gpu trains ResNet-20 on CIFAR-10 for 30 epochs with 16 workers and 256, 4,096 or 8,192 examples, "
        "in bfloat16, with a warm-up over 5 epochs and a linear decay; LARS with the mean stands beside at the "
        "largest batch. The target of 85 % was fixed before its runs. The data set that we train on was "
        "reconstructed: 93 of its 60,000 images are approximate.",
        "The laptop trains a ResNet-20 of a quarter of the channels on digits of 8 x 8 pixels, as a core takes "
        "minutes for one pass over MNIST. Its largest batch is seven tenths of the training set, four "
        "fifths where a validation split is held out. 64K are a twentieth of ImageNet's. So its epochs decide nothing.",
        "MLPerf's reference runs show that plain data parallelism with LARS trains at 64K: that no entry of v0.5 "
        "converged above 16K was true of its year, and is no evidence that averaging fails there.",
        "As in the configs: the sum is of gradients, then one optimizer, and at its rates it is the mean; Adasum is of "
        "the deltas of optimizers of the workers' own. At the paper's scale the most examples are in 4 local steps for "
        "Adasum and 4 micro-batches for the others. Each worker has its own BatchNorm statistics.",
        "Differs in: a constant rate on digits. The paper's epochs are unverified recollections, and none is a target.",
    ),
)
