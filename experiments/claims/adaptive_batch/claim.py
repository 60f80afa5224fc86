"""An adaptive step, an adaptive batch, and both, beside SGD: the loss at equal examples, each at its own rate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table, tuning
from experiments.study import rows as ask
from experiments.study.findings import Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    LOSS,
    Compare,
    Group,
    Need,
    Rule,
    all_finite,
)
from experiments.study.run import Rows, Run, Scale, evaluations, scale_of
from experiments.study.tuning import Score, Tuned

SGD, STEP, BATCH, BOTH = "SGD", "adaptive step", "adaptive batch", "both"
THETA = 0.5
_SGD = {"optimizer.name": "sgd", "optimizer.momentum": None}
_GROWS = {"reducer.rule": {"name": "inner_product_test", "theta": THETA, "nu": 5.84}}
METHODS: Mapping[str, Mapping[str, Any]] = {
    SGD: {**_SGD, "reducer.name": "mean"},
    STEP: {"reducer.name": "mean"},
    BATCH: {**_SGD, **_GROWS},
    BOTH: _GROWS,
}
CHAIN = ((STEP, SGD), (BOTH, STEP))  # each better than the other, in the claim
MARK = "READ: abstract, arXiv 2402.05264"
WIDE = 5.0  # ratio of losses from which on a figure's axis is logarithmic


class Task(NamedTuple):
    """Data, a model, and how long it is trained.

    Attributes:
      data: name of the data.
      model: name of the model.
      steps: of 32 examples.
      rates: learning rates that are tried at first, of SGD and of AdaGrad with one norm.
      chance: loss of guessing, which SGD must halve.
    """

    data: str
    model: str
    steps: int
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    chance: float = math.log(10)


TASKS: Mapping[str, Task] = {
    "softmax on digits": Task("digits", "softmax", 900, ((0.2, 0.4, 0.8), (2.0, 4.0, 8.0))),
    "softmax on MNIST": Task("mnist", "softmax", 3000, ((0.02, 0.04, 0.08), (0.5, 1.0, 2.0))),
    "CNN on digits": Task("digits", "mnist_cnn", 300, ((0.05, 0.1, 0.2), (0.25, 0.5, 1.0))),
}


def _tasks(scale: Scale) -> list[str]:
    """Returns the tasks of a scale: all, or those on digits where these stand in for MNIST, as at smoke scale."""
    images = datasets.image_set(scale)["data.name"]
    return [name for name, task in TASKS.items() if task.data in (images, datasets.STAND_IN)]


def _recipe(scale: Scale, *, task: str, method: str, rate: float) -> Run:
    found = TASKS[task]
    steps = 40 if scale == "smoke" else found.steps
    overrides = {
        "data.name": found.data,
        "model.name": found.model,
        **METHODS[method],
        "optimizer.learning_rate": rate,
        **tuning.steps(steps, evaluate=steps // 10, log=steps // 10),
    }
    return Run(labels={"data": found.data}, spec="configs/adabatchgrad.py", overrides=overrides)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations; a run whose batch stays has as many updates as steps."""
    found = evaluations(records)
    kept = {key: found[key] for key in ("step", "epoch", "loss", "accuracy", "examples")}
    grown = {key: found[key] for key in ("updates", "batch_examples") if found.get(key)}
    return {**kept, **({"updates": found["step"]} | grown)}


TUNED = Tuned(
    points=lambda scale: [{"task": task, "method": method} for task in _tasks(scale) for method in METHODS],
    grid=lambda scale, point: TASKS[point["task"]].rates[point["method"] in (STEP, BOTH)],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5},
    score=Score(of="loss", mode="min", digits=4, factor=1.0),
    first=("data",),
)


def _loss(rows: Rows) -> Sample:
    return ask.final(rows, "loss", digits=4)


def _paper_table(rows: Rows) -> Table:
    cells = TUNED.reported(rows)
    tasks = [task for task in TASKS if all((task, method) in cells for method in METHODS)]
    quoted = {STEP: Quoted("improves on SGD", MARK), BOTH: Quoted("improves on it further", MARK)}
    found = {
        method: [Cell(quoted.get(method), _loss(cells[task, method])) for task in tasks] for method in METHODS if tasks
    }
    return paper_table.table("Method", [f"loss, {task}" for task in tasks], found) if found else Table((), ())


def _updates(rows: Rows) -> Sample:
    return Sample.of([ask.last(row, "updates") for row in rows], digits=0)


def _batch(rows: Rows) -> Sample | str:
    grown = [ask.last(row, "batch_examples") for row in rows if "batch_examples" in row]
    return Sample.of(grown, digits=0) if grown else "32"


def _draw(rows: Rows, figure: Figure) -> None:
    cells = TUNED.reported(rows)
    tasks = [task for task in TASKS if any(key[0] == task for key in cells)] or list(TASKS)[:1]
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        means: list[float] = []
        for position, method in enumerate(METHODS):
            if same := cells.get((task, method)):
                samples, thousands = ask.curve(same, "loss"), [count / 1000 for count in same[0]["examples"]]
                drawing.band(axes, thousands, samples, position=position, label=f"{method}, rate {same[0]['rate']:g}")
                means += [sample.mean for sample in samples]
        axes.set(xlabel="thousands of examples", title=task)
        if means and max(means) > WIDE * min(means):
            axes.set_yscale("log")
            drawing.plain_numbers(axes.yaxis)
        if axes.lines:
            axes.legend(fontsize=6)
    panels[0].set_ylabel("loss on the test split (nats)")


def _on(task: str, method: str) -> Group:
    return TUNED.group(method, LOSS, task=task, method=method)


def _learns_little(rows: Rows) -> str:
    for task in _tasks(scale_of(rows)):
        if not _on(task, SGD).mean(rows) < TASKS[task].chance / 2:
            return f"{SGD} learns little: {task} ends at {_on(task, SGD).sample(rows)}."
    return ""


RULE = Rule(
    setting=f"at equal examples, the last step, {TUNED.seeds['laptop']} seeds",
    needs=[
        all_finite(TUNED.group("any method", LOSS)),
        Need("SGD's mean loss in a task is not below half of that of guessing, ln 10", _learns_little),
    ],
    parts=lambda scale: [
        Compare(ours=_on(task, better), is_="below", theirs=_on(task, than), at=task, refuted="reversed")
        for task in _tasks(scale)
        for better, than in CHAIN
    ],
    remark="The adaptive batch without the adaptive step is shown and not judged.",
)
COLUMNS: Mapping[str, Any] = {
    "Test loss at the end": _loss,
    "Test accuracy": ask.accuracy,
    "Updates": _updates,
    "Batch at the end": _batch,
}


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("571a7a821c65",),
    model="softmax regression and a small CNN",
    columns=COLUMNS,
    hours={"smoke": 0.05, "laptop": 0.6},
    reduce=_reduce,
    paper_table=_paper_table,
    draw=_draw,
    inches=(9.5, 3.4),
)
