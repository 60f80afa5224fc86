"""Adam, and Adam damped by the difference of gradients: accuracy at the end on digits and MNIST, each tuned alike."""

import itertools
from collections.abc import Mapping
from typing import Any

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, tuning
from experiments.study import rows as ask
from experiments.study.findings import Finding, Sample
from experiments.study.prose import beside
from experiments.study.rule import ACCURACY, Compare, Group, Need, Rule
from experiments.study.run import Rows, Run, Scale, evaluations_of, scale_of
from experiments.study.tuning import Tuned

ADAM, DAMPED = "adam", ("diffgrad", "dgrad")
MARGINS = {"digits": 1.0, "mnist": 0.2}  # percentage points: the least difference that matters
LEARNED = 90.0  # % of test accuracy that Adam must end at, or there is nothing to be lost
WORKERS, EXAMPLES = 4, 16  # examples of a worker
STEPS: Mapping[Scale, int] = {"smoke": 20, "laptop": 400}


def _data(scale: Scale) -> list[str]:
    """Returns the names of the data, each once."""
    return list(dict.fromkeys((datasets.STAND_IN, datasets.image_set(scale)["data.name"])))


def _points(scale: Scale) -> list[dict[str, str]]:
    return [{"data": data, "optimizer": name} for data, name in itertools.product(_data(scale), (ADAM, *DAMPED))]


def _recipe(scale: Scale, *, data: str, optimizer: str, rate: float) -> Run:
    steps = STEPS[scale]
    overrides: dict[str, Any] = {
        "data.name": data,
        "num_workers": WORKERS,
        "batch_size_per_worker": EXAMPLES,
        "optimizer.name": optimizer,
        "optimizer.learning_rate": rate,
        "learning_rate_scaling": "none",
        "ema_decay": None,
        **tuning.steps(steps, evaluate=steps // 2, log=steps // 10),
    }
    return Run(labels={"data": data}, spec="configs/mnist_cnn.py", overrides=overrides)


TUNED = Tuned(
    points=_points,
    grid=lambda scale, point: (0.001, 0.002) if scale == "smoke" else (0.0005, 0.001, 0.002, 0.004),
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 10},
    tuning_seeds={"laptop": 2},
    first=("data",),
)


def _group(data: str, optimizer: str) -> Group:
    return TUNED.group(f"{optimizer} on {data}", ACCURACY, data=data, optimizer=optimizer)


def _compared(scale: Scale) -> list[Compare]:
    """Returns the tests that damped optimizers are no worse, all with the same seeds."""
    return [
        Compare(
            ours=_group(data, damped), is_="above", theirs=_group(data, ADAM), by=-MARGINS[data], refuted="reversed"
        )
        for data, damped in itertools.product(_data(scale), DAMPED)
    ]


def _learnt_little(rows: Rows) -> str:
    """Returns a sentence if Adam learns little on a set, so that nothing could be lost; else ""."""
    for data in _data(scale_of(rows)):
        if (group := _group(data, ADAM)).mean(rows) <= LEARNED:
            return f"{group.name} learns little: it ends at {group.sample(rows)}."
    return ""


def _gained(rows: Rows, data: str, damped: str) -> list[float]:
    """Returns what a damped optimizer gains over Adam, of the seeds that both have, in percentage points."""
    theirs, ours = (
        {row["seed"]: value for row, value in zip(found, ask.accuracies(found), strict=True)}
        for found in (TUNED.tests(rows, data=data, optimizer=name) for name in (ADAM, damped))
    )
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def _findings(rows: Rows) -> list[Finding]:
    found = TUNED.reported(rows)
    return [
        Finding(f"accuracy that {damped} adds to Adam's, {data}", ours=Sample.of(gained, digits=2, unit="points"))
        for data, damped in found
        if damped != ADAM and (data, ADAM) in found and (gained := _gained(rows, data, damped))
    ]


def _draw(rows: Rows, figure: Figure) -> None:
    """Draws the accuracy of each seed at the end, a panel for each set of data."""
    found = TUNED.reported(rows)
    data = list(dict.fromkeys(name for name, _ in found))
    for axes, name in zip(figure.subplots(1, max(1, len(data)), squeeze=False).flat, data, strict=False):
        names = [optimizer for of, optimizer in found if of == name]
        for place, optimizer in enumerate(names):
            ends = ask.accuracies(found[name, optimizer])
            axes.plot([place] * len(ends), ends, "o", color=drawing.COLOURS[place], alpha=0.6, markeredgewidth=0)
            axes.plot([place], [sum(ends) / len(ends)], "_", color=drawing.COLOURS[place], markersize=24)
        axes.set_xticks(range(len(names)), names)
        axes.set(title=name, ylabel="test accuracy at the end (%)")
        axes.margins(x=0.3)


RULE = Rule(
    setting=f"with configs/mnist_cnn.py, {TUNED.seeds['laptop']} seeds, {WORKERS} workers x {EXAMPLES} examples",
    needs=[Need(f"Adam does not end above {LEARNED:g} % on each set", _learnt_little)],
    parts=_compared,
)


EXPERIMENT = TUNED.experiment(
    model=f"small CNN, {WORKERS} workers",
    columns={"Test accuracy at the end": ask.accuracy},
    prose=beside(__file__),
    rule=RULE,
    hours={"smoke": 0.05, "laptop": 0.5},
    reduce=evaluations_of("step", "epoch", "accuracy"),
    findings=_findings,
    draw=_draw,
    inches=(7.0, 3.4),
)
