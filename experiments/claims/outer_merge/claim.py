"""DiLoCo with three merges of the workers' progress: how long their results are, and the loss at equal examples."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, tuning
from experiments.study import rows as ask
from experiments.study.findings import Finding, Sample, Table
from experiments.study.prose import beside
from experiments.study.rule import (
    LOSS,
    Compare,
    Group,
    Need,
    Rule,
    all_finite,
)
from experiments.study.run import Row, Rows, Run, Scale, evaluations_of
from experiments.study.tuning import ONE_SEED, Score, Tuned

EVERY = 10  # H
ALL, QUORUM = "all", "quorum"
MEAN, ADASUM, RADIAL = "mean", "adasum", "radial_directional"
MERGES = (MEAN, ADASUM, RADIAL)
POWERS: Mapping[str, float] = {MEAN: -0.5, ADASUM: 0.5, RADIAL: 0.0}  # of M, by the formula for orthogonal updates
WORKERS: Mapping[Scale, tuple[int, ...]] = {"smoke": (2, 4), "laptop": (2, 4, 8, 16)}
STEPS: Mapping[Scale, int] = {"smoke": 40, "laptop": 400}
MARGIN = 0.1  # of the mean's loss: differences up to it count as none
NEAR = 0.2  # share of the formula by which a length may differ from it
LEARNED = 0.5  # nats that the mean must end below
BASE = (0.1, 0.2, 0.4)  # outer rates of the mean; others are as much lower as their results are longer by the formula


def required(workers: int) -> int:
    """Returns how many workers a quorum of three quarters has.

    >>> [required(workers) for workers in (2, 4, 8, 16)]
    [2, 3, 6, 12]
    """
    return math.ceil(0.75 * workers)


def formula(merge: str, num: int) -> float:
    """Returns the length of a merge of orthogonal updates of length 1.

    >>> [formula(merge, 4) for merge in MERGES]
    [0.5, 2.0, 1.0]
    """
    return num ** POWERS[merge]


def _points(scale: Scale) -> list[dict[str, Any]]:
    return [
        {"workers": workers, "present": present, "merge": merge}
        for workers in WORKERS[scale]
        for present in (ALL, QUORUM)
        if present == ALL or required(workers) < workers
        for merge in MERGES
    ]


def _grid(scale: Scale, point: Mapping[str, Any]) -> list[float]:
    del scale
    shorter = formula(MEAN, point["workers"]) / formula(point["merge"], point["workers"])
    return [float(f"{rate * shorter:.3g}") for rate in BASE]


def _recipe(scale: Scale, *, workers: int, present: str, merge: str, rate: float) -> Run:
    data, steps = datasets.image_set(scale), STEPS[scale]
    rule: dict[str, Any] = {"name": merge} if merge == MEAN else {"name": merge, "telemetry": "on"}
    if present == QUORUM:
        rule = {"name": "quorum", "num_required": required(workers), "combine": rule}
    overrides = {
        **data,
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.name": "adamw",
        "optimizer.learning_rate": 2e-3,
        "learning_rate_scaling": "none",
        "reducer_on": "updates",
        "reducer.name": "local_sgd",
        "reducer.every_steps": EVERY,
        "reducer.combine": rule,
        "outer.name": "sgd",
        "outer.momentum": 0.9,
        "outer.nesterov": True,
        "outer.learning_rate": rate,
        "arrivals.name": "lognormal",
        "num_workers": workers,
        "batch_size_per_worker": 8,
        **tuning.steps(steps, evaluate=steps // 4, log=EVERY),
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist.py", overrides=overrides)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations and, of merges that measure it, their mean length and that of the mean of all.

    Lengths are in units of R, the root of the mean squared length of the updates that a round merges.
    """
    measured = [record for record in records if record["kind"] == "train" and "orthogonality" in record]
    found = evaluations_of("step", "epoch", "simulated_seconds", "loss", "accuracy")(records)
    if not measured:
        return found
    lengths = [record["orthogonality"] * math.sqrt(record["contributors"]) for record in measured]
    means = [length / record["gain"] for length, record in zip(lengths, measured, strict=True)]
    cosines = [record["cosine"] for record in measured]
    of = {"length": lengths, "length_of_mean": means, "cosine": cosines}
    return found | {key: statistics.fmean(values) for key, values in of.items()}


TUNED = Tuned(
    points=_points,
    grid=_grid,
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5},
    score=Score(of="loss", mode="min", digits=4, factor=1.0),
    tuning_seeds=ONE_SEED,
    tuned_at=lambda scale, point: {**point, "present": ALL},
    first=("data",),
)
Cell = tuple[int, str]  # workers, who is present


def _cells(rows: Rows) -> dict[Cell, dict[str, list[Row]]]:
    """Returns the reported rows of each merge, where all merges have some."""
    found: dict[Cell, dict[str, list[Row]]] = {}
    for (workers, present, merge), same in TUNED.reported(rows).items():
        found.setdefault((workers, present), {})[merge] = same
    return {cell: merges for cell, merges in found.items() if len(merges) == len(MERGES)}


def _where(cell: Cell) -> str:
    workers, present = cell
    return f"M = {workers}" if present == ALL else f"{required(workers)} of {workers}"


def _losses(rows: Rows) -> list[float]:
    return [ask.last(row, "loss") for row in rows]


def _loss(rows: Rows) -> Sample:
    return ask.final(rows, "loss", digits=4)


def _lengths(merges: Mapping[str, Rows], of: str) -> Sample:
    """Returns the measured lengths of a merge's results; the mean's are those along the runs of another merge."""
    key, merge = ("length_of_mean", RADIAL) if of == MEAN else ("length", of)
    return Sample.of([row[key] for row in merges[merge]], digits=2)


def _length_in_words(cell: Cell, merges: Mapping[str, Rows], merge: str) -> str:
    workers, present = cell
    num = workers if present == ALL else required(workers)
    return f"{formula(merge, num):.2f} / {_lengths(merges, merge)}"


def _paper_table(rows: Rows) -> Table:
    """Returns the lengths by the formula for orthogonal updates, and as they were measured."""
    cells = [
        [_where(cell), *(_length_in_words(cell, merges, merge) for merge in MERGES)]
        for cell, merges in _cells(rows).items()
    ]
    note = (
        "In units of R, the root of the mean squared length of a round's updates; means over the rounds of a run. "
        f"Those of {MEAN} are measured along the runs of {RADIAL}."
    )
    return Table(["Workers", *(f"|{merge}| / R: formula / measured" for merge in MERGES)], cells, note)


def _findings(rows: Rows) -> list[Finding]:
    return [
        Finding(
            f"mean cosine between two workers' outer updates, {_where(cell)}",
            ours=Sample.of([row["cosine"] for row in merges[RADIAL]], digits=2),
        )
        for cell, merges in _cells(rows).items()
    ] or [Finding("cells of which all merges are reported", ours="none")]


def _table(rows: Rows) -> Table:
    cells = [
        [
            _where(cell),
            merge,
            f"{merges[merge][0]['rate']:g}",
            str(_loss(merges[merge])),
            str(ask.accuracy(merges[merge])),
        ]
        for cell, merges in _cells(rows).items()
        for merge in MERGES
    ]
    return Table(["Workers", "Merge", "Outer rate", "Test loss at the end", "Test accuracy"], cells)


def _draw(rows: Rows, figure: Figure) -> None:
    panels, cells = figure.subplots(1, 2), _cells(rows)
    present = {cell: merges for cell, merges in cells.items() if cell[1] == ALL}
    sizes = [workers for workers, _ in present]
    for position, merge in enumerate(MERGES):
        if present:
            colour = drawing.look(position)["color"]
            drawing.band(
                panels[0],
                sizes,
                [_lengths(merges, merge) for merges in present.values()],
                position=position,
                label=merge,
            )
            panels[0].plot(sizes, [formula(merge, num) for num in sizes], ":", color=colour)
        for who, marker, dodge in ((ALL, "o", 0.0), (QUORUM, "x", 0.07)):
            for (workers, there), merges in cells.items():
                if there == who:
                    losses = _losses(merges[merge])
                    place = workers * 2 ** (0.16 * (position - 1) + dodge)
                    looks: dict[str, Any] = {"color": drawing.look(position)["color"], "markersize": 4, "alpha": 0.6}
                    panels[1].plot([place] * len(losses), losses, marker, **looks)
    for axes in panels:
        axes.set(xlabel="workers M", xscale="log")
        drawing.ticks(axes, {num: str(num) for num in sizes})
    panels[0].set(ylabel="length of the result / R", yscale="log", title="dotted: by the formula")
    drawing.plain_numbers(panels[0].yaxis)
    panels[1].set(ylabel="test loss at the end (nats)", title="crosses: a quorum of 3/4")
    if panels[0].lines:
        panels[0].legend(fontsize=7)


def _merged(workers: int, present: str, merge: str) -> Group:
    return TUNED.group(merge, LOSS, workers=workers, present=present, merge=merge)


def _learns_little(rows: Rows) -> str:
    worst = max(statistics.fmean(_losses(merges[MEAN])) for merges in _cells(rows).values())
    return "" if worst < LEARNED else f"The mean learns little: it ends at {worst:.4f} nats."


RULE = Rule(
    setting=f"of MNIST after {STEPS['laptop']} steps of 8 examples a worker, so at equal examples for the same M, "
    f"{TUNED.seeds['laptop']} seeds",
    needs=[
        all_finite(TUNED.group("any merge", LOSS)),
        Need(f"the mean ends at {LEARNED:g} nats or more", _learns_little),
    ],
    parts=lambda scale: [
        Compare(
            ours=_merged(workers, present, merge),
            is_="as",
            theirs=_merged(workers, present, MEAN),
            by=MARGIN,
            share=True,
            at=_where((workers, present)),
            refuted="beyond",
        )
        for workers, present in dict.fromkeys((point["workers"], point["present"]) for point in _points(scale))
        for merge in MERGES
        if merge != MEAN
    ],
    listed=False,
    remark="Lengths are shown beside the formula for orthogonal updates of equal length, and not judged, since "
    "trials had shown some of them.",
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("1a2e539fa90e",),
    model="MLP of 64 hidden units",
    hours={"smoke": 0.05, "laptop": 0.6},
    reduce=_reduce,
    findings=_findings,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.5, 3.6),
)
