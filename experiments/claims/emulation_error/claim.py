"""How near one update of several workers comes to their sequential steps, by step size."""

import math
from typing import Any

import numpy as np
import pandas as pd

from experiments.claims.emulation_error import emulation
from experiments.claims.emulation_error.emulation import METHODS, STEP_SIZES
from experiments.plots import drawing
from experiments.study import datasets, figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Scale, Value, beside, repeated
from experiments.study.datasets import LENET_RATE as RATE
from experiments.study.verdict import Verdict, decide, holm, paired

SETTINGS = {"lenet5": "LeNet-5", "softmax": "softmax regression", "toy": "toy logistic regression"}
LABELS = {"sum": "sum", "mean": "mean", "adasum": "Adasum", "second_order": "second order, exact Hessian"}
WORKERS = (2, 4)
SEEN = 3  # the window was read off runs of the first three seeds, and is tested in the others
INSIDE, BELOW, ABOVE = (RATE / 2, RATE), RATE / 16, 2 * RATE  # step sizes of the tests
TOY = "DERIVED, another toy; not in the paper"


def _cases(scale: Scale) -> list[dict[str, Any]]:
    images = datasets.image_set(scale)["data.name"]
    steps = dict.fromkeys(STEP_SIZES, 2) if scale == "smoke" else {"toy": 20}
    return [
        {
            "setting": setting,
            "data": "synthetic" if setting == "toy" else images,
            "num_workers": n,
            "steps": steps.get(setting, 500),
            "tuples": 1 if setting in steps else 4,
        }
        for setting in STEP_SIZES
        for n in WORKERS
    ]


def frame(rows: Rows) -> Frame:
    """Returns a line for each run and step size: errors, and the run's window; "data" is NaN for the toy problem."""
    df = frames.frame(rows).rename(columns={"step_sizes": "step_size"})
    windows = [window(run) or (math.nan, math.nan) for _, run in df.iterrows()]
    df[["low", "high"]] = windows
    df = df.assign(setting=df["setting"].map(SETTINGS), data=df["data"].mask(df["setting"] == "toy"))
    lists = ["step_size", *METHODS]
    return df.explode(lists, ignore_index=True).astype(dict.fromkeys(lists, float))


def _tested(df: Frame) -> Frame:
    """Returns the runs of LeNet-5 with seeds from which the window was not read off."""
    return df[(df["setting"] == "LeNet-5") & (df["seed"] >= SEEN)]


def window(run: Any) -> tuple[float, float] | None:
    """Returns the step sizes between which Adasum has the least error of the three, by interpolation.

    Returns:
      The lower and the upper edge, which is 0 or infinity where the measured step sizes end before; None if Adasum is
      nearest at no step size. Of several windows it is the one with the widest gap to the next best.

    >>> errors = {"adasum": [0.4] * 4, "sum": [0.2, 0.6, 0.7, 0.8], "mean": [0.9, 0.6, 0.6, 0.3]}
    >>> [round(edge, 3) for edge in window({"step_size": [1.0, 4.0, 16.0, 64.0], **errors})]
    [2.0, 40.317]
    """
    sizes = run["step_size"]
    gaps = (np.minimum(run["sum"], run["mean"]) - run["adasum"]).tolist()
    peak = int(np.argmax(gaps))

    def edge(direction: int, unknown: float) -> float:
        i = peak
        while 0 <= (beyond := i + direction) < len(gaps):
            if gaps[beyond] <= 0:
                share = gaps[i] / (gaps[i] - gaps[beyond])
                return sizes[i] * (sizes[beyond] / sizes[i]) ** share
            i = beyond
        return unknown

    return (edge(-1, 0.0), edge(1, math.inf)) if gaps[peak] > 0 else None


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    tests = []
    tested = _tested(df)
    nearer = [("adasum", other, size) for size in INSIDE for other in ("sum", "mean")]
    for n in WORKERS:
        for one, other, size in [*nearer, ("sum", "adasum", BELOW), ("mean", "adasum", ABOVE)]:
            same = tested[(tested["num_workers"] == n) & (tested["step_size"] == size)]
            at = f"step size {size:.4f} and {n} workers"
            tests.append(paired(LABELS[one], same[one], "below", LABELS[other], same[other], digits=3, at=at))
    return decide(holm(*tests))


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for (setting, n), same in df.groupby(["setting", "num_workers"], sort=False):
        words = f"step sizes at which Adasum is the nearest of the three, {setting}, {n} workers"
        windows = same.groupby("seed")[["low", "high"]].first()
        if nowhere := int(windows["low"].isna().sum()):
            found[words] = f"nearest at no step size in {nowhere} of {len(windows)} seeds"
            continue
        low = _edge(windows["low"], "from", "least")
        high = _edge(windows["high"], "to", "greatest")
        text = f"{low} {high} (n={len(windows)})"
        is_derived = (setting, n) == (SETTINGS["toy"], 2)
        found[words] = (text, f"from 1 on, with no end up to 8 [{TOY}]") if is_derived else text
    return found


def _edge(values: pd.Series, word: str, end: str) -> str:
    """Returns the geometric mean of an edge over seeds, with its 95 % interval."""
    if outside := int((~values.between(0, math.inf, inclusive="neither")).sum()):
        return f"{word} beyond the {end} step size in {outside} of {len(values)} seeds"
    logs = np.log(values)
    found = paired("edge of the window", logs, "against", 0.0)
    interval = "" if found.missing else f" [{math.exp(found.low):.4f}, {math.exp(found.high):.4f}]"
    return f"{word} {math.exp(logs.mean()):.4f}{interval}"


def _draw(df: Frame, figure: Figure) -> None:
    settings = [setting for setting in SETTINGS.values() if setting in set(df["setting"])]
    grid = figure.subplots(len(WORKERS), len(settings), squeeze=False, sharex="col", sharey=True)
    for (setting, n), same in df.groupby(["setting", "num_workers"]):
        axes = grid[WORKERS.index(n), settings.index(setting)]
        sizes = sorted(same["step_size"].unique())
        for position, (method, label) in enumerate(LABELS.items()):
            errors = [each.to_numpy() for _, each in same.groupby("step_size")[method]]
            figures.band(axes, sizes, errors, position=position, label=label)
        if setting == SETTINGS["lenet5"]:
            figures.line(axes, RATE, across=False, linestyle="--")
        low, high = np.exp(np.log(same[["low", "high"]].clip(lower=1e-9)).mean())
        if low < high:
            axes.axvspan(max(low, sizes[0]), min(high, sizes[-1]), color="#009E73", alpha=0.08, linewidth=0)
        axes.set(xscale="log", yscale="log", ylim=(1e-3, 2))
        axes.set_title(f"{setting}, {n} workers")
    for axes in grid[-1]:
        axes.set_xlabel("step size")
    for axes in grid[:, 0]:
        axes.set_ylabel("error against sequential")
    drawing.legend_below(figure, grid[0, 0])


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.85},
    runs=repeated(_cases, seeds={"smoke": 1, "laptop": 10}),
    measure=emulation.measure,
    frame=frame,
    rests_on=lambda df: _tested(df) if len(_tested(df)) else df,
    model="LeNet-5",
    labels=["setting", "num_workers", "step_size"],
    values={label: Value(method, 5) for method, label in LABELS.items()},
    paper={
        ("LeNet-5", 2, RATE): "Adasum well below the sum [MEM-lo, no values]",
        ("LeNet-5", 4, RATE): "Adasum well below the sum [MEM-lo, no values]",
        ("toy logistic regression", 2, 0.1): f"sum 0.015, Adasum 0.179 [{TOY}]",
        ("toy logistic regression", 2, 1.0): f"sum 0.103, Adasum 0.102 [{TOY}]",
        ("toy logistic regression", 2, 8.0): f"sum 0.436, Adasum 0.313 [{TOY}]",
    },
    facts=_facts,
    draw=_draw,
    inches=(7.2, 4.6),
)
