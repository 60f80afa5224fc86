"""How orthogonal the workers' deltas are over training: layer by layer, and over the whole model."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, tuning
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Group,
    Grows,
    Measure,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale


class Setting(NamedTuple):
    """The training at a scale."""

    spec: str
    model: str
    overrides: Mapping[str, Any]
    num_workers: int
    batch_size: int  # examples of a worker in each step
    epochs: int


_LENET = {"optimizer.learning_rate": 0.01}
_RESNET = {"data.name": "cifar10", "schedule.warmup_epochs": 1}
SETTINGS: dict[Scale, Setting] = {
    "smoke": Setting("configs/mnist_adasum.py", "LeNet-5", _LENET, num_workers=8, batch_size=32, epochs=3),
    "laptop": Setting("configs/mnist_adasum.py", "LeNet-5", _LENET, num_workers=8, batch_size=256, epochs=12),
    "gpu": Setting(
        "configs/imagenet_resnet50.py:laptop", "ResNet-20", _RESNET, num_workers=16, batch_size=256, epochs=20
    ),
}
FALLS = (1 / 3, 2 / 3, 8 / 9)  # shares of the run after which the learning rate falls to a tenth
EARLY, LATE = 0.02, 1 / 3  # shares of the run: its first steps, its last steps
PARTS = 6  # of the run, for the trend
AROUND = 10  # steps before and after a fall of the learning rate
SEEDS = {"smoke": 1, "laptop": 5, "gpu": 5}
FEW = 10  # layers that a figure can name
KEY = "orthogonality"
MEASURES = {"mean": "mean over layers", "model": "whole model"}
CLOSE = "READ: MindSpore tutorial, a reader's note on the talk"


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


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    setting = SETTINGS[scale]
    epochs = setting.epochs
    overrides = {
        **({} if scale == "gpu" else datasets.image_set(scale)),
        **setting.overrides,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": setting.batch_size,
        "reducer.telemetry": "on",
        "schedule.name": "steps",
        "schedule.at_epochs": tuple(share * epochs for share in FALLS),
        "log_every_steps": 1,
        **tuning.epochs(epochs, evaluate=epochs / 3),
    }
    labels = {
        "data": overrides["data.name"],
        "model": setting.model,
        "num_workers": setting.num_workers,
        "batch_size": setting.batch_size,
    }
    return [
        Run(
            labels={**labels, "seed": seed},
            spec=setting.spec,
            overrides={**overrides, "seed": seed},
            flags={"num_devices": 1},
        )
        for seed in range(SEEDS[scale])
    ]


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns learning rate and orthogonality of the model and of each layer, step by step."""
    found = [record for record in records if record["kind"] == "train"]

    def curve(key: str, digits: int) -> list[float]:
        return [round(record[key], digits) for record in found]

    layers = [key for key in (found[0] if found else {}) if key.startswith(f"{KEY}/")]
    return {
        "step": [record["step"] for record in found],
        "learning_rate": [float(f"{record['learning_rate']:.6g}") for record in found],
        "whole": curve(KEY, 5),
        "layers": {key.removeprefix(f"{KEY}/"): curve(key, 4) for key in layers},
        "accuracy": [record["accuracy"] for record in records if record["kind"] == "eval"],
    }


def _enough(rows: Rows) -> bool:
    """Returns whether there are rows; those from before the whole model was measured cannot be reported."""
    return bool(rows) and all("whole" in row for row in rows)


def _curve(row: Row, measure: str) -> list[float]:
    """Returns a measure at each step."""
    return (
        row["whole"] if measure == "model" else list(map(statistics.fmean, zip(*row["layers"].values(), strict=True)))
    )


def _within(row: Row, values: Sequence[float], first: float, last: float) -> float:
    """Returns the mean of values over the steps first < step <= last."""
    kept = [value for step, value in zip(row["step"], values, strict=True) if first < step <= last]
    return statistics.fmean(kept) if kept else math.nan


def _early(row: Row, values: Sequence[float]) -> float:
    return _within(row, values, 0, max(EARLY * row["step"][-1], row["step"][0]))


def _late(row: Row, values: Sequence[float]) -> float:
    return _within(row, values, (1 - LATE) * row["step"][-1], row["step"][-1])


def _parts_of(row: Row, values: Sequence[float]) -> list[float]:
    """Returns the mean over each of the equal parts of the run."""
    end = row["step"][-1]
    return [_within(row, values, part * end / PARTS, (part + 1) * end / PARTS) for part in range(PARTS)]


def _falls(row: Row) -> list[int]:
    """Returns the steps after which the learning rate falls to less than half; a warm-up is none of them."""
    rates = row["learning_rate"]
    return [row["step"][i - 1] for i in range(1, len(rates)) if rates[i] < rates[i - 1] / 2]


def _fall(row: Row, at: int, measure: str) -> float:
    """Returns a measure in the steps after a fall of the learning rate, less that in the steps before."""
    values = _curve(row, measure)
    return _within(row, values, at, at + AROUND) - _within(row, values, at - AROUND, at)


def _by_layer(rows: Rows) -> dict[str, list[float]]:
    """Returns the mean over the run of each layer, seed by seed."""
    return {layer: [statistics.fmean(row["layers"][layer]) for row in rows] for layer in rows[0]["layers"]}


def _extremes(rows: Rows) -> tuple[str, str]:
    """Returns the layers with the least and the greatest mean over the run."""
    means = {layer: statistics.fmean(values) for layer, values in _by_layer(rows).items()}
    return min(means, key=means.__getitem__), max(means, key=means.__getitem__)


def _over_seeds(rows: Rows, part: Any, measure: str) -> list[Any]:
    return [part(row, _curve(row, measure)) for row in rows]


def _paper_table(rows: Rows) -> Table:
    apart, dip = Quoted("large differences", CLOSE), Quoted("a dip", "MEM-lo, of ResNet-50")
    lines = {}
    for name, part, quoted in (
        (f"first {EARLY:.0%} of the steps", _early, Quoted("close to parallel", CLOSE)),
        ("last third of the steps", _late, Quoted("close to orthogonal", CLOSE)),
    ):
        mean, model = (Sample.of(_over_seeds(rows, part, measure), digits=3) for measure in MEASURES)
        layers = [statistics.fmean(part(row, row["layers"][layer]) for row in rows) for layer in rows[0]["layers"]]
        lines[name] = [Cell(quoted, mean), Cell(None, model), Cell(apart, f"{min(layers):.3f} to {max(layers):.3f}")]
    for at in _falls(rows[0]):
        mean, model = (Sample.of([_fall(row, at, measure) for row in rows], digits=3) for measure in MEASURES)
        name = f"{AROUND} steps after the fall of the rate at step {at}, less the {AROUND} before"
        lines[name] = [Cell(dip, mean), Cell(None, model), Cell()]
    n = rows[0]["num_workers"]
    note = (
        "The paper has a figure, of ResNet-50 on 64 GPUs and of BERT-Large (MEM-lo), whose values we do not know. "
        f"{parallel(n):.3f} is the measure of {n} identical deltas, 1 that of orthogonal ones (DERIVED)."
    )
    return paper_table.table("Part of the run", [*MEASURES.values(), "layers, least to greatest"], lines, note=note)


def _findings(rows: Rows) -> list[Finding]:
    layers = [
        Finding(f"{layer}, mean over the run", ours=Sample.of(values, digits=3))
        for layer, values in _by_layer(rows).items()
    ]
    return [Finding("test accuracy at the end", ours=ask.accuracy(rows)), *layers]


def _basis(rows: Rows) -> Basis:
    n, batch = rows[0]["num_workers"], rows[0]["batch_size"]
    return ask.basis(rows, model=f"{rows[0]['model']} with {n} workers of {batch} examples")


def _draw(rows: Rows, figure: Figure) -> None:
    whole, early = figure.subplots(1, 2, sharey=True)
    steps, layers = rows[0]["step"], rows[0]["layers"]
    for axes in (whole, early):
        for position, layer in enumerate(layers):
            curve = list(map(statistics.fmean, zip(*(row["layers"][layer] for row in rows), strict=True)))
            label = layer if len(layers) <= FEW else "a layer" if position == 0 else None
            look: Any = drawing.look(position) | {"marker": "", "linewidth": 0.7}
            axes.plot(steps, curve, label=label, alpha=0.8 if len(layers) <= FEW else 0.3, **look)
        for measure, colour, line in (("mean", "#000000", "-"), ("model", "#0072B2", "--")):
            samples = [Sample.of(at) for at in zip(*(_curve(row, measure) for row in rows), strict=True)]
            look = {"color": colour, "marker": "", "linestyle": line, "linewidth": 2}
            drawing.band(axes, steps, samples, position=0, label=MEASURES[measure], **look)
        for i, at in enumerate(_falls(rows[0])):
            label = "learning rate falls to a tenth" if i == 0 else None
            axes.axvline(at, linestyle="--", label=label, **drawing.REFERENCE)
        axes.axhline(parallel(rows[0]["num_workers"]), linestyle=":", label="identical deltas", **drawing.REFERENCE)
    whole.set(xlabel="step", ylabel="‖Adasum‖ / root of Σ‖delta‖²", ylim=(0, 1.02))
    early.set(xlabel="step (logarithmic)", xscale="log")
    drawing.legend_below(figure, whole, columns=4, fontsize=7)


def _during(part: Any, name: str, measure: str) -> Group:
    values = Measure(
        words="the length of Adasum of the workers' deltas over the root of the sum of their squared lengths",
        values=lambda rows: _over_seeds(rows, part, measure),
        digits=3,
    )
    return Group(name, values)


def _layer_of(extreme: int, name: str) -> Group:
    """Returns the layer with the least or the greatest mean in the first run, in the others."""
    values = Measure(
        words="the mean of a layer over the run",
        values=lambda rows: _by_layer(rows[1:])[_extremes(rows[:1])[extreme]],
        digits=3,
    )
    return Group(name, values)


def _parts(scale: Scale) -> list[Compare | Grows]:
    centre = middle(SETTINGS[scale].num_workers)
    found: list[Compare | Grows] = []
    for measure, at in MEASURES.items():
        early, late = _during(_early, "first steps", measure), _during(_late, "last third", measure)
        found += [
            Compare(ours=late, is_="above", theirs=early, paired=True, at=at),
            Compare(ours=early, is_="below", theirs=centre, at=at),
            Compare(ours=late, is_="above", theirs=centre, at=at),
            Grows(
                words=f"it rises over {PARTS} equal parts of the run",
                by_run=functools.partial(_over_seeds, part=_parts_of, measure=measure),
                digits=3,
                at=at,
            ),
        ]
    high, low = _layer_of(1, "the higher of the two layers farthest apart in seed 0"), _layer_of(0, "the lower one")
    return [*found, Compare(ours=high, is_="above", theirs=low, paired=True, at="in the other seeds")]


def _diverged(rows: Rows) -> str:
    values = [value for row in rows for curve in (row["whole"], *row["layers"].values()) for value in curve]
    return "" if all(map(math.isfinite, values)) else "A measure is not finite: a run diverged."


RULE = Rule(
    setting=f"which is 1 / sqrt(n) of n identical deltas and 1 of orthogonal ones; the first steps are {EARLY:.0%} "
    "of the run, and the number that they and the last third are compared with is the middle between the two",
    needs=[Need("a measure is not finite", _diverged)],
    parts=_parts,
    other_scales=("gpu",),
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("7724badf045e",),
    hours={"smoke": 0.02, "laptop": 0.6, "gpu": 0.15},
    runs=_runs,
    reduce=_reduce,
    findings=_findings,
    basis=_basis,
    enough=_enough,
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 4.2),
)
