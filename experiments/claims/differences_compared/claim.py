"""Adam, and Adam damped by the difference of gradients: accuracy at the end on digits and MNIST, each tuned alike."""

import itertools

from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, beside, evaluations_of
from experiments.study.verdict import Verdict, compare, decide_both_ways, untested

ADAM, DAMPED = "adam", ("diffgrad", "dgrad")
MARGINS = {"digits": 1.0, "mnist": 0.2}  # percentage points: the least difference that matters
LEARNED = 90.0  # % of test accuracy that Adam must end at, or there is nothing to be lost
WORKERS, EXAMPLES = 4, 16  # examples of a worker
STEPS = {"smoke": 20, "laptop": 400}


def data_of(scale: Scale) -> list[str]:
    """Returns the names of the data, each once."""
    return list(dict.fromkeys((datasets.STAND_IN, datasets.image_set(scale)["data.name"])))


def _points(scale: Scale) -> list[dict[str, str]]:
    return [{"data": data, "optimizer": name} for data, name in itertools.product(data_of(scale), (ADAM, *DAMPED))]


def _recipe(scale: Scale, *, data: str, optimizer: str, rate: float) -> Run:
    steps = STEPS[scale]
    overrides = {
        "data.name": data,
        "num_workers": WORKERS,
        "batch_size_per_worker": EXAMPLES,
        "optimizer.name": optimizer,
        "optimizer.learning_rate": rate,
        "learning_rate_scaling": "none",
        "ema_decay": None,
        **tuning.steps(steps, evaluate=steps // 2, log=steps // 10),
    }
    return Run(spec="configs/mnist_cnn.py", overrides=overrides)


TUNED = tuning.Tuned(
    points=_points,
    grid=lambda scale, point: (0.001, 0.002) if scale == "smoke" else (0.0005, 0.001, 0.002, 0.004),
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 10},
    tuning_seeds={"laptop": 2},
    first=("data",),
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs, with the accuracy at the end in percent."""
    df = TUNED.frame(rows)
    return df.assign(name=df["optimizer"] + " on " + df["data"])


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, "name", "end")
    tests = []
    for data in data_of(df["scale"].iloc[0]):
        adam = f"{ADAM} on {data}"
        if ends[adam].mean() <= LEARNED:
            return untested(f"{adam} learns little: it ends at {frames.text(ends[adam], 2, '%')}.")
        for name in DAMPED:
            damped = f"{name} on {data}"
            tests.append(compare(ends, damped, "above", adam, -MARGINS[data]))
    return decide_both_ways(tests)


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for data, same in df.groupby("data", sort=False):
        ends = frames.by_seed(same, "optimizer", "end")
        for damped in sorted(DAMPED):
            gained = frames.text(ends[damped] - ends[ADAM], 2, "points")
            found[f"accuracy that {damped} adds to Adam's, {data}"] = gained
    return found


def _draw(df: Frame, figure: Figure) -> None:
    names = {name: [f"{name} on {data}" for data in MARGINS] for name in (ADAM, *DAMPED)}
    figures.dots(figure, df, y="end", by="name", groups=names, xlabel="test accuracy at the end (%)")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model=f"small CNN, {WORKERS} workers",
    hours={"smoke": 0.05, "laptop": 0.5},
    reduce=evaluations_of("step", "epoch", "accuracy"),
    labels=["data", "optimizer"],
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.0),
)
