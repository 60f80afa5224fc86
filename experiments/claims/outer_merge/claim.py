"""DiLoCo with three merges of the workers' progress: how long their results are, and the loss at equal examples."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.plots import drawing
from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, decide, equivalent, holm, untested

EVERY = 10  # H
ALL, QUORUM = "all", "quorum"
MEAN, ADASUM, RADIAL = "mean", "adasum", "radial_directional"
# Exponents of M in the length of a merge of orthogonal updates.
POWERS: Mapping[str, float] = {MEAN: -0.5, ADASUM: 0.5, RADIAL: 0.0}
MERGES = tuple(POWERS)
WORKERS = {"smoke": (2, 4), "laptop": (2, 4, 8, 16)}
STEPS = {"smoke": 40, "laptop": 400}
MARGIN = 0.1  # share of the mean's loss; differences up to it count as none
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


def _rates(point: Mapping[str, Any]) -> list[float]:
    shorter = formula(MEAN, point["workers"]) / formula(point["merge"], point["workers"])
    return [float(f"{rate * shorter:.3g}") for rate in BASE]


def _recipe(scale: Scale, *, workers: int, present: str, merge: str, rate: float) -> Run:
    steps = STEPS[scale]
    rule: dict[str, Any] = {"name": merge}
    if merge != MEAN:
        rule["telemetry"] = "on"
    if present == QUORUM:
        rule = {"name": "quorum", "num_required": required(workers), "combine": rule}
    overrides = {
        **datasets.image_set(scale),
        **datasets.MLP,
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
    return Run(spec="configs/mnist.py", overrides=overrides)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations and, if its merge measures them, the mean lengths of results and of plain means.

    Lengths are in units of R, the root of the mean squared length of the updates that a round merges.
    """
    measured = [record for record in records if record["kind"] == "train" and "orthogonality" in record]
    found = evaluations_of("step", "epoch", "simulated_seconds", "loss", "accuracy")(records)
    if not measured:
        return found
    lengths = [record["orthogonality"] * math.sqrt(record["contributors"]) for record in measured]
    means = [length / record["gain"] for length, record in zip(lengths, measured, strict=True)]
    found |= {"length": statistics.fmean(lengths), "length_of_mean": statistics.fmean(means)}
    return found | {"cosine": statistics.fmean(record["cosine"] for record in measured)}


TUNED = tuning.Tuned(
    points=_points,
    grid=lambda scale, point: _rates(point),
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 5},
    score=tuning.Score(of="loss", mode="min", digits=4),
    tuning_seeds=tuning.ONE_SEED,
    tuned_at=lambda scale, point: {**point, "present": ALL},
    first=("data",),
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs, with the lengths of their results, measured and by the formula.

    The mean measures no lengths; it takes those that the radial-directional run of the same seed measured for it.
    """
    df = TUNED.frame(rows, "length", "length_of_mean", "cosine")
    at = ["workers", "present", "seed"]
    along = df[df["merge"] == RADIAL].set_index(at)["length_of_mean"]
    of_mean = df.join(along.rename("of_mean"), on=at)["of_mean"]
    places, formulas = [], []
    for merge, n, present in zip(df["merge"], df["workers"], df["present"], strict=True):
        merged = n if present == ALL else required(n)
        places.append(f"M = {n}" if present == ALL else f"{merged} of {n}")
        formulas.append(formula(merge, merged))
    return df.assign(
        where=places,
        nats=frames.last(df, "loss"),
        measured=df["length"].mask(df["merge"] == MEAN, of_mean).astype(float),
        formula=formulas,
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    nats = frames.groups(df, ["where", "merge"], "nats")
    if not np.isfinite(df["nats"]).all():
        return untested("A value is not finite in a run of any merge.")
    places = df["where"].unique()
    worst = max((nats[where, MEAN] for where in places), key=lambda losses: losses.mean())
    if not worst.mean() < LEARNED:
        return untested(f"The mean learns little: it ends at {frames.text(worst, 4, 'nats')}.")
    found = []
    for where, merge in itertools.product(places, MERGES[1:]):
        ours, means = nats[where, merge], nats[where, MEAN]
        found.append(equivalent(merge, ours, MEAN, means, share=MARGIN, unit="nats", digits=4, at=where))
    tests = holm(*found)
    return decide(tests, refuted=any(test.is_beyond for test in tests))


def _facts(df: Frame) -> Facts:
    cosines = df[df["merge"] == RADIAL].groupby("where", sort=False)["cosine"]
    return {f"mean cosine between two workers' outer updates, {where}": frames.text(found) for where, found in cosines}


def _draw(df: Frame, figure: Figure) -> None:
    lengths, losses = figure.subplots(1, 2)
    of_all = df[df["present"] == ALL]
    looks: Any = {"xscale": "log", "xlabel": "workers M"}
    y, title = {"measured": "length of the result / R"}, "dotted: by the formula"
    figures.values(lengths, of_all, x="workers", y=y, by="merge", order=MERGES, title=title, yscale="log", **looks)
    for place, merge in enumerate(MERGES):
        colour = drawing.COLOURS[place]
        same = of_all[of_all["merge"] == merge]
        figures.known(lengths, same, x="workers", y="formula", linestyle=":", color=colour)
        for who, marker, shift in ((ALL, "o", 0.0), (QUORUM, "x", 0.07)):
            same = df[(df["merge"] == merge) & (df["present"] == who)]
            beside_others = same["workers"] * 2 ** (0.16 * (place - 1) + shift)
            losses.plot(beside_others, same["nats"], marker, color=colour, markersize=4, alpha=0.6)
    figures.finish(losses, **looks, ylabel="test loss at the end (nats)", title="crosses: a quorum of 3/4")
    drawing.ticks(losses.xaxis, df["workers"])


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    model="MLP of 64 hidden units",
    labels=["where", "merge"],
    values={
        "outer rate": Value("rate", None, is_fixed=True),
        "length / R": Value("measured"),
        "by the formula": Value("formula", is_fixed=True),
        "test loss at the end": Value("nats", 4),
        "test accuracy": Value("end", 2, "%"),
    },
    facts=_facts,
    hours={"smoke": 0.05, "laptop": 0.6},
    reduce=_reduce,
    draw=_draw,
    inches=(7.5, 3.6),
)
