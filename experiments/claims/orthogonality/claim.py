"""How orthogonal the workers' deltas are over training: layer by layer, and over the whole model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.plots import drawing
from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.verdict import Verdict, decide, holm, paired, trend, untested

# Config, model and overrides: on images of any scale, and at scale gpu.
LENET = ("configs/mnist_adasum.py", "LeNet-5", {"optimizer.learning_rate": 0.01})
RESNET = ("configs/imagenet_resnet50.py:laptop", "ResNet-20", {"data.name": "cifar10", "schedule.warmup_epochs": 1})
WORKERS = {"smoke": 8, "laptop": 8, "gpu": 16}
BATCH = {"smoke": 8, "laptop": 256, "gpu": 256}  # examples of a worker in each step
EPOCHS = {"smoke": 1, "laptop": 12, "gpu": 20}
FALLS = (1 / 3, 2 / 3, 8 / 9)  # shares of the run after which the learning rate falls to a tenth
EARLY, LATE = 0.02, 1 / 3  # shares of the run: its first steps, its last steps
PARTS = 6  # equal parts of the run, for the trend
AROUND = 10  # steps before and after a fall of the learning rate
SEEDS = {"smoke": 1, "laptop": 5, "gpu": 5}
FEW = 10  # layers that a figure can name
KEY = "orthogonality"
MEAN, MODEL = MEASURES = ("mean over layers", "whole model")
CLOSE = "[READ: MindSpore tutorial, a reader's note on the talk]"
PAPER = {MEAN: f"at first close to parallel, at last close to orthogonal {CLOSE}"}


def parallel(num_workers: int) -> float:
    """Returns the measure of identical deltas; that of orthogonal ones is 1.

    >>> parallel(16)
    0.25
    """
    return 1 / math.sqrt(num_workers)


def middle(num_workers: int) -> float:
    """Returns the middle between identical and orthogonal deltas.

    >>> middle(16)
    0.625
    """
    return (1 + parallel(num_workers)) / 2


CENTRES = {scale: f"{middle(num_workers):.3g}" for scale, num_workers in WORKERS.items()}


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    spec, model, own = RESNET if scale == "gpu" else LENET
    num_workers, batch_size, epochs = WORKERS[scale], BATCH[scale], EPOCHS[scale]
    overrides = {
        **datasets.image_set(scale),
        **own,
        "num_workers": num_workers,
        "batch_size_per_worker": batch_size,
        "reducer.telemetry": "on",
        "schedule.name": "steps",
        "schedule.at_epochs": tuple(share * epochs for share in FALLS),
        "log_every_steps": 1,
        **tuning.epochs(epochs, evaluate=epochs / 3),
    }
    labels = {"data": overrides["data.name"], "model": model, "num_workers": num_workers, "batch_size": batch_size}
    return [
        Run(labels={**labels, "seed": seed}, spec=spec, overrides={**overrides, "seed": seed}, flags={"num_devices": 1})
        for seed in range(SEEDS[scale])
    ]


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns learning rate and orthogonality of the model and of each layer, step by step."""
    found = [record for record in records if record["kind"] == "train"]
    layers = [key for record in found[:1] for key in record if key.startswith(f"{KEY}/")]
    return {
        "step": [record["step"] for record in found],
        "learning_rate": [float(f"{record['learning_rate']:.6g}") for record in found],
        "whole": [round(record[KEY], 5) for record in found],
        "layers": {key.removeprefix(f"{KEY}/"): [round(record[key], 4) for record in found] for key in layers},
        "accuracy": [record["accuracy"] for record in records if record["kind"] == "eval"],
    }


def frame(rows: Rows) -> Frame:
    """Returns a line for each layer of each run, and two for its mean over layers and its whole model.

    Means over steps: ``early`` and ``late``, ``run`` over all steps, and ``parts`` over equal parts of the run.
    """
    lines = []
    for row in rows:
        steps, end = row["step"], row["step"][-1]
        mean = np.mean([*row["layers"].values()], axis=0).tolist()
        for layer, curve in {MEAN: mean, MODEL: row["whole"], **row["layers"]}.items():
            line = {**row, "layer": layer, "curve": curve, "run": np.mean(curve)}
            line["early"] = _within(steps, curve, 0, max(EARLY * end, steps[0]))
            line["late"] = _within(steps, curve, (1 - LATE) * end, end)
            ends = [i * end / PARTS for i in range(PARTS + 1)]
            line["parts"] = [_within(steps, curve, *part) for part in itertools.pairwise(ends)]
            lines.append(line)
    return frames.frame(lines)


def _within(steps: Sequence[int], curve: Sequence[float], first: float, last: float) -> float:
    """Returns the mean of a curve over the steps first < step <= last."""
    inside = [value for at, value in zip(steps, curve, strict=True) if first < at <= last]
    return float(np.mean(inside)) if inside else math.nan


def _falls(df: Frame) -> list[int]:
    """Returns the steps after which the learning rate falls to less than half."""
    steps, rates = df["step"].iloc[0], df["learning_rate"].iloc[0]
    return [steps[i - 1] for i in range(1, len(rates)) if rates[i] < rates[i - 1] / 2]


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    if not all(np.isfinite(curve).all() for curve in df["curve"]):
        return untested("A measure is not finite: a run diverged.")
    centre = middle(int(df["num_workers"].iloc[0]))
    tests = []
    for at in MEASURES:
        same = df[df["layer"] == at]
        early, late = same["early"], same["late"]
        tests += [
            paired("last third", late, "above", "first steps", early, digits=3, at=at),
            paired("first steps", early, "below", centre, digits=3, at=at),
            paired("last third", late, "above", centre, digits=3, at=at),
            trend(f"it rises over {PARTS} equal parts of the run", same["parts"].tolist(), digits=3, at=at),
        ]
    means = frames.by_seed(df[~df["layer"].isin(MEASURES)], "layer", "run")
    first, others = means.iloc[0], means.iloc[1:]
    high, low = others[first.idxmax()], others[first.idxmin()]
    words = "the higher of the two layers farthest apart in seed 0"
    tests.append(paired(words, high, "above", "the lower one", low, digits=3, at="in the other seeds"))
    return decide(holm(*tests))


def _facts(df: Frame) -> Facts:
    n, layers = int(df["num_workers"].iloc[0]), df[~df["layer"].isin(MEASURES)].groupby("layer")
    ends = 100 * frames.last(df, "accuracy").groupby(df["seed"]).first()
    found: Facts = {
        "test accuracy at the end": frames.text(ends, 2, "%"),
        f"identical deltas of {n} workers; 1 is that of orthogonal ones": f"{parallel(n):.3f} (DERIVED)",
    }
    for column, part in (("early", f"first {EARLY:.0%} of the steps"), ("late", "last third of the steps")):
        means = layers[column].mean()
        words = f"{means.min():.3f} to {means.max():.3f}"
        found[f"layers, least to greatest, {part}"] = (words, f"large differences {CLOSE}")
    for at in _falls(df):
        before, after = (at - AROUND, at), (at, at + AROUND)
        curves = zip(df["step"], df["curve"], strict=True)
        change = pd.Series([_within(*curve, *after) - _within(*curve, *before) for curve in curves], df.index)
        mean, model = (frames.text(change[df["layer"] == measure], 3) for measure in MEASURES)
        quantity = f"{AROUND} steps after the fall of the rate at step {at}, less the {AROUND} before"
        found[f"{quantity}, {MEAN}"] = (mean, "a dip [MEM-lo, of ResNet-50]")
        found[f"{quantity}, {MODEL}"] = model
    return found


def _draw(df: Frame, figure: Figure) -> None:
    whole, early = figure.subplots(1, 2, sharey=True)
    steps = df["step"].iloc[0]
    layers = df[~df["layer"].isin(MEASURES)].groupby("layer", sort=False)["curve"]
    few = len(layers) <= FEW
    for axes in (whole, early):
        for position, (layer, curves) in enumerate(layers):
            look = drawing.look(position) | {"marker": "", "linewidth": 0.7, "alpha": 0.8 if few else 0.3}
            if few:
                look["label"] = layer
            elif position == 0:
                look["label"] = "a layer"
            axes.plot(steps, np.mean(curves.tolist(), axis=0), **look)
        for measure, colour, style in ((MEAN, "#000000", "-"), (MODEL, "#0072B2", "--")):
            curves = np.array(df[df["layer"] == measure]["curve"].tolist())
            look = {"color": colour, "marker": "", "linestyle": style, "linewidth": 2}
            figures.band(axes, steps, curves.T, position=0, label=measure, **look)
        for i, at in enumerate(_falls(df)):
            figures.line(axes, at, "" if i else "learning rate falls to a tenth", across=False, linestyle="--")
        figures.line(axes, parallel(int(df["num_workers"].iloc[0])), "identical deltas", linestyle=":")
    whole.set(xlabel="step", ylabel="‖Adasum‖ / root of Σ‖delta‖²", ylim=(0, 1.02))
    early.set(xlabel="step (logarithmic)", xscale="log")
    drawing.legend_below(figure, whole)


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.6, "gpu": 0.15},
    runs=_runs,
    reduce=_reduce,
    model=lambda df: "{model} with {num_workers} workers of {batch_size} examples".format(**df.iloc[0]),
    frame=frame,
    labels=["layer"],
    values={
        f"first {EARLY:.0%} of the steps": Value("early", 3),
        "last third of the steps": Value("late", 3),
        "the run": Value("run", 3),
    },
    paper=PAPER,
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
