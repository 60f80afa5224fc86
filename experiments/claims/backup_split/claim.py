"""How many of 100 machines should be backups: steps to a target, time of a step, and their product."""

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.plots import drawing
from experiments.study import datasets, figures, frames
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.inference import ALPHA
from experiments.study.tuning import NAMED_STAGES, Score, Tuned
from experiments.study.verdict import Verdict, decide, holm, paired, trend, untested
from planning import backups as planner
from planning import steps_to_target
from planning.step_times import LateWorkers

MACHINES = 100
SIZES = {"smoke": (50, 96, 100), "laptop": (50, 60, 70, 80, 82, 84, 86, 88, 90, 92, 94, 96, 98, 100)}
RATES = {"smoke": (0.2,), "laptop": (0.2, 0.28, 0.4)}  # rates for the mean gradient, not for one worker's
TRAIN_STEPS = {"smoke": 120, "laptop": 800}
TARGETS = {"mnist": 0.95, "digits": 0.9}  # accuracy; stated before the runs
FEW, MANY = (2, 10), 20  # backups that count as few, and as many
PANELS = {
    "steps": "steps to the target",
    "step_seconds": "simulated time of a step (s)",
    "seconds": "simulated time to the target (s)",
}


def _recipe(scale: Scale, *, num_required: int, rate: float) -> Run:
    overrides = {
        **datasets.mlp(scale, momentum=0.0),
        "optimizer.learning_rate": rate,
        "reducer.name": "backup_workers",
        "reducer.num_required": num_required,
        "arrivals.name": "paper_cluster",
        "num_workers": MACHINES,
        "batch_size_per_worker": 1,
        "train_steps": TRAIN_STEPS[scale],
        "eval_every_steps": 10,
        "log_every_steps": 50,
        "checkpoint_every_steps": TRAIN_STEPS[scale],
        "ema_decay": 0.98,
    }
    return Run(spec="configs/mnist.py", overrides=overrides)


TUNED = Tuned(
    points=lambda scale: [{"num_required": n} for n in SIZES[scale]],
    grid=lambda scale, point: RATES[scale],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 10},
    score=Score(target=lambda tried: TARGETS[tried[0]["data"]], along="step"),
    stages=NAMED_STAGES,
    first=("stage", "data"),
)


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the tuned runs, and when all are finished the plan, which rests on them."""
    runs = TUNED.runs(scale, rows)
    finished = {row.get("run") for row in rows}
    if not all(run.name in finished for run in runs):
        return runs
    df = frame(rows)
    if _all_reach(df):
        exponent, steps, *_ = _law(df)
        law = {"exponent": round(exponent, 3), "steps_of_all": round(steps, 1)}
        runs.append(Run(labels={"stage": "plan", "late_workers": "finish", **law}))
    return runs


def _measure(*, stage: str, late_workers: LateWorkers, exponent: float, steps_of_all: float) -> dict[str, Any]:
    """Asks the planner for the best split, given the law that was fitted to the steps."""
    del stage
    law = steps_to_target.power_law(exponent, steps=steps_of_all, at=MACHINES)
    plan = planner.plan("paper_cluster", num_machines=MACHINES, steps_to_target=law, late_workers=late_workers)
    return {
        "best": plan.best,
        "planned_step_seconds": plan.step_seconds.round(4).tolist(),
        "planned_target_seconds": plan.target_seconds.round(2).tolist(),
    }


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with steps and time to the target, and the planner's times beside each."""
    df = TUNED.frame(rows)
    plan = [row for row in rows if row.get("stage") == "plan"]
    target = df["data"].map(TARGETS)
    step = whole = [math.nan] * MACHINES
    if plan:
        step = plan[0]["planned_step_seconds"]
        whole = plan[0]["planned_target_seconds"]
    return df.assign(
        steps=frames.until(df, target),
        seconds=frames.until(df, target, along="simulated_seconds"),
        step_seconds=frames.last(df, "simulated_seconds") / frames.last(df, "step"),
        planned_step=[step[n - 1] for n in df["num_required"]],
        planned_target=[whole[n - 1] for n in df["num_required"]],
        plan=[step] * len(df),
        **{"N + b": df["num_required"].map(_split)},
    )


def _all_reach(df: Frame) -> bool:
    steps = frames.by_seed(df, "num_required", "steps").reindex(columns=SIZES[df["scale"].iloc[0]])
    return bool(np.isfinite(steps).all(axis=None))


def _law(df: Frame) -> tuple[float, float, float, float]:
    """Returns the exponent of steps ~ N^-exponent, the steps with all machines, and the exponent's 95 % interval.

    The law is fitted to the mean steps of the sizes, by least squares of the logarithms. The interval is Student's, of
    the exponents that are fitted to each seed alone: all sizes share the seeds, so that their steps are high or low
    together, and how far the means lie from the law says too little of that.
    """
    mean = df.groupby("num_required")["steps"].mean()
    slope, intercept = np.polyfit(np.log(mean.index / MACHINES), np.log(mean), 1)
    by_seed = _exponents(df)
    wide = stats.t.ppf(1 - ALPHA / 2, len(by_seed) - 1) * by_seed.sem()
    return float(-slope), float(np.exp(intercept)), float(-slope - wide), float(-slope + wide)


def _exponents(df: Frame) -> pd.Series:
    """Returns the exponent that is fitted to each seed's steps alone."""
    logs = np.log(frames.by_seed(df, "num_required", "steps"))
    slopes, _ = np.polyfit(np.log(logs.columns), logs.T, 1)
    return pd.Series(-slopes)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    if not _all_reach(df):
        return untested("Not all runs reach the target.")
    steps, seconds = (frames.by_seed(df, "num_required", key) for key in ("steps", "seconds"))
    backups = MACHINES - seconds.columns
    some = seconds.loc[:, (backups >= FEW[0]) & (backups <= FEW[1])].mean(axis=1)
    many = seconds.loc[:, backups >= MANY].mean(axis=1)
    few = f"{FEW[0]} to {FEW[1]} backups"
    return decide(
        holm(
            trend("the steps to the target grow as a step waits for fewer gradients", steps.iloc[:, ::-1], digits=0),
            paired(few, some, "below", "no backups", seconds[MACHINES], unit="s", digits=0),
            paired(few, some, "below", f"{MANY} or more", many, unit="s", digits=0),
        )
    )


def _facts(df: Frame) -> Facts:
    if not _all_reach(df):
        return {}
    exponent, _, low, high = _law(df)
    mean = df.groupby("num_required")[[*PANELS, "planned_step"]].mean()
    best = mean["seconds"].idxmin()
    first = mean.index[0]
    step = mean["step_seconds"]
    fitted = f"{exponent:.2f} [{low:.2f}, {high:.2f}]"
    fewer = mean["steps"][first] / mean["steps"][MACHINES]
    slower = mean["seconds"][MACHINES] / mean["seconds"][best]
    facts: Facts = {
        "exponent of steps ~ N^-exponent": (fitted, "0.85 [DERIVED from MEM med-hi]"),
        "the same, fitted to each seed alone": frames.text(_exponents(df)),
        f"steps with N = {first} over those with 100": (f"{fewer:.2f}", "about 1.8 (137.5e3 over 76.2e3) [MEM med-hi]"),
        "best split, by mean simulated time to the target": (_split(best), "96 + 4 [READ-2nd]"),
        "time to the target, all 100 waited for over the best split": f"{slower:.2f}",
        f"time of a step, N = 96 over {first}; by construction of the arrival model": f"{step[96] / step[first]:.2f}",
        "time of a step, N = 100 over 96; by construction of the arrival model": f"{step[MACHINES] / step[96]:.2f}",
    }
    plan = np.array(df["plan"].iloc[0])
    every = np.arange(1, MACHINES + 1)
    planned, at_low, at_high = (_split(every[np.argmin(plan * every**-power)]) for power in (exponent, low, high))
    planned += f"; {at_low} and {at_high} at the ends of the exponent's interval"
    words = "best split by `planning.backups`, from the fitted law and the arrival model"
    return facts | {words: (planned, "96 + 4 [READ-2nd]")}


def _split(num_required: int) -> str:
    return f"{num_required} + {MACHINES - num_required}"


def _draw(df: Frame, figure: Figure) -> None:
    first, *others = figures.values(figure, df, x="num_required", y=PANELS, xlabel="gradients a step, N")
    look = drawing.look(1) | {"marker": "", "linewidth": 1.2}
    if _all_reach(df):
        exponent, steps, *_ = _law(df)
        sizes = np.arange(df["num_required"].min(), MACHINES + 1)
        first.plot(sizes, steps * (sizes / MACHINES) ** -exponent, label=f"fit, $N^{{{-exponent:.2f}}}$", **look)
        best = df.groupby("num_required")["seconds"].mean().idxmin()
        figures.line(others[1], best, f"best: {_split(best)}", across=False, ymax=0.8, linestyle=":")
    if df["planned_step"].notna().all():
        for axes, column in zip(others, ("planned_step", "planned_target"), strict=True):
            figures.known(axes, df, x="num_required", y=column, label="planned", **look)
    first.set_ylim(0, None)
    for axes in others:
        figures.finish(axes, yscale="log")
    first.legend()


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    runs=_runs,
    model="MLP of 64 hidden units",
    hours={"smoke": 0.05, "laptop": 0.6},
    reduce=evaluations_of("step", "simulated_seconds", "accuracy"),
    measure=_measure,
    labels=["N + b"],
    values={
        PANELS["steps"]: Value("steps", 0),
        PANELS["step_seconds"]: Value("step_seconds"),
        PANELS["seconds"]: Value("seconds", 0),
        "time of a step, planned": Value("planned_step", is_fixed=True),
        "time to the target, planned": Value("planned_target", 0, is_fixed=True),
    },
    paper={
        "50 + 50": "about 137.5e3 steps [MEM med-hi]",
        "96 + 4": "the least time of all [READ-2nd]",
        "100 + 0": "about 76.2e3 steps [MEM med-hi]",
    },
    facts=_facts,
    draw=_draw,
    inches=(9.5, 3.2),
)
