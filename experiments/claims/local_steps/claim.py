"""Local steps before each communication on a slow network: more epochs, in less time."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.study import datasets, figures, frames
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.tuning import ONE_SEED, Score, Tuned
from experiments.study.verdict import Verdict, bound, decide, holm, untested, welch
from runs.reporting.progress import counted

COUNTS = (1, 16)
SLOW = 1.0  # time of a communication over that of a local step
RATIOS = (0.1, 1 / 3, SLOW, 3.0)
MOST = 6  # % of the data, in one communication


class Setting(NamedTuple):
    """The training at a scale, or on a set of images."""

    model: str
    spec: str
    overrides: Mapping[str, Any]
    num_workers: int
    part: int  # examples of one local step of a worker
    epochs: Sequence[int]  # at most, with each of COUNTS
    target: float  # accuracy
    rates: tuple[float, ...]  # to pick from
    eval_epochs: float


_MLP = {"model.name": "mlp", "model.hidden_sizes": (128,), "schedule.name": "constant"}
_CIFAR = {"model.norm": "group", "schedule.name": "constant"}
_RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
_MNIST_SPEC, _RESNET_SPEC = "configs/mnist_adasum.py", "configs/imagenet_resnet50.py"
SETTINGS = {
    "mnist": Setting("MLP", _MNIST_SPEC, _MLP, 16, 32, (12, 48), 0.97, _RATES, 0.25),
    "digits": Setting("MLP", _MNIST_SPEC, _MLP, 16, 4, (60, 240), 0.96, _RATES, 1.0),
    "cifar10": Setting(
        "ResNet-20 with GroupNorm",
        f"{_RESNET_SPEC}:laptop",
        _CIFAR,
        num_workers=16,
        part=8,
        epochs=(30, 30),
        target=0.8,
        rates=(0.003, 0.01, 0.03),
        eval_epochs=0.5,
    ),
    "imagenet2012": Setting("ResNet-50", f"{_RESNET_SPEC}:64k", {}, 64, 64, (93, 93), 0.749, (0.05, 0.1, 0.2), 1.0),
}
DATA = {"gpu": "cifar10", "paper": "imagenet2012"}


def _setting(scale: Scale) -> tuple[str, Setting]:
    data = DATA.get(scale) or datasets.image_set(scale)["data.name"]
    found = SETTINGS[data]
    if scale == "smoke":
        found = found._replace(rates=found.rates[1:3], epochs=(4, 4), target=0.3)
    return data, found


def _recipe(scale: Scale, *, count: int, rate: float) -> Run:
    data, setting = _setting(scale)
    epochs = setting.epochs[COUNTS.index(count)]
    overrides = {
        **setting.overrides,
        "data.name": data,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": setting.part * count,
        "accumulation.name": "local_steps",
        "accumulation.count": count,
        "optimizer.learning_rate": rate,
        "train_epochs": epochs,
        "log_every_epochs": setting.eval_epochs,
        "eval_every_epochs": setting.eval_epochs,
        "checkpoint_every_epochs": epochs,
    }
    labels = {"num_workers": setting.num_workers, "part": setting.part, "target": setting.target}
    return Run(labels=labels, spec=setting.spec, overrides=overrides)


TUNED = Tuned(
    points=lambda scale: [{"count": count} for count in COUNTS],
    grid=lambda scale, point: _setting(scale)[1].rates,
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3, "gpu": 4, "paper": 1},
    score=Score(target=lambda tried: tried[0]["target"]),
    tuning_seeds=ONE_SEED,
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs, with their way to the target: epochs, communications, and modelled times.

    Times are in those of a local step: all workers compute at once, then all communicate.
    """
    df = TUNED.frame(rows)
    steps = frames.until(df, df["target"], along="step")
    share = frames.last(df, "epoch") / frames.last(df, "step")
    return df.assign(
        name=[counted(count, "local step") for count in df["count"]],
        local_steps=df["count"],
        batch=df["count"] * df["part"] * df["num_workers"],
        epochs=frames.until(df, df["target"], along="epoch"),
        steps=steps,
        share=share,  # of the data, in one communication
        epoch_time=(df["count"] + SLOW) / share,
        **{_time(ratio): steps * (df["count"] + ratio) for ratio in RATIOS},
    )


def _time(ratio: float) -> str:
    return f"time, communication / local step = {ratio:.2g}"


def break_even(few: float, many: float, *, count: int) -> float:
    """Returns the ratio of communication to computation at which ``few`` epochs of 1 and ``many`` of ``count`` tie."""
    return max(0.0, (many - few) / (few - many / count)) if few > many / count else math.inf


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    one, many = COUNTS
    share = frames.groups(df, "count", "share")
    epochs = frames.groups(df, "count", "epochs")
    times = frames.groups(df, "count", _time(SLOW))
    taken = 100 * share[many].mean(skipna=False)
    if not taken <= MOST:
        words = f"A communication with {many} local steps takes {taken:.0f} % of the data"
        return untested(f"{words}, the paper's about 5 %.")
    if not np.isfinite(epochs[one]).all():
        return untested("A run of 1 local step does not reach the target.")
    ours = counted(many, "local step")
    single = counted(one, "local step")
    sooner = welch(ours, times[many], "below", single, times[one], at="in time", unit="local steps", digits=0)
    longer = welch(ours, epochs[many], "above", single, epochs[one], at="in epochs")
    reached = np.isfinite(epochs[many]).mean()
    words = f"the share of the runs with {many} local steps that reach the target"
    return decide(holm(sooner, longer), bound(words, reached, least=1))


def _facts(df: Frame) -> Facts:
    mean = df.groupby("count")[["epochs", "share"]].mean()
    if not np.isfinite(mean["epochs"]).all():
        return {}
    one, many = COUNTS
    tie = break_even(mean["epochs"][one], mean["epochs"][many], count=many)
    faster = "communication over computation of a local step above which local steps are faster"
    share = f"share of the data in one communication, local steps: {many}"
    return {
        faster: (f"{tie:.2f}", "0.33 is where it ran [DERIVED from MEM-lo values: 2.58 and 1.98 minutes an epoch]"),
        share: (f"{mean['share'][many]:.1%}", "about 5% [DERIVED from MEM-lo: 64K of ImageNet's 1.28 million]"),
    }


def _draw(df: Frame, figure: Figure) -> None:
    along, times = figure.subplots(1, 2)
    target = 100 * df["target"].iloc[0]
    ratios = 0.03 * 1.25 ** np.arange(35)
    figures.curves(along, df, along="epoch", of="accuracy", by="name", factor=100, ylim=(target - 4, None))
    along.set(xlabel="epoch", ylabel="test accuracy (%)")
    figures.line(along, target, "target", linestyle="--")
    for position, (name, same) in enumerate(df.groupby("name", sort=False)):
        if np.isfinite(same["steps"]).all():
            ys = [(same["steps"] * (same["count"] + ratio)).to_numpy() for ratio in ratios]
            figures.band(times, ratios, ys, position=position, label=name, marker="")
    figures.line(times, SLOW, "the rule's", across=False, linestyle="--")
    times.set(xlabel="communication / local step", ylabel="time to the target (local steps)")
    figures.finish(along, xscale="log")
    figures.finish(times, xscale="log", yscale="log")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model=lambda df: SETTINGS[df["data"].iloc[0]].model,
    labels=["local_steps"],
    values={
        "effective batch": Value("batch", 0, is_fixed=True),
        "epochs to the target": Value("epochs"),
        "time of an epoch": Value("epoch_time", 0),
        **{_time(ratio): Value(_time(ratio), 0) for ratio in RATIOS},
    },
    paper={
        COUNTS[0]: "batch 4K; 68 epochs of 2.58 min, 175 min in all [MEM-lo]",
        COUNTS[1]: "batch 64K; 84 epochs of 1.98 min, 166 min in all [MEM-lo]",
    },
    facts=_facts,
    hours={"smoke": 0.02, "laptop": 1.1, "gpu": 0.45, "paper": 160.0},
    reduce=evaluations_of("step", "epoch", "accuracy"),
    draw=_draw,
    inches=(7.0, 3.2),
)
