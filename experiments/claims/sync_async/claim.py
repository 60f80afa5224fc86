"""Synchronous SGD with backup workers against asynchronous SGD: accuracy, and time and epochs to a target."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.plots import drawing
from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, decide, holm, untested, welch

MODES = ("synchronous", "asynchronous")
SPECS = {"synchronous": "configs/mnist_backup_53.py", "asynchronous": "configs/mnist_async_53.py"}
DECAYS = 48  # of the learning rate, by 0.94
TARGETS = {"digits": 0.8, "mnist": 0.94, "cifar10": 0.7}  # accuracies
# Workers -> by how much the synchronous run was at its better accuracy sooner than the asynchronous one.
SOONER = {53: "later [MEM lo-med]", 106: "about 6 h [MEM lo-med]", 212: "about 18 h [MEM lo-med]"}
GAP = "0.5 to 0.9, wider with more workers [MEM med]"  # in points


class Setting(NamedTuple):
    """The training at a scale.

    Attributes:
      overrides: of the config: the model, and data if they are not images of any scale.
      backups: number of workers -> how many of them are backups.
      epochs: length of a run.
      evaluations: number of evaluations in a run.
    """

    overrides: Mapping[str, Any]
    backups: Mapping[int, int]
    epochs: int
    evaluations: int


# Rates that are tried: of one worker where synchronous, of 53 where asynchronous.
RATES = {"synchronous": (0.002, 0.004, 0.008), "asynchronous": (0.02, 0.04, 0.08)}
STAND_IN_EPOCHS = 200  # on digits, an epoch is an update of 50 workers
_LAPTOP = Setting({"model.name": "mlp"}, {53: 3, 106: 6, 212: 12}, epochs=16, evaluations=32)
_RESNET = {**datasets.RESNET, "batch_size_per_worker": 16}
SETTINGS = {
    "smoke": _LAPTOP._replace(backups={5: 1, 10: 2}, epochs=2, evaluations=2),
    "laptop": _LAPTOP,
    "gpu": Setting(_RESNET, {53: 3, 106: 6}, epochs=12, evaluations=24),
}


def _recipe(scale: Scale, *, mode: str, num_workers: int, rate: float) -> Run:
    setting = SETTINGS[scale]
    data = {**datasets.image_set(scale), **setting.overrides}["data.name"]
    epochs = STAND_IN_EPOCHS if (scale, data) == ("laptop", datasets.STAND_IN) else setting.epochs
    if mode == "synchronous":
        own = {"optimizer.learning_rate": rate, "reducer.num_required": num_workers - setting.backups[num_workers]}
    else:  # a rate for 53 workers; a gradient misses as many updates as there are other workers
        own = {"optimizer.learning_rate": rate * 53 / num_workers}
    checkpoint = epochs / 4 if scale == "gpu" else None  # a run that is stopped goes on from there
    overrides = {
        "data.name": data,
        **setting.overrides,
        "num_workers": num_workers,
        **own,
        "schedule.name": "staircase",
        "schedule.decay_factor": 0.94,
        "schedule.every_epochs": epochs / DECAYS,
        "ema_decay": 0.9999,
        **tuning.epochs(epochs, evaluate=epochs / setting.evaluations, log=epochs / 4, checkpoint=checkpoint),
    }
    cost = 1.0 if mode == "synchronous" else 1.3
    return Run(spec=SPECS[mode], overrides=overrides, cost=cost)


TUNED = tuning.Tuned(
    points=lambda scale: [{"mode": mode, "num_workers": n} for n in SETTINGS[scale].backups for mode in MODES],
    grid=lambda scale, point: RATES[point["mode"]][: 2 if scale == "smoke" else None],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5, "gpu": 3},
    first_seeds={"laptop": 5},
    tuning_seeds={"gpu": 1},
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs: accuracy at the end in percent, and the way to the target."""
    df = TUNED.frame(rows)
    target = df["data"].map(TARGETS)
    seconds = frames.until(df, target, along="simulated_seconds")
    return df.assign(
        end=100 * frames.last(df, "accuracy"),
        seconds=seconds,
        capped=np.fmin(seconds, frames.last(df, "simulated_seconds")),  # as if it were at the target at its end
        epochs=frames.until(df, target, along="epoch"),
    )


def _gap(df: Frame, num_workers: int, of: str) -> pd.Series:
    """Returns a quantity of the synchronous run less that of the asynchronous one, for each seed that has both."""
    same = df[df["num_workers"] == num_workers].set_index("seed")
    ours, theirs = (same.loc[same["mode"] == mode, of] for mode in MODES)
    seeds = ours.index.intersection(theirs.index)
    return ours[seeds] - theirs[seeds]


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    few, *many = SETTINGS[df["scale"].iloc[0]].backups
    end, seconds, capped = (frames.groups(df, ["mode", "num_workers"], key) for key in ("end", "seconds", "capped"))
    tests = []
    for n in many:
        if not np.isfinite(seconds["synchronous", n]).all():
            return untested(f"Not all synchronous runs with {n} workers have reached the target.")
        (ours, theirs), at = MODES, f"{n} workers"
        tests += [
            welch(ours, end[ours, n], "above", f"{theirs} in accuracy", end[theirs, n], unit="points", at=at),
            welch(ours, capped[ours, n], "below", f"{theirs} in time", capped[theirs, n], unit="s", digits=0, at=at),
        ]
    wide, narrow = ((f"the gap with {n} workers", _gap(df, n, "end")) for n in (many[-1], few))
    gap = welch(*wide, "above", *narrow, unit="points")
    return decide(holm(*tests, dataclasses.replace(gap, most=200.0)))


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for n in sorted(df["num_workers"].unique()):
        gap, sooner = _gap(df, n, "end"), -_gap(df, n, "seconds")
        if np.isfinite(gap).all():
            words = f"synchronous less asynchronous accuracy by seed, {n} workers"
            found[words] = (frames.text(gap, 2, "points"), GAP)
        if np.isfinite(sooner).all():
            words = f"synchronous sooner at the target by, {n} workers"
            found[words] = (frames.text(sooner, 0, "s"), SOONER.get(n, ""))
    return found


def _draw(df: Frame, figure: Figure) -> None:
    levels, curves = figure.subplots(1, 2)
    ends: Any = {"x": "num_workers", "y": {"end": "final test accuracy (%)"}, "by": "mode", "order": MODES}
    figures.values(levels, df, **ends, xlabel="workers", xscale="log", legend=False, ticks="")
    errors = df.assign(error=[100 * (1 - np.array(run)) for run in df["accuracy"]])
    shown: Any = {"along": "simulated_seconds", "of": "error", "by": "mode", "styles": "num_workers", "marker": ""}
    looks: Any = {"xlabel": "simulated time (s)", "xscale": "log", "yscale": "log", "legend": False}
    figures.curves(curves, errors, **shown, **looks, ylabel="test error (%)")
    drawing.legend_below(figure, curves, columns=2)


CLAIM = TUNED.claim(
    prose=beside(__file__, globals()),
    judge=verdict,
    reworded=("f2292f0d312d",),
    hours={"smoke": 0.1, "laptop": 0.65, "gpu": 0.45},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "accuracy"),
    frame=frame,
    model=lambda df: "ResNet-20" if "cifar10" in set(df["data"]) else "MLP",
    labels=["num_workers", "mode"],
    values={
        "test accuracy at the end": Value("end", unit="%"),
        "simulated time to the target": Value("seconds", 0, "s"),
        "epochs to the target": Value("epochs", 1),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.7),
)
