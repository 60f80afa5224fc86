"""Adasum layer by layer or of the whole model, of all workers or of groups of them: on digits, each tuned."""

from typing import Any

from experiments.study import paper_table
from experiments.study.comparison import Comparison
from experiments.study.findings import Quoted, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Rule,
    ends_above,
)
from experiments.study.run import Rows, Scale

WORKERS, GROUP = 24, 3  # eight groups
MARGIN = 0.5  # percentage points of accuracy, the least difference that matters
LEARNED = 90.0  # % of test accuracy
EPOCHS = {"smoke": 2, "laptop": 60}
LAYER, MODEL, MEANS, TREES, MEAN = "layer", "model", "mean in groups", "adasum in groups", "mean"
_GROUPS: dict[str, Any] = {"reducer.name": "adasum", "reducer.group_size": GROUP}
METHODS: dict[str, dict[str, Any]] = {
    LAYER: {"reducer.name": "adasum"},
    MODEL: {"reducer.name": "adasum", "reducer.granularity": "model"},
    MEANS: {**_GROUPS, "reducer.within": "mean"},
    TREES: {**_GROUPS, "reducer.within": "adasum"},
    MEAN: {"reducer.name": "mean"},
}
PAPER = {
    LAYER: Quoted("used: layers differ in how orthogonal their gradients are", "READ: MindSpore's tutorial"),
    MEANS: Quoted("from 8 nodes up, loss of the benefit insignificant", "READ: Horovod's guide"),
    TREES: Quoted("benefit identical", "READ: Horovod's guide, ring mode"),
}


def _common(scale: Scale) -> dict[str, Any]:
    epochs = EPOCHS[scale]
    every = {f"{key}_every_epochs": epochs / 10 for key in ("log", "eval")}
    sizes = {"num_workers": WORKERS, "batch_size_per_worker": 8}
    return {"data.name": "digits", **sizes, "train_epochs": epochs, "checkpoint_every_epochs": epochs, **every}


COMPARISON = Comparison(
    spec="configs/digits.py",
    methods=METHODS,
    common=_common,
    rates={"smoke": (0.03, 0.1), "laptop": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)},
    model="MLP of the config, 24 workers",
    target={"digits": 0.975},
    picked_by="end",
    seeds={"smoke": 1, "laptop": 20},
    drawn_below=3.0,
)


def _paper_table(rows: Rows) -> Table:
    """Returns what the sources say of each way, which is without numbers, and our accuracies beside it."""
    cells = {
        method: [Cell(PAPER.get(method), str(COMPARISON.accuracy(rows, method)))]
        for method in METHODS
        if COMPARISON.final(rows, method)
    }
    return paper_table.table("Adasum by", ["Test accuracy"], cells)


def _as_layer(name: str) -> Compare:
    return Compare(ours=COMPARISON.group(name), is_="as", theirs=COMPARISON.group(LAYER), by=MARGIN)


def _below_layer(name: str, *, judged: bool) -> Compare:
    return Compare(ours=COMPARISON.group(LAYER), is_="above", theirs=COMPARISON.group(name), judged=judged)


RULE = Rule(
    setting=f"on digits, {COMPARISON.seeds['laptop']} seeds, {WORKERS} workers in eight groups of {GROUP}",
    needs=[ends_above(COMPARISON.group(MEAN), LEARNED)],
    parts=lambda scale: [
        _below_layer(MODEL, judged=True),
        *map(_as_layer, (MEANS, TREES)),
        _below_layer(MEAN, judged=False),
    ],
)


EXPERIMENT = COMPARISON.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("17ca31a27eee",),
    hours={"smoke": 0.06, "laptop": 0.6},
    paper_table=_paper_table,
)
