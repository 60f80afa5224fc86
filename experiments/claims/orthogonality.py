"""How orthogonal the workers' deltas are, layer by layer, over training."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import datasets, drawing
from experiments import rows as ask
from experiments.drawing import Figure
from experiments.experiment import Experiment, Finding, Quoted, Row, Rows, Run, Sample, Scale, Verdict, holds

NUM_WORKERS = 8
PARALLEL = 1 / math.sqrt(NUM_WORKERS)  # of identical deltas; of orthogonal ones it is 1
MIDDLE = (1 + PARALLEL) / 2
EARLY, LATE = 0.02, 1 / 3  # shares of the run: its first steps, its last steps
AROUND = 20  # steps before and after a change of the learning rate
SEEDS = 3
RATE = 0.01
EPOCHS = {"mnist": 3, "digits": 60}
KEY = "orthogonality/"


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    data = datasets.image_set(scale)
    epochs = 6 if scale == "smoke" else EPOCHS[data["data.name"]]
    overrides = {
        **data,
        "num_workers": NUM_WORKERS,
        "reducer.telemetry": "on",
        "optimizer.learning_rate": RATE,
        "schedule.name": "steps",
        "schedule.at_epochs": (epochs / 3, 2 * epochs / 3),
        "train_epochs": epochs,
        "log_every_steps": 2,
        "eval_every_epochs": epochs / 3,
        "checkpoint_every_epochs": epochs / 3,
        "keep_checkpoints": 1,  # each has eight optimizer states
    }
    return [
        Run(
            labels={"data": data["data.name"], "num_workers": NUM_WORKERS, "seed": seed},
            spec="configs/mnist_adasum.py",
            overrides={**overrides, "seed": seed},
            flags={"num_devices": 1},
        )
        for seed in range(1 if scale == "smoke" else SEEDS)
    ]


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns learning rate and each layer's orthogonality, step by step, from the records of training."""
    found = [record for record in records if record["kind"] == "train"]
    layers = [key for key in (found[0] if found else {}) if key.startswith(KEY)]
    return {
        "step": [record["step"] for record in found],
        "learning_rate": [record["learning_rate"] for record in found],
        "layers": {key.removeprefix(KEY): [round(record[key], 5) for record in found] for key in layers},
        "accuracy": [record["accuracy"] for record in records if record["kind"] == "eval"],
    }


def _mean(row: Row) -> list[float]:
    """Returns the mean over layers at each recorded step."""
    return list(map(statistics.fmean, zip(*row["layers"].values(), strict=True)))


def _within(row: Row, values: Sequence[float], first: float, last: float) -> float:
    """Returns the mean of values over the records of steps first < step <= last."""
    kept = [value for step, value in zip(row["step"], values, strict=True) if first < step <= last]
    return statistics.fmean(kept) if kept else math.nan


def _early(row: Row, values: Sequence[float]) -> float:
    return _within(row, values, 0, max(EARLY * row["step"][-1], row["step"][0]))


def _late(row: Row, values: Sequence[float]) -> float:
    return _within(row, values, (1 - LATE) * row["step"][-1], row["step"][-1])


def _changes(row: Row) -> list[int]:
    """Returns the recorded steps after which the learning rate changes."""
    rates = row["learning_rate"]
    return [row["step"][i - 1] for i in range(1, len(rates)) if not math.isclose(rates[i], rates[i - 1], rel_tol=1e-3)]


def _change(row: Row, at: int) -> float:
    """Returns the mean over layers in the steps after a change, less that in the steps before."""
    mean = _mean(row)
    return _within(row, mean, at, at + AROUND) - _within(row, mean, at - AROUND, at)


def _by_layer(rows: Rows) -> dict[str, Sample]:
    """Returns the mean over the run of each layer, over seeds."""
    return {
        layer: Sample.of([statistics.fmean(row["layers"][layer]) for row in rows], digits=3)
        for layer in rows[0]["layers"]
    }


def _findings(rows: Rows) -> list[Finding]:
    early, late = (Sample.of([part(row, _mean(row)) for row in rows], digits=3) for part in (_early, _late))
    note = "READ: MindSpore tutorial, a reader's note on the talk"
    alike = f"identical deltas of {NUM_WORKERS} workers; orthogonal ones give 1"
    found = [
        Finding(
            f"mean over layers, first {EARLY:.0%} of the steps", ours=early, paper=Quoted("close to parallel", note)
        ),
        Finding("mean over layers, last third of the steps", ours=late, paper=Quoted("close to orthogonal", note)),
        Finding(alike, ours=f"{PARALLEL:.3f}", paper=Quoted("1 / sqrt(n)", "DERIVED")),
    ]
    for at in _changes(rows[0]):
        sample = Sample.of([_change(row, at) for row in rows], digits=3)
        quantity = f"{AROUND} steps after the change of the learning rate at step {at}, less the {AROUND} before"
        found.append(Finding(quantity, ours=sample, paper=Quoted("a dip", "MEM-lo, of ResNet-50")))
    return found + [Finding(f"{layer}, mean over the run", ours=mean) for layer, mean in _by_layer(rows).items()]


def _judge(rows: Rows) -> Verdict:
    if len(rows) < SEEDS:
        return Verdict.untested(f"The rule needs {SEEDS} seeds.")
    early, late = ([part(row, _mean(row)) for row in rows] for part in (_early, _late))
    rise = Sample.of([b - a for a, b in zip(early, late, strict=True)], digits=3)
    layers = _by_layer(rows)
    low, high = (pick(layers, key=lambda layer: layers[layer].mean) for pick in (min, max))
    spread, noise = layers[high].mean - layers[low].mean, max(sample.std for sample in layers.values())
    begin, end = Sample.of(early, digits=3), Sample.of(late, digits=3)
    held = [rise.mean > 3 * rise.std, begin.mean < MIDDLE < end.mean, spread > 3 * noise]
    word = [holds(part) for part in held]
    return Verdict.of(
        all(held),
        f"The mean over layers rises by {rise} ({word[0]}), from {begin} to {end}, where the middle between parallel "
        f"and orthogonal is {MIDDLE:.3f} ({word[1]}); of the layers {low} has {layers[low]} and {high} "
        f"{layers[high]} ({word[2]}).",
    )


def _draw(rows: Rows, figure: Figure) -> None:
    whole, early = figure.subplots(1, 2, sharey=True)
    steps = rows[0]["step"]
    means = [_mean(row) for row in rows]
    for axes in (whole, early):
        for position, layer in enumerate(rows[0]["layers"]):
            curve = list(map(statistics.fmean, zip(*(row["layers"][layer] for row in rows), strict=True)))
            axes.plot(steps, curve, label=layer, alpha=0.8, **drawing.look(position) | {"marker": "", "linewidth": 0.7})
        samples = [Sample.of(values) for values in zip(*means, strict=True)]
        look = {"color": "#000000", "marker": "", "linestyle": "-", "linewidth": 2}
        drawing.band(axes, steps, samples, position=0, label="mean over layers", **look)
        for at in _changes(rows[0]):
            axes.axvline(at, linestyle="--", **drawing.REFERENCE)
        axes.axhline(PARALLEL, linestyle=":", **drawing.REFERENCE)
    whole.set(xlabel="step", ylabel="‖Adasum‖ / root of Σ‖delta‖²", ylim=(0.9 * PARALLEL, 1.02))
    early.set(xlabel="step (logarithmic)", xscale="log")
    drawing.legend_below(figure, whole, columns=3)


EXPERIMENT = Experiment(
    number=8,
    title="Orthogonality of the workers' deltas over training",
    claim="Early in training the gradients of different workers are close to parallel, later close to orthogonal; and "
    "layers differ.",
    source="arXiv 2006.02924, figure of orthogonality per layer over training",
    rule=f"By the length of Adasum of the workers' deltas over the root of the sum of their squared lengths, "
    f"{PARALLEL:.3f} of {NUM_WORKERS} identical and 1 of orthogonal ones, in {SEEDS} seeds. Supported if its mean over "
    f"layers in the first {EARLY:.0%} of the steps is below that of the last third by more than 3 standard deviations "
    f"of the difference; if the former is below the middle, {MIDDLE:.3f}, and the latter above; and if the means over "
    "the run of the layers spread by more than 3 standard deviations over seeds of the one that varies most.",
    hours={"smoke": 0.01, "laptop": 0.1},
    runs=_runs,
    reduce=_reduce,
    findings=_findings,
    basis=lambda rows: ask.basis(rows, model="LeNet-5"),
    judge=_judge,
    draw=_draw,
    inches=(7.0, 4.0),
    notes=(
        f"LeNet-5, {NUM_WORKERS} workers of 32 examples, Momentum-SGD at each worker, whose deltas are combined: they "
        f"are what the authors log in their BERT training. Learning rate {RATE}, a tenth after each third of the run, "
        "without a warm-up; dashed lines mark the changes, the dotted one identical deltas. Every other step is "
        "recorded. A dip at changes of the learning rate is recalled of a figure of ResNet-50; it is reported, and is "
        "no part of the rule.",
    ),
)
