"""An adaptive step, an adaptive batch, and both, beside SGD: the loss at equal examples, each at its own rate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Figure, Frame, Rows, Run, Scale, Value, beside, evaluations
from experiments.study.verdict import Verdict, decide_both_ways, untested, welch

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
MARK = "[READ: abstract, arXiv 2402.05264]"
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


TASKS = {
    "softmax on digits": Task("digits", "softmax", 900, ((0.2, 0.4, 0.8), (2.0, 4.0, 8.0))),
    "softmax on MNIST": Task("mnist", "softmax", 3000, ((0.02, 0.04, 0.08), (0.5, 1.0, 2.0))),
    "CNN on digits": Task("digits", "mnist_cnn", 300, ((0.05, 0.1, 0.2), (0.25, 0.5, 1.0))),
}


def _tasks(scale: Scale) -> list[str]:
    """Returns the tasks of a scale: all, or those on digits alone if digits replace MNIST, as at smoke scale."""
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
    return Run(spec="configs/adabatchgrad.py", overrides=overrides)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations; if the batch does not change, there are as many updates as steps."""
    found = evaluations(records)
    found.setdefault("updates", found["step"])
    keys = ("step", "epoch", "loss", "accuracy", "examples", "updates", "batch_examples")
    return {key: found[key] for key in keys if key in found}


TUNED = tuning.Tuned(
    points=lambda scale: [{"task": task, "method": method} for task in _tasks(scale) for method in METHODS],
    grid=lambda scale, point: TASKS[point["task"]].rates[point["method"] in (STEP, BOTH)],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5},
    score=tuning.Score(of="loss", mode="min", digits=4),
    first=("data",),
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with loss, accuracy, number of updates and batch at the end."""
    df = TUNED.frame(rows, "batch_examples")
    return df.assign(
        nats=frames.last(df, "loss"),
        num_updates=frames.last(df, "updates"),
        batch=frames.last(df, "batch_examples").fillna(32),  # of runs whose batch stays
        thousands=[np.array(examples) / 1000 for examples in df["examples"]],
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    nats = frames.groups(df, ["task", "method"], "nats")
    if not np.isfinite(df["nats"]).all():
        return untested("A value is not finite in a run of any method.")
    tests = []
    for task in _tasks(df["scale"].iloc[0]):
        sgd, step, both = (nats[task, method] for method in (SGD, STEP, BOTH))
        if not sgd.mean() < TASKS[task].chance / 2:
            return untested(f"SGD learns little: {task} ends at {frames.text(sgd, 4, 'nats')}.")
        tests += [
            welch(STEP, step, "below", SGD, sgd, unit="nats", digits=4, at=task),
            welch(BOTH, both, "below", STEP, step, unit="nats", digits=4, at=task),
        ]
    return decide_both_ways(tests)


def _draw(df: Frame, figure: Figure) -> None:
    tasks = list(df.groupby("task", sort=False))
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, (task, same) in zip(panels, tasks, strict=True):
        figures.curves(axes, same, along="thousands", of="loss", by="method", order=[*METHODS], name=figures.with_rate)
        axes.set(xlabel="thousands of examples", title=task)
        means = np.concatenate([curve.get_ydata() for curve in axes.lines])
        if means.max() > WIDE * means.min():
            figures.finish(axes, yscale="log")
    panels[0].set_ylabel("loss on the test split (nats)")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model="softmax regression and a small CNN",
    labels=["task", "method"],
    values={
        **tuning.LEARNING_RATE,
        "test loss at the end": Value("nats", 4),
        "test accuracy": Value("end", 2, "%"),
        "updates": Value("num_updates", 0, is_fixed=True),
        "batch at the end": Value("batch", 0, is_fixed=True),
    },
    paper={
        **{(task, STEP): f"improves on SGD {MARK}" for task in TASKS},
        **{(task, BOTH): f"improves on it further {MARK}" for task in TASKS},
    },
    hours={"smoke": 0.05, "laptop": 0.6},
    reduce=_reduce,
    draw=_draw,
    inches=(9.5, 3.4),
)
