"""The step of real processes that wait for the first N of M, against a simulation of workers that finish."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import runs as run_folders
from experiments.plots import drawing
from experiments.study import figures, frames, tuning
from experiments.study.claim import Claim, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.verdict import Verdict, bound, decide, equivalent, holm, not_finite, untested
from launch.children import ROOT, last_line
from planning import step_times
from planning.steps_to_target import power_law
from reducers import arrivals

WORKERS = {"smoke": 3, "laptop": 8}
LEAST = {"smoke": 2, "laptop": 4}  # the smallest N
STEPS = {"smoke": 10, "laptop": 100}
SEEDS = {"smoke": range(1), "laptop": range(5, 10)}  # an earlier rule had 0 to 4
LOGGED = 10  # how often a run records its speed
DELAYS = {"name": "lognormal", "median_seconds": 0.25, "sigma": 0.5}
MARGIN = 0.05  # as a share of the predicted step
APART = 1  # how far the best N may be from the predicted one
ROUNDS = 10  # how often recorded steps are replayed, so that the first ones, when nobody is late, are few
EXPONENT = 0.85  # steps to a target ~ N^-0.85, as in the planner's default example


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    workers = WORKERS[scale]
    cases = [(count, "lognormal") for count in range(LEAST[scale], workers + 1)] + [(workers, "none")]
    given = {"workers": workers, "steps": STEPS[scale], "data": "digits"}
    return [
        Run(labels={"required": count, "delays": delays, **given, "seed": seed})
        for seed in SEEDS[scale]
        for count, delays in cases
    ]


def _measure(*, required: int, delays: str, workers: int, steps: int, data: str, seed: int) -> dict[str, Any]:
    """Trains with worker processes; returns the seconds of its steps, and those of its workers.

    "arrival_seconds" are the mean times of the first, second, ... arrival. If a step waits for all workers, which then
    begin each step together, "durations" [S, W] are the times of each worker in each step.

    Raises:
      ValueError: one line, the last one of the run, if it fails: because Ray is not installed for example.
    """
    overrides = {
        "num_workers": workers,
        "reducer.name": "backup_workers",
        "reducer.num_required": required,
        "arrivals.name": "constant",
        "seed": seed,
        **tuning.steps(steps, evaluate=steps, log=max(1, steps // LOGGED)),
    }
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, str(ROOT / "train.py"), "--live", f"--config=configs/{data}.py"]
        command += [f"--config.{key}={value}" for key, value in overrides.items()]
        command += [f"--workdir={workdir}", *([f"--delays={json.dumps(DELAYS)}"] if delays != "none" else [])]
        with open(Path(folder) / "output", "w+b") as output:
            done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False)
            if done.returncode:
                raise ValueError(f"train.py --live: {last_line(output) or 'it said nothing'}")
        records = [record for record in run_folders.read(workdir / "metrics.jsonl") if record["kind"] == "train"]
        trace = arrivals.read_trace(workdir / "worker_seconds-1.npz")
    durations = trace.astype(np.float64)[steps // LOGGED :]
    seconds = np.sort(durations, axis=1)
    first, last = records[0], records[-1]  # programs compile before the first
    whole = (last["wall_seconds"] - first["wall_seconds"]) / (last["step"] - first["step"])
    arrival = [float(column.mean()) if np.isfinite(column).all() else None for column in seconds.T]
    known = durations.round(4).tolist() if required == workers else None
    return {"step_seconds": whole, "arrival_seconds": arrival, "durations": known}


@functools.lru_cache(maxsize=64)
def _mean_steps(durations: tuple[tuple[float, ...], ...], late_workers: step_times.LateWorkers) -> np.ndarray:
    """Returns the mean simulated step that waits for the first N, for N = 1 to W."""
    rule = step_times.first(len(durations[0]))
    took = step_times.simulate(np.tile(np.array(durations), (ROUNDS, 1)), rule, late_workers=late_workers)
    return took.seconds.mean(axis=0)


def frame(rows: Rows) -> Frame:
    """Returns the runs with delays; their predicted steps are from the run of the same seed that waits for all.

    The engine's ``own`` time is the part of a step that is not waited for: handing out, reduction, update.
    """
    own, finish, interrupt = {}, {}, {}
    for row in rows:
        if row["delays"] == "none":
            own[row["seed"]] = row["step_seconds"] - row["arrival_seconds"][row["required"] - 1]
        elif row["durations"]:
            durations = tuple(map(tuple, row["durations"]))
            finish[row["seed"]] = _mean_steps(durations, "finish")
            interrupt[row["seed"]] = _mean_steps(durations, "interrupt")
    df = frames.frame(rows)
    df = df[(df["delays"] == "lognormal") & df["seed"].isin(own.keys() & finish.keys())]
    df = df.assign(own=df["seed"].map(own), N=df["required"])
    for column, steps in (("predicted", finish), ("interrupted", interrupt)):
        df[column] = df["own"] + [steps[seed][n - 1] for seed, n in zip(df["seed"], df["N"], strict=True)]
    return df.assign(ratio=df["step_seconds"] / df["predicted"])


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    if not_finite(df[["step_seconds", "predicted"]]):
        return untested("A mean step is not finite.")
    scale = df["scale"].iloc[0]
    ratio = frames.groups(df, "required", "ratio")
    mean = df.groupby("required")[["step_seconds", "predicted"]].mean()
    ours, plan = (mean * power_law(EXPONENT)(mean.index.to_numpy())[:, None]).idxmin()
    tests = [
        equivalent("the ratio", ratio[n], 1.0, margin=MARGIN, digits=3, at=f"N = {n}")
        for n in range(LEAST[scale], WORKERS[scale] + 1)
    ]
    apart = bound("the distance of the best N from the predicted one", abs(ours - plan), most=APART, digits=0)
    return decide(holm(*tests), apart)


def _draw(df: Frame, figure: Figure) -> None:
    seconds = df.rename(columns={"step_seconds": "measured"}).melt("N", ["measured", "predicted"], "of", "seconds")
    y, xlabel = {"seconds": "mean step, seconds"}, "N, gradients that a step waits for"
    (axes,) = figures.values(figure, seconds, x="N", y=y, by="of", xlabel=xlabel)
    drawing.whole_numbers(axes.xaxis)


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.04, "laptop": 0.5},
    runs=_runs,
    measure=_measure,
    timings=("step_seconds", "arrival_seconds", "durations"),
    frame=frame,
    model="MLP in processes",
    labels=["N"],
    values={
        "mean step over the predicted one": Value("ratio", 3),
        "mean step, s": Value("step_seconds", 3),
        "predicted, s": Value("predicted", 3),
        "predicted if interrupted, s": Value("interrupted", 3),
    },
    facts=lambda df: {"the engine's own time in a step": frames.text(df.groupby("seed")["own"].first(), 4, "s")},
    draw=_draw,
)
