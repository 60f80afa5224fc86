"""The step of real processes that wait for the first N of M, against a simulation of workers that finish."""

import functools
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import runs as run_folders
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Compare,
    Group,
    Measure,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale
from launch.children import ROOT, last_line
from planning import step_times
from planning.steps_to_target import power_law
from reducers import arrivals

WORKERS: dict[Scale, int] = {"smoke": 3, "laptop": 8}
LEAST: dict[Scale, int] = {"smoke": 2, "laptop": 4}  # the smallest N
STEPS: dict[Scale, int] = {"smoke": 10, "laptop": 100}
SEEDS: dict[Scale, range] = {"smoke": range(1), "laptop": range(5, 10)}  # 0 to 4 were those of an earlier rule
LOGGED = 10  # times in a run that its speed is recorded
DELAYS = {"name": "lognormal", "median_seconds": 0.25, "sigma": 0.5}
MARGIN = 0.05  # of the predicted step
ROUNDS = 10  # times that the recorded steps are gone through, so that the first ones, of which nobody is late, are few
EXPONENT = 0.85  # of the steps to a target over N, as the planner's default example has it
OURS = Quoted("nothing: this claim is ours", "-")


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    workers, found = WORKERS[scale], []
    for seed in SEEDS[scale]:
        given = {"workers": workers, "steps": STEPS[scale], "data": "digits", "seed": seed}
        found += [
            Run(labels={"required": count, "delays": "lognormal", **given})
            for count in range(LEAST[scale], workers + 1)
        ]
        found.append(Run(labels={"required": workers, "delays": "none", **given}, cost=0.4))
    return found


def _measure(*, required: int, delays: str, workers: int, steps: int, data: str, seed: int) -> dict[str, Any]:
    """Trains with worker processes; returns the seconds of its steps, and those of its workers.

    "arrival_seconds" are the means of each arrival in order. Where all are waited for, and so begin each step together,
    "durations" [S, W] are those of each worker in each step.

    Raises:
      ValueError: one line, if Ray is not installed or the run fails.
    """
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            "real_clock: needs Ray; install it by .venv/bin/python -m pip install -r requirements-live.txt"
        )
    overrides = {
        "num_workers": workers,
        "reducer.name": "backup_workers",
        "reducer.num_required": required,
        "arrivals.name": "constant",
        "train_steps": steps,
        "log_every_steps": max(1, steps // LOGGED),
        "eval_every_steps": steps,
        "checkpoint_every_steps": steps,
        "seed": seed,
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
        trace = arrivals.read_trace(workdir / "worker_seconds-1.npz", absent="allow")
    durations = trace.astype(np.float64)[steps // LOGGED :]
    seconds = np.sort(durations, axis=1)
    first, last = records[0], records[-1]  # programs compile before the first
    whole = (last["wall_seconds"] - first["wall_seconds"]) / (last["step"] - first["step"])
    arrival = [float(column.mean()) if np.isfinite(column).all() else None for column in seconds.T]
    known = durations.round(4).tolist() if required == workers else None
    return {"step_seconds": whole, "arrival_seconds": arrival, "durations": known}


def own_seconds(row: Row) -> float:
    """Returns the part of a step that is not waited for: handing out, reduction, update.

    >>> round(own_seconds({"required": 2, "step_seconds": 0.5, "arrival_seconds": [0.1, 0.3, None]}), 3)
    0.2
    """
    return row["step_seconds"] - row["arrival_seconds"][row["required"] - 1]


@functools.lru_cache(maxsize=64)
def _mean_steps(durations: tuple[tuple[float, ...], ...], late_workers: step_times.LateWorkers) -> tuple[float, ...]:
    """Returns the mean simulated step that waits for the first N, for N = 1 to W."""
    rule = step_times.first(len(durations[0]))
    took = step_times.simulate(np.tile(np.array(durations), (ROUNDS, 1)), rule, late_workers=late_workers)
    return tuple(took.seconds.mean(axis=0).tolist())


def predicted(rows: Rows, required: int, *, late_workers: step_times.LateWorkers = "finish") -> dict[int, float]:
    """Returns seed -> the mean step that waits for the first N, by the runs that wait for all, with delays and without.

    A seed of which one of the two is missing has no prediction.
    """
    idle = {row["seed"]: own_seconds(row) for row in ask.select(rows, delays="none")}
    waiting = [row for row in ask.select(rows, delays="lognormal") if row["required"] == row["workers"]]
    return {
        row["seed"]: _mean_steps(tuple(map(tuple, row["durations"])), late_workers)[required - 1] + idle[row["seed"]]
        for row in waiting
        if row["seed"] in idle
    }


def measured(rows: Rows, required: int) -> dict[int, float]:
    """Returns seed -> the mean step of the runs that wait for the first N."""
    return {row["seed"]: row["step_seconds"] for row in ask.select(rows, delays="lognormal", required=required)}


def _ratios(rows: Rows, required: int) -> list[float]:
    ours, plan = measured(rows, required), predicted(rows, required)
    return [ours[seed] / plan[seed] for seed in sorted(ours.keys() & plan.keys())]


def _counts(rows: Rows) -> list[int]:
    """Returns the N that were both measured and predicted with some seed."""
    return [count for count in ask.distinct(ask.select(rows, delays="lognormal"), "required") if _ratios(rows, count)]


def best(seconds: dict[int, float]) -> int:
    """Returns the N with the shortest time to a target, of mean seconds of a step by N.

    >>> best({2: 1.0, 4: 1.1})
    4
    """
    steps = power_law(EXPONENT)
    return min(seconds, key=lambda count: seconds[count] * float(steps(np.array(count))))


def _both(rows: Rows) -> tuple[dict[int, float], dict[int, float]]:
    """Returns N -> the mean step over seeds, as measured and as predicted."""
    counts = _counts(rows)
    return (
        {count: statistics.fmean(measured(rows, count).values()) for count in counts},
        {count: statistics.fmean(predicted(rows, count).values()) for count in counts},
    )


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for count in _counts(rows):
        ratio = Sample.of(_ratios(rows, count), digits=3)
        found.append(Finding(f"mean step over the predicted one, N = {count}", ours=ratio, paper=OURS))
    own = [own_seconds(row) for row in ask.select(rows, delays="none")]
    return [*found, Finding("the engine's own time in a step", ours=Sample.of(own, digits=4, unit="s"))]


def _table(rows: Rows) -> Table:
    cells = [
        [
            f"{count}",
            str(Sample.of(list(measured(rows, count).values()), digits=3)),
            str(Sample.of(list(predicted(rows, count).values()), digits=3)),
            str(Sample.of(list(predicted(rows, count, late_workers="interrupt").values()), digits=3)),
        ]
        for count in _counts(rows)
    ]
    note = (
        "Predicted: a simulation of workers that take as long as in the run that waits for all, and finish what they "
        "began or are interrupted; and the engine's own time without delays."
    )
    return Table(("N", "mean step, s", "predicted, s", "predicted if interrupted, s"), cells, note)


def _paper_table(rows: Rows) -> Table:
    lines = {f"N = {count}": [Cell(OURS, Sample.of(_ratios(rows, count), digits=3))] for count in _counts(rows)}
    return paper_table.table("Waits for", ["mean step over the predicted one"], lines, note="No paper has this table.")


def _draw(rows: Rows, figure: Figure) -> None:
    axes, counts = figure.subplots(), _counts(rows)
    for position, (label, seconds) in enumerate((("measured", measured), ("predicted", predicted))):
        curve = [Sample.of(list(seconds(rows, count).values())) for count in counts]
        drawing.band(axes, counts, curve, position=position, label=label)
    axes.set(xlabel="N, gradients that a step waits for", ylabel="mean step, seconds")
    axes.set_xticks(counts)
    axes.legend(fontsize=8)


def _over_plan(count: int) -> Group:
    ratio = Measure(words="the mean step over the predicted one", values=lambda rows: _ratios(rows, count), digits=3)
    return Group("the ratio", ratio)


def _apart(rows: Rows) -> list[float]:
    ours, plan = map(best, _both(rows))
    return [float(abs(ours - plan))]


RULE = Rule(
    setting="of live runs on digits, 8 worker processes with lognormal delays that wait for the first N, on the "
    "clock of the wall; predicted is the mean step of simulated workers that take as long as those of the run of the "
    "same seed that waits for all 8, and finish what they began; and the engine's own time, measured without delays",
    parts=lambda scale: [
        *(
            Compare(ours=_over_plan(count), is_="as", theirs=1.0, by=MARGIN, at=f"N = {count}")
            for count in range(LEAST[scale], WORKERS[scale] + 1)
        ),
        Bound(
            words="the distance of the N with the shortest time to a target, where steps to it fall as "
            f"N^-{EXPONENT:g}, from the one that is predicted",
            values=_apart,
            most=1,
            digits=0,
        ),
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("0e81d499165a",),
    hours={"smoke": 0.04, "laptop": 0.5},
    runs=_runs,
    measure=_measure,
    timings=("step_seconds", "arrival_seconds", "durations"),
    findings=_findings,
    basis=lambda rows: ask.basis(rows, model="MLP in processes"),
    enough=lambda rows: bool(_counts(rows)),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
)
