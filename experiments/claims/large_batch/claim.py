"""Residual networks with ever more examples before each communication, with the mean, Adasum and LARS."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.plots import drawing
from experiments.study import figures, frames, tuning
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.verdict import Verdict, decide, holm, untested, welch

SPECS = {
    "sum": "configs/imagenet_resnet50_sum.py",
    "adasum": "configs/imagenet_resnet50.py",
    "lars": "configs/imagenet_resnet50_lars.py",
}
LABELS = {"sum": "mean", "adasum": "Adasum", "lars": "mean, LARS"}
MARGIN = 3  # percentage points that a large batch may lose and still count as trained
MLPERF = "[READ: mlcommons/logging, training 4.0.0]"
PAPER = {  # epochs to the target with 2K, 16K and 64K examples: the paper's, or those of MLPerf's nearest batches
    "mean": ("62 [MEM-lo]", "not reached [MEM-lo]", "no MLPerf v0.5 entry converged above 16K [READ: abstract, arXiv]"),
    "Adasum": ("62 [MEM-lo]", "69 [MEM-lo]", "converges [READ: abstract, arXiv]"),
    "mean, LARS": (
        f"35.2 ± 0.75 (n=15) at 3,264 {MLPERF}",
        f"45.4 ± 0.7 (n=10) at 13,056 {MLPERF}",
        f"84.5 ± 0.9 (n=10) at 65,536 {MLPERF}",
    ),
}


class Setting(NamedTuple):
    """The training at a scale."""

    data: str
    overrides: Mapping[str, Any]
    num_workers: int
    batches: tuple[int, ...]  # examples before a communication
    epochs: float  # at most
    target: float  # accuracy
    rates: Mapping[str, tuple[float, ...]]  # reducer -> rates to try with any batch; a sum has those of a mean


PARTS = {65536: 4}  # examples before a communication -> number of microbatches of a worker, if not one
MIDDLES = {  # (reducer, examples) -> the middle of the rates at scale gpu, which are a factor of 2 apart
    ("sum", 256): 0.2,
    ("sum", 4096): 1.6,
    ("sum", 8192): 1.6,
    ("adasum", 256): 0.05,
    ("adasum", 4096): 0.2,
    ("adasum", 8192): 0.4,
    ("lars", 8192): 10.0,
}
_NARROW = {"data.augment": "none", "model.num_filters": 4, "schedule.name": "constant"}
_CIFAR = {"schedule.name": "warmup_linear", "schedule.warmup_epochs": 5, "model.dtype": "bfloat16"}
_ONE = {"sum": (0.1,), "adasum": (0.1,)}
_DIGITS = {"sum": (0.1, 0.4, 1.6), "adasum": (0.025, 0.1, 0.4)}
_IMAGENET = {"sum": (0.8, 3.2, 12.8), "adasum": (0.05, 0.1, 0.2), "lars": (5.0, 10.0, 20.0)}
SETTINGS = {
    "smoke": Setting("digits", _NARROW, 4, (64, 256), 2, 0.1, _ONE),
    "laptop": Setting("digits", _NARROW, 4, (64, 256, 1024), 40, 0.95, _DIGITS),
    "gpu": Setting("cifar10", _CIFAR, 16, (256, 4096, 8192), 30, 0.85, {}),
    "paper": Setting("imagenet2012", {}, 64, (2048, 16384, 65536), 93, 0.749, _IMAGENET),
}


def _recipe(scale: Scale, *, batch: int, reducer: str, rate: float) -> Run:
    setting = SETTINGS[scale]
    every = 2 if scale == "laptop" else 1
    parts = PARTS.get(batch, 1)
    overrides = {
        **setting.overrides,
        "data.name": setting.data,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": batch // setting.num_workers,
        "accumulation.name": "local_steps" if reducer == "adasum" and parts > 1 else "micro_batches",
        "accumulation.count": parts,
        "optimizer.learning_rate": rate / setting.num_workers if reducer == "sum" else rate,
        **tuning.epochs(setting.epochs, evaluate=every, log=every),
    }
    labels = {"target": setting.target, "budget": setting.epochs}
    spec = SPECS[reducer] if scale == "paper" else f"{SPECS[reducer]}:laptop"
    return Run(labels=labels, spec=spec, overrides=overrides)


def grid(scale: Scale, point: tuning.Point) -> Sequence[float]:
    """Returns the first grid of rates, which is empty for a reducer that does not run with the batch."""
    if scale != "gpu":
        return SETTINGS[scale].rates.get(point["reducer"], ())
    middle = MIDDLES.get((point["reducer"], point["batch"]))
    return [middle * 2.0**power for power in range(-2, 3)] if middle else ()


def _points(scale: Scale) -> list[dict[str, Any]]:
    every = [{"batch": batch, "reducer": reducer} for batch in SETTINGS[scale].batches for reducer in SPECS]
    return [point for point in every if grid(scale, point)]


TUNED = tuning.Tuned(
    points=_points,
    grid=grid,
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3, "gpu": 3, "paper": 1},
    score=tuning.Score(target=lambda tried: tried[0]["target"]),
    tuning_seeds=tuning.ONE_SEED,
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with their epochs to the target; those of the whole run if it is not reached."""
    df = TUNED.frame(rows)
    epochs = frames.until(df, df["target"], along="epoch")
    return df.assign(
        reducer=df["reducer"].map(LABELS),
        epochs=epochs,
        lasted=np.minimum(epochs, df["budget"].astype(float)),
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    scale, target = df["scale"].iloc[0], df["target"].iloc[0]
    few, *_, many = SETTINGS[scale].batches
    if scale not in ("gpu", "paper"):
        part = f"The largest batch, {many:,} examples, is too large a part of the training set"
        return untested(f"{part} to say anything of large batches: the scale gpu is for that.")
    if not np.isfinite(frames.groups(df, ["reducer", "batch"], "epochs")["mean", few]).all():
        return untested(f"The mean does not reach {100 * target:g} % in every run with {few:,} examples.")
    ends = frames.groups(df, ["reducer", "batch"], "end")
    name = f"Adasum with {many:,} examples"
    adasum = ends["Adasum", many]
    as_many = f"mean with {many:,} examples"
    as_few = f"mean with {few:,} examples"
    tests = holm(
        welch(name, adasum, "above", as_many, ends["mean", many], unit="points"),
        welch(name, adasum, "above", as_few, ends["mean", few], by=-MARGIN, unit="points"),
    )
    return decide(tests)


def _facts(df: Frame) -> Facts:
    """Returns the epochs beside the paper's, and what the largest batch costs, against the mean with the smallest."""
    batches = sorted(set(df["batch"]))
    cells = dict(list(df.groupby(["reducer", "batch"])))
    few, many = batches[0], batches[-1]
    found: Facts = {}
    for reducer, papers in PAPER.items():
        for theirs, paper, batch in itertools.zip_longest(("2K", "16K", "64K"), papers, batches):
            ours = "not run"
            if (reducer, batch) in cells:
                ours = f"{_in_words(cells[reducer, batch])} at {batch:,}"
            found[f"epochs to the target, {reducer}, {theirs} examples in the paper"] = (ours, paper)
    ends = frames.groups(df, ["reducer", "batch"], "end")
    for reducer in PAPER:
        if (reducer, many) in ends:
            words = f"test accuracy with {many:,} examples less that of the mean with {few:,}, {reducer}"
            found[words] = f"{ends[reducer, many].mean() - ends['mean', few].mean():+.2f} points"
    return found


def _in_words(same: Frame) -> str:
    reached = np.isfinite(same["epochs"])
    lasted = frames.text(same["lasted"])
    return lasted if reached.all() else f"{lasted}, {reached.sum()} runs of {len(same)}"


def _draw(df: Frame, figure: Figure) -> None:
    budget, target = df["budget"].iloc[0], 100 * df["target"].iloc[0]
    y = {"lasted": f"epochs to {target:g} %"}
    (axes,) = figures.values(figure, df, x="batch", y=y, by="reducer", order=[*PAPER], xscale="log")
    axes.set_xlabel("examples before a communication")
    late = df[~np.isfinite(df["epochs"])]
    for position, reducer in enumerate(PAPER):
        fails = sorted(set(late.loc[late["reducer"] == reducer, "batch"]))
        look = drawing.look(position) | {"linestyle": "", "marker": "x"}
        axes.plot(fails, [budget] * len(fails), markersize=10, **look)
    figures.line(axes, budget, "end of the runs (x: not all)", linestyle="--")
    axes.set_ylim(0, None)


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model=lambda df: f"ResNet-{50 if df['scale'].iloc[0] == 'paper' else 20}",
    labels=["batch", "reducer"],
    values={
        **tuning.LEARNING_RATE,
        "epochs to the target": Value("epochs"),
        "epochs to it or to the end": Value("lasted"),
        "test accuracy at the end": Value("end", 2, "%"),
    },
    facts=_facts,
    hours={"smoke": 0.03, "laptop": 0.6, "gpu": 0.5, "paper": 320.0},
    draw=_draw,
)
