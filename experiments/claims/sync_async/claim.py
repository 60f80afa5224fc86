"""Synchronous SGD with backup workers against asynchronous SGD: accuracy, and time and epochs to a target."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd

from experiments.plots import drawing
from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, decide, holm, untested, welch

MODES = ("synchronous", "asynchronous")
SPECS = {"synchronous": "configs/mnist_backup_53.py", "asynchronous": "configs/mnist_async_53.py"}
DECAYS = 48  # how often the learning rate falls by the factor 0.94
TARGETS = {"digits": 0.8, "mnist": 0.94, "cifar10": 0.7}  # accuracies
# Workers -> how much sooner the synchronous run was at its better accuracy than the asynchronous one.
SOONER = {53: "later [MEM lo-med]", 106: "about 6 h [MEM lo-med]", 212: "about 18 h [MEM lo-med]"}
GAP = "0.5 to 0.9, wider with more workers [MEM med]"  # in points


# Rates that are tried: of one worker where synchronous, of 53 where asynchronous.
RATES = {"synchronous": (0.002, 0.004, 0.008), "asynchronous": (0.02, 0.04, 0.08)}
BACKUPS = {"smoke": {5: 1, 10: 2}, "laptop": {53: 3, 106: 6, 212: 12}, "gpu": {53: 3, 106: 6}}  # workers -> backups
EPOCHS = {"smoke": 2, "laptop": 16, "gpu": 12}
EVALUATIONS = {"smoke": 2, "laptop": 32, "gpu": 24}
STAND_IN_EPOCHS = 200  # on digits, an epoch is an update of 50 workers
RESNET = {**datasets.RESNET, "batch_size_per_worker": 16}  # at scale gpu


def _recipe(scale: Scale, *, mode: str, num_workers: int, rate: float) -> Run:
    model = RESNET if scale == "gpu" else {**datasets.image_set(scale), "model.name": "mlp"}
    is_stand_in = scale == "laptop" and model["data.name"] == datasets.STAND_IN
    epochs = STAND_IN_EPOCHS if is_stand_in else EPOCHS[scale]
    if mode == "synchronous":
        own = {"optimizer.learning_rate": rate, "reducer.num_required": num_workers - BACKUPS[scale][num_workers]}
    else:  # a rate for 53 workers; a gradient misses as many updates as there are other workers
        own = {"optimizer.learning_rate": rate * 53 / num_workers}
    checkpoint = epochs / 4 if scale == "gpu" else None  # a run that is stopped goes on from there
    overrides = {
        **model,
        "num_workers": num_workers,
        **own,
        "schedule.name": "staircase",
        "schedule.decay_factor": 0.94,
        "schedule.every_epochs": epochs / DECAYS,
        "ema_decay": 0.9999,
        **tuning.epochs(epochs, evaluate=epochs / EVALUATIONS[scale], log=epochs / 4, checkpoint=checkpoint),
    }
    return Run(spec=SPECS[mode], overrides=overrides)


TUNED = tuning.Tuned(
    points=lambda scale: [{"mode": mode, "num_workers": n} for n in BACKUPS[scale] for mode in MODES],
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
    """Returns the difference, synchronous less asynchronous, in a quantity, for each seed with both runs."""
    same = df[df["num_workers"] == num_workers].set_index("seed")
    ours, theirs = (same.loc[same["mode"] == mode, of] for mode in MODES)
    seeds = ours.index.intersection(theirs.index)
    return ours[seeds] - theirs[seeds]


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    few, *many = BACKUPS[df["scale"].iloc[0]]
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
        found[f"synchronous less asynchronous accuracy by seed, {n} workers"] = (frames.text(gap, 2, "points"), GAP)
        if np.isfinite(sooner).all():
            words = f"synchronous sooner at the target by, {n} workers"
            found[words] = (frames.text(sooner, 0, "s"), SOONER.get(n, ""))
    return found


def _draw(df: Frame, figure: Figure) -> None:
    levels, curves = figure.subplots(1, 2)
    looks: Any = {"by": "mode", "legend": False, "xscale": "log"}
    y = {"end": "final test accuracy (%)"}
    figures.values(levels, df, x="num_workers", y=y, order=MODES, xlabel="workers", **looks)
    errors = df.assign(error=frames.errors(df))
    looks |= {"xlabel": "simulated time (s)", "ylabel": "test error (%)", "yscale": "log"}
    figures.curves(curves, errors, along="simulated_seconds", of="error", styles="num_workers", marker="", **looks)
    drawing.legend_below(figure, curves)


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
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
    inches=(7.0, 3.2),
)
