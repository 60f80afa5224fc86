"""The steps to a target on 16 machines, and the best method, as planned from runs on 1, 2, 4 and 8 machines."""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments.plots import drawing
from experiments.study import datasets, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, bound, decide, untested
from planning import choose
from planning.sources import Run as Known
from reducers import arrivals

LEARNED, HELD_OUT = (1, 2, 4, 8), 16
SIZES = (*LEARNED, HELD_OUT)
EVERY = 8  # H
TARGETS = {"mnist": 0.32, "digits": 0.6}  # test loss
NEAR, WORSE = 25.0, 1.2  # in % of the steps; as a multiple of the best time
ARRIVALS = {
    "lognormal": {"median_seconds": 1.0, "sigma": 0.5},
    "shifted_exponential": {"shift_seconds": 1.0, "scale_seconds": 0.5},
    "pareto": {"least_seconds": 1.0, "alpha": 3.0},
}
LONG = "long"  # the run whose loss is the best one
METHODS: Mapping[str, Mapping[str, Any]] = {
    LONG: {"optimizer.learning_rate": 0.03, "train_steps": 6000},
    "mean": {"optimizer.learning_rate": 0.03, "train_steps": 800},
    "sum": {"reducer.name": "sum", "optimizer.learning_rate": 0.01, "train_steps": 2000},
    "local_sgd": {
        "reducer_on": "updates",
        "reducer.name": "local_sgd",
        "reducer.every_steps": EVERY,
        "optimizer.learning_rate": 0.03,
        "train_steps": 800,
    },
    "asynchronous": {"server.name": "asynchronous", "optimizer.learning_rate": 0.01, "train_steps": 2000},
}
NAMES = {"mean": "mean", "sum": "sum", "local_sgd": f"local SGD, H = {EVERY}", "asynchronous": "asynchronous"}
SEEDS = {"smoke": 1, "laptop": 3}
STEPS_DRAWN = 4000  # steps that are drawn from an arrival model, a multiple of EVERY
MARK = "[READ: abstract, arXiv 1702.05865]"


def _run(scale: Scale, method: str, num_workers: int, model: str, seed: int) -> Run:
    data = datasets.image_set(scale)
    steps = METHODS[method]["train_steps"]
    if scale == "smoke":
        steps //= 20
    overrides = {
        **data,
        "model.name": "softmax",
        "optimizer.momentum": 0.0,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "batch_size_per_worker": 32,
        "num_workers": num_workers,
        "arrivals.name": model,
        **{f"arrivals.{key}": value for key, value in ARRIVALS[model].items()},
        **METHODS[method],
        "train_epochs": None,
        "train_steps": steps,
        "eval_every_steps": 200 if method == LONG else 20,
        "log_every_steps": steps,
        "checkpoint_every_steps": steps,
        "seed": seed,
    }
    labels = {"method": method, "num_workers": num_workers, "arrivals": model, "data": data["data.name"], "seed": seed}
    return Run(labels=labels, spec="configs/mnist.py", overrides=overrides, flags={"num_devices": 1})


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the runs; synchronous ones have one arrival model, as arrival times do not change what they learn."""
    del rows
    first = next(iter(ARRIVALS))
    runs = [_run(scale, LONG, 8, first, 0)]
    for seed, method, n in itertools.product(range(SEEDS[scale]), NAMES, SIZES):
        models = ARRIVALS if method == "asynchronous" else (first,)
        runs += [_run(scale, method, n, model, seed) for model in models]
    return runs


@functools.cache
def step_seconds(method: str, num_workers: int, model: str) -> float:
    """Returns the mean seconds of a synchronous step under an arrival model, without messages."""
    length = EVERY if method == "local_sgd" else 1
    made = arrivals.make(model, **ARRIVALS[model])
    drawn = arrivals.sample(made, jax.random.key(0), num_workers=num_workers, num_steps=STEPS_DRAWN)  # [T, W]
    rounds = drawn.reshape(-1, length, num_workers).sum(axis=1, dtype=np.float64)
    return float(rounds.max(axis=1).mean() / length)


def _seconds(run: Any) -> float:
    """Returns the seconds of a step of a run under its arrival model."""
    if run["method"] == "asynchronous":
        return run["simulated_seconds"][-1] / run["step"][-1]
    return step_seconds(run["method"], run["num_workers"], run["arrivals"])


def frame(rows: Rows) -> Frame:
    """Returns a line for each run of a seed under each arrival model: what it needs to the target, and what is planned.

    Synchronous runs count for all arrival models. Each line has the seed's choice under the model, the best one, and
    the ratio of their times. A seed without runs of all methods has no lines.
    """
    df = frames.frame(rows)
    is_long = df["method"] == LONG
    best = df.loc[is_long, "loss"].map(min).min()
    parts = []
    for _, own in df[~is_long].groupby("seed"):
        if not best < math.inf or set(own["method"]) != set(NAMES):
            continue
        for model in ARRIVALS:
            here = own[(own["method"] != "asynchronous") | (own["arrivals"] == model)]
            parts.append(_beside_plan(here.assign(arrivals=model, best_loss=best)))
    return pd.concat(parts, ignore_index=True) if parts else df[:0]


def _beside_plan(df: Frame) -> Frame:
    """Returns the runs of a seed that count under an arrival model, with what is planned for each."""
    target = TARGETS[df["data"].iloc[0]]
    best = df["best_loss"].iloc[0]
    keys = list(zip(df["method"], df["num_workers"], strict=True))
    seconds = [_seconds(run) for _, run in df.iterrows()]
    steps = frames.until(df, target, of="loss", mode="min")
    time = steps * seconds
    runs = zip(keys, df["step"].map(tuple), df["loss"].map(tuple), seconds, strict=True)
    learned = tuple((*key, *run) for key, *run in runs if key[1] in LEARNED)
    choices = _planned(learned, best, target) if best < target else []
    plan = {(one.method, one.machines): (one.steps, one.seconds) for one in choices}
    planned = np.array([plan.get(key, (math.inf, math.inf)) for key in keys])
    times = dict(zip(keys, time, strict=True))
    fastest = min(times, key=times.__getitem__)
    chosen = next(iter(plan), None)
    return df.assign(
        method=df["method"].map(NAMES),
        machines=df["num_workers"],
        steps=steps,
        time=time,
        planned=planned[:, 0],
        planned_time=planned[:, 1],
        missed=100 * (planned[:, 0] / steps - 1).abs(),
        chosen=f"{NAMES[chosen[0]]} on {chosen[1]}" if chosen else "none",
        best=f"{NAMES[fastest[0]]} on {fastest[1]}",
        ratio=times.get(chosen, math.inf) / times[fastest] if chosen else math.inf,
    )


@functools.lru_cache(maxsize=32)
def _planned(runs: tuple[Any, ...], best: float, target: float) -> list[choose.Choice]:
    """Returns the planner's choices, the fastest first, by runs of (method, machines, steps, losses, seconds)."""
    by_method: dict[str, list[Known]] = {}
    for method, n, steps, losses, seconds in runs:
        known = Known(f"{method}, {n} machines", {}, n, np.array(steps), np.array(losses), seconds)
        by_method.setdefault(method, []).append(known)
    laws = {}
    for method, own in by_method.items():
        if len(own) > 1:
            laws[method] = choose.fit(own, best=best, num_refits=0)
    return choose.to_target(laws, SIZES, gap=target - best, best=best)


def _plans(df: Frame) -> Frame:
    """Returns a line for each arrival model and seed: the median error on 16 machines, the choice and its time."""
    plans = df[df["machines"] == HELD_OUT].groupby(["arrivals", "seed"])
    found = plans[["chosen", "best", "ratio"]].first()
    return found.assign(missed=plans["missed"].agg(lambda values: values.median(skipna=False)))


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    is_late = ~np.isfinite(df["steps"])
    late = df[is_late & (df["machines"] == HELD_OUT)]
    if len(late):
        name, model = late[["method", "arrivals"]].iloc[0]
        return untested(f"The target is not reached by {name} on {HELD_OUT} machines, {model} times.")
    plans = _plans(df)
    bounds = []
    for model in ARRIVALS:
        missed = f"the median over methods by which the planned steps on {HELD_OUT} machines miss, {model} times,"
        slower = f"the time of what the plan chooses over that of the best, {model} times,"
        bounds += [
            bound(missed, *plans.loc[model, "missed"], most=NEAR, unit="%", digits=1),
            bound(slower, *plans.loc[model, "ratio"], most=WORSE),
        ]
    return decide([], *bounds)


def _facts(df: Frame) -> Facts:
    found: Facts = {"best loss, of the long run": f"{df['best_loss'].iloc[0]:.4f}"}
    for model, same in _plans(df).groupby("arrivals", sort=False):
        chosen = "; ".join(dict.fromkeys(same["chosen"] + "; the best is " + same["best"]))
        missed = frames.text(same["missed"], 1, "%")
        found |= {
            f"median error of the steps on {HELD_OUT} machines, {model} times": (missed, f"the two models tell {MARK}"),
            f"chosen under {model} times": (chosen, f"they tell method and cluster size {MARK}"),
            f"its time over that of the best, {model}": frames.text(same["ratio"], 2),
        }
    return found


def _draw(df: Frame, figure: Figure) -> None:
    panels = figure.subplots(1, len(ARRIVALS), sharey=True)
    for axes, model in zip(panels, ARRIVALS, strict=True):
        for (seed, method), same in df[df["arrivals"] == model].groupby(["seed", "method"], sort=False):
            look = drawing.look([*NAMES.values()].index(method))
            label = method if seed == df["seed"].min() else ""
            there = same[np.isfinite(same["time"])]
            axes.plot(same["machines"], same["planned_time"], color=look["color"], linewidth=1, label=label)
            look |= {"linestyle": "none", "alpha": 0.6, "markersize": 5}
            axes.plot(there["machines"], there["time"], **look)
        axes.axvspan(LEARNED[-1] * 1.2, HELD_OUT * 1.2, color="#999999", alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="machines")
        axes.set_title(model)
        drawing.ticks(axes.xaxis, SIZES)
    panels[0].set(ylabel="seconds to the target (lines: planned)")
    drawing.legend_below(figure, panels[0])


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.05, "laptop": 0.25},
    runs=_runs,
    reduce=evaluations_of("step", "loss", "simulated_seconds"),
    frame=frame,
    model="softmax regression",
    labels=["arrivals", "method", "machines"],
    values={
        "steps to the target": Value("steps", 0),
        "planned": Value("planned", 0),
        "missed by": Value("missed", 0, "%"),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.2, 3.4),
)
