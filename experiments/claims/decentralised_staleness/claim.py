"""Asynchronous SGD without a server: whether steps to a target follow the average staleness or the largest."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Condition,
    Group,
    Grows,
    Measure,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale, evaluations_of
from experiments.study.tuning import Score, Tuned

WORKERS = 8
FACTOR = 5.0  # how many times as long the slow worker takes
LATENCIES = (0.0, 0.5, 2.0)  # of a message, in median durations of a gradient, which is a second
ALIKE, SLOW = "alike", "one slow"
ARRIVALS: Mapping[str, Mapping[str, Any]] = {
    ALIKE: {"arrivals.name": "lognormal"},
    SLOW: {"arrivals.name": "slow_workers", "arrivals.num_slow": 1, "arrivals.factor": FACTOR},
}
LABELS = {ALIKE: "all workers alike", SLOW: f"one worker {FACTOR:g} times as slow"}
MARGIN = 0.1  # of the steps, and of S_avg and S_max: differences up to it count as none
LEAST_COMPARED = 2  # latencies
TARGETS = {"mnist": 0.92, "digits": 0.9}  # accuracy; stated before the runs
MARK = "MEM: abstract"


class Map(NamedTuple):
    """The runs of a scale.

    Attributes:
      rates: learning rates that are tried at first.
      steps: length of a run; each step is the update of one worker.
      every: steps between evaluations.
      seeds: runs of each cell.
    """

    rates: tuple[float, ...]
    steps: int
    every: int
    seeds: int


MAPS: Mapping[Scale, Map] = {
    "smoke": Map((0.02, 0.05), steps=160, every=20, seeds=1),
    "laptop": Map((0.005, 0.01, 0.02, 0.04), steps=5000, every=50, seeds=44),
}


def _points(scale: Scale) -> list[dict[str, Any]]:
    del scale
    return [{"latency": latency, "workers": workers} for workers in ARRIVALS for latency in LATENCIES]


def _recipe(scale: Scale, *, latency: float, workers: str, rate: float) -> Run:
    data, sizes = datasets.image_set(scale), MAPS[scale]
    overrides = {
        **data,
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.momentum": None,
        "optimizer.learning_rate": rate,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "server.name": "decentralised",
        "server.latency_seconds": latency,
        **ARRIVALS[workers],
        "num_workers": WORKERS,
        "batch_size_per_worker": 4,
        "train_steps": sizes.steps,
        "eval_every_steps": sizes.every,
        "log_every_steps": sizes.steps // 4,
        "checkpoint_every_steps": sizes.steps,
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist.py", overrides=overrides, cost=1 + latency / 8)


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the accuracies of a run, and the average and the largest staleness of all of its gradients."""
    found = evaluations_of("step", "simulated_seconds", "accuracy", "staleness_mean", "staleness_max")(records)
    return {key: values[-1] if key.startswith("staleness") else values for key, values in found.items()}


def _target(rows: Rows) -> float:
    return TARGETS[rows[0]["data"]]


TUNED = Tuned(
    points=_points,
    grid=lambda scale, point: MAPS[scale].rates,
    recipe=_recipe,
    seeds={scale: sizes.seeds for scale, sizes in MAPS.items()},
    first_seeds={"laptop": 30},
    score=Score(target=_target, along="step"),
    tuned_at=lambda scale, point: {"latency": 0.0, "workers": ALIKE},
    first=("data",),
)


def _cell(rows: Rows, latency: float, workers: str) -> list[Row]:
    """Returns the reported rows of a cell, by seed."""
    return TUNED.tests(rows, latency=latency, workers=workers)


def _both(rows: Rows) -> dict[float, tuple[list[Row], list[Row]]]:
    """Returns, for each latency at which both have rows, those with workers alike and with a slow one."""
    cells = TUNED.reported(rows)
    return {
        latency: (cells[latency, ALIKE], cells[latency, SLOW])
        for latency in LATENCIES
        if (latency, ALIKE) in cells and (latency, SLOW) in cells
    }


def _reached(rows: Rows) -> list[bool]:
    return [math.isfinite(ask.first_at(row, _target(rows), of="accuracy")) for row in rows]


def _steps(rows: Rows) -> list[float]:
    """Returns each run's steps to the target; those of the whole run where it does not get there."""
    return [min(ask.first_at(row, _target(rows), of="accuracy"), float(row["step"][-1])) for row in rows]


def _steps_in_words(rows: Rows) -> Sample | str:
    reached = _reached(rows)
    if not all(reached):
        return f"{sum(reached)} of {len(reached)} runs get there in {rows[0]['step'][-1]:,}"
    return Sample.of(_steps(rows), digits=0)


def _staleness(rows: Rows, of: str) -> Sample:
    return Sample.of([row[f"staleness_{of}"] for row in rows], digits=1)


def _ratio(ours: Rows, theirs: Rows, of: str) -> float:
    """Returns the mean of ours over that of theirs: of steps, or of the "mean" or "max" staleness of runs."""
    one, other = (
        _steps(rows) if of == "steps" else [row[f"staleness_{of}"] for row in rows] for rows in (ours, theirs)
    )
    return statistics.fmean(one) / statistics.fmean(other)


def _longer(alike: Rows, slow: Rows) -> str:
    """Returns the steps to the target with a slow worker over those without, and who does not get there."""
    reached = {"with": _reached(slow), "without": _reached(alike)}
    told = ", ".join(
        f"{runs.count(False)} of {len(runs)} runs {name} it do not get there"
        for name, runs in reached.items()
        if not all(runs)
    )
    return f"{_ratio(slow, alike, 'steps'):.2f}{told and f' ({told})'}"


def _is_compared(alike: Rows, slow: Rows) -> bool:
    """Returns whether the steps of a latency test the claim: they are known, and S_max differs while S_avg does not."""
    near = {of: abs(_ratio(slow, alike, of) - 1) <= MARGIN for of in ("mean", "max")}
    return near["mean"] and not near["max"] and all(_reached(alike))


def _aim(rows: Rows) -> str:
    return f"{100 * _target(rows):g} %"


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for latency, (alike, slow) in _both(rows).items():
        more = statistics.fmean(_seconds(slow)) / statistics.fmean(_seconds(alike))
        other = math.sqrt(_ratio(slow, alike, "mean") * _ratio(slow, alike, "max"))
        where = f"one worker slow over all alike, latency {latency:g}"
        found += [
            Finding(f"sqrt(S_avg S_max), which bounds steps if gradients are unbounded, {where}", ours=f"{other:.2f}"),
            Finding(f"simulated time of an update, {where}; by construction of the arrival model", ours=f"{more:.2f}"),
        ]
    return found


def _seconds(rows: Rows) -> list[float]:
    """Returns the simulated time of an update in each run."""
    return [ask.last(row, "simulated_seconds") / ask.last(row, "step") for row in rows]


def _paper_table(rows: Rows) -> Table:
    as_average = Quoted("as S_avg, if gradients are bounded", MARK)
    cells = {
        f"{latency:g}": [
            Cell(ours=f"{_ratio(slow, alike, 'mean'):.2f}"),
            Cell(ours=f"{_ratio(slow, alike, 'max'):.2f}"),
            Cell(as_average, _longer(alike, slow)),
        ]
        for latency, (alike, slow) in _both(rows).items()
    }
    note = (
        "With one worker slow over all alike; latencies in median durations of a gradient. The paper proves rates: "
        "O(sigma / eps^2) + O(Q S_avg / eps^1.5) + O(S_avg / eps) for gradients bounded by Q, and with "
        f"sqrt(S_avg S_max) / eps without the bound [{MARK}]."
    )
    columns = ["S_avg", "S_max", f"steps to {_aim(rows)}"]
    return paper_table.table("Latency (durations)", columns, cells, note=note) if cells else Table((), ())


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (of, name) in zip(panels, {"mean": "average", "max": "largest"}.items(), strict=True):
        for position, workers in enumerate(ARRIVALS):
            cells = [same for latency in LATENCIES if (same := _cell(rows, latency, workers))]
            xs = [_staleness(same, of).mean for same in cells]
            samples = [Sample.of(_steps(same)) for same in cells]
            if cells:
                drawing.band(axes, xs, samples, position=position, label=LABELS[workers])
        axes.set(xlabel=f"{name} staleness (updates)", xlim=(0, None), ylim=(0, None))
    panels[0].set_ylabel(f"steps to {_aim(rows)}")
    if panels[0].lines:
        panels[0].legend(fontsize=8, loc="lower right")


STEPS = Measure(words="steps (updates of one worker) to the target", values=_steps, digits=0)


def _group(latency: float, workers: str) -> Group:
    return TUNED.group(LABELS[workers], STEPS, latency=latency, workers=workers)


def _tests_claim(latency: float) -> Condition:
    """Returns the condition under which the steps of a latency are compared."""
    return Condition(
        f"all runs with workers alike get there, and the slow worker changes the mean of S_avg by at most {MARGIN:.0%} "
        "and that of S_max by more",
        lambda rows: latency in (both := _both(rows)) and _is_compared(*both[latency]),
    )


def _too_few(rows: Rows) -> str:
    both = _both(rows)
    compared = sum(_is_compared(*pair) for pair in both.values())
    words = (
        f"Only at {compared} of {len(both)} latencies do all runs with workers alike reach {_aim(rows)}, with an "
        "average staleness that the slow worker leaves as it is and a largest one that it does not."
    )
    return "" if compared >= LEAST_COMPARED else words


def _along_latency(rows: Rows, workers: str) -> list[tuple[float, ...]]:
    return list(zip(*(_steps(_cell(rows, latency, workers)) for latency in LATENCIES), strict=True))


RULE = Rule(
    setting=f"{MAPS['laptop'].seeds} seeds, {WORKERS} workers, one constant learning rate; the target is test accuracy "
    "92 % on MNIST, 90 % on digits, and a run that does not get there counts as if it did at its end; S_avg and S_max "
    "are the average and the largest staleness of a run, and latencies are in median durations of a gradient",
    needs=[Need(f"fewer than {LEAST_COMPARED} latencies are compared", _too_few)],
    parts=lambda scale: [
        *(
            Compare(
                ours=_group(latency, SLOW),
                is_="as",
                theirs=_group(latency, ALIKE),
                by=MARGIN,
                share=True,
                at=f"latency {latency:g}",
                refuted="beyond",
                where=_tests_claim(latency),
            )
            for latency in LATENCIES
        ),
        *(
            Grows(
                words="the steps grow with the latency, along which S_avg grows",
                by_run=functools.partial(_along_latency, workers=workers),
                digits=0,
                at=LABELS[workers],
            )
            for workers in ARRIVALS
        ),
    ],
)
COLUMNS: Mapping[str, Any] = {
    "S_avg": lambda same: _staleness(same, "mean"),
    "S_max": lambda same: _staleness(same, "max"),
    "Steps to the target": _steps_in_words,
    "Test accuracy at the end": ask.accuracy,
}


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    columns=COLUMNS,
    hours={"smoke": 0.02, "laptop": 0.35},
    reduce=_reduce,
    findings=_findings,
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.5, 3.4),
)
