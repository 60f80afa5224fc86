"""The steps to a target on 16 machines, and the best method, as planned from runs on 1, 2, 4 and 8 machines."""

import functools
import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import Bound, Need, Rule
from experiments.study.run import Row, Rows, Run, Scale, evaluations_of
from planning import choose
from planning.sources import Run as Known
from reducers import arrivals

LEARNED, HELD_OUT = (1, 2, 4, 8), 16
SIZES = (*LEARNED, HELD_OUT)
EVERY = 8  # H
TARGETS = {"mnist": 0.32, "digits": 0.6}  # test loss
NEAR, WORSE = 25.0, 1.2  # % of the steps; times the best time
ARRIVALS: Mapping[str, Mapping[str, Any]] = {
    "lognormal": {"median_seconds": 1.0, "sigma": 0.5},
    "shifted_exponential": {"shift_seconds": 1.0, "scale_seconds": 0.5},
    "pareto": {"least_seconds": 1.0, "alpha": 3.0},
}
METHODS: Mapping[str, Mapping[str, Any]] = {
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
LONG, LONG_STEPS = "long", 6000  # the run whose loss is the best one
NAMES = {"mean": "mean", "sum": "sum", "local_sgd": f"local SGD, H = {EVERY}", "asynchronous": "asynchronous"}
SEEDS: Mapping[Scale, int] = {"smoke": 1, "laptop": 3}
STEPS_DRAWN = 4000  # of the arrival models, a multiple of EVERY
MARK = "READ: abstract, arXiv 1702.05865"


def _run(scale: Scale, method: str, num_workers: int, model: str, seed: int) -> Run:
    data = datasets.image_set(scale)
    own = dict(METHODS["mean" if method == LONG else method])
    steps = LONG_STEPS if method == LONG else own["train_steps"]
    steps = steps // 20 if scale == "smoke" else steps
    own |= {"train_steps": steps, "log_every_steps": steps, "checkpoint_every_steps": steps}
    common = {
        **data,
        "model.name": "softmax",
        "optimizer.momentum": 0.0,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "batch_size_per_worker": 32,
        "num_workers": num_workers,
        "arrivals.name": model,
        "train_epochs": None,
        "eval_every_steps": 20 * (10 if method == LONG else 1),
        "seed": seed,
    }
    times = {f"arrivals.{key}": value for key, value in ARRIVALS[model].items()}
    labels = {"method": method, "num_workers": num_workers, "arrivals": model, "data": data["data.name"], "seed": seed}
    cost = steps * (1 if method == "asynchronous" else num_workers) / 4000 + 5
    overrides = common | times | own
    return Run(labels=labels, spec="configs/mnist.py", overrides=overrides, flags={"num_devices": 1}, cost=cost)


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the runs: synchronous ones with one arrival model, as its times do not change what they learn."""
    del rows
    first = next(iter(ARRIVALS))
    cases = [
        (method, n, model, seed)
        for seed in range(SEEDS[scale])
        for method in METHODS
        for n in SIZES
        for model in (ARRIVALS if method == "asynchronous" else (first,))
    ]
    return [_run(scale, *case) for case in [(LONG, 8, first, 0), *cases]]


@functools.cache
def _drawn(num_workers: int, model: str) -> np.ndarray:
    """Returns the seconds of each worker's step under an arrival model, [T, W]."""
    made = arrivals.make(model, **ARRIVALS[model])
    return np.asarray(arrivals.sample(made, jax.random.key(0), num_workers=num_workers, num_steps=STEPS_DRAWN))


@functools.cache
def step_seconds(method: str, num_workers: int, model: str) -> float:
    """Returns the mean seconds of a synchronous step under an arrival model, without messages."""
    length = EVERY if method == "local_sgd" else 1
    rounds = _drawn(num_workers, model).reshape(-1, length, num_workers).sum(axis=1, dtype=np.float64)
    return float(rounds.max(axis=1).mean() / length)


def _by_seed(rows: Rows) -> list[Rows]:
    """Returns the rows of each seed that has runs of all methods, each with the long run."""
    seeds = [
        [row for row in rows if row["seed"] == seed or row["method"] == LONG] for seed in ask.distinct(rows, "seed")
    ]
    return [own for own in seeds if {row["method"] for row in own} == {LONG, *METHODS}]


def _row(rows: Rows, method: str, num_workers: int, model: str) -> Row | None:
    at = {"arrivals": model} if method == "asynchronous" else {}
    return next(iter(ask.select(rows, method=method, num_workers=num_workers, **at)), None)


def _seconds(row: Row, model: str) -> float:
    """Returns the seconds of a step of a run under an arrival model."""
    if row["method"] == "asynchronous":
        return row["simulated_seconds"][-1] / row["step"][-1]
    return step_seconds(row["method"], row["num_workers"], model)


def _best(rows: Rows) -> float:
    return min(ask.select(rows, method=LONG)[0]["loss"])


def _steps(rows: Rows, method: str, num_workers: int, model: str) -> float:
    """Returns the steps that a run needs to the target."""
    row = _row(rows, method, num_workers, model)
    return math.inf if row is None else ask.first_at(row, TARGETS[row["data"]], of="loss", along="step", mode="min")


def _plan(rows: Rows, model: str) -> list[choose.Choice]:
    """Returns what is planned from the runs on small clusters, the best first."""
    known = {method: [row for n in LEARNED if (row := _row(rows, method, n, model)) is not None] for method in METHODS}
    runs = tuple(
        (method, row["num_workers"], tuple(row["step"]), tuple(row["loss"]), _seconds(row, model))
        for method, own in known.items()
        for row in own
    )
    return _planned(runs, _best(rows), TARGETS[rows[0]["data"]])


@functools.lru_cache(maxsize=32)
def _planned(runs: tuple[Any, ...], best: float, target: float) -> list[choose.Choice]:
    by_method: dict[str, list[Known]] = {}
    for method, n, steps, losses, seconds in runs:
        known = Known(f"{method}, {n} machines", {}, n, np.array(steps), np.array(losses), seconds)
        by_method.setdefault(method, []).append(known)
    laws = {method: choose.fit(own, best=best, num_refits=0) for method, own in by_method.items() if len(own) > 1}
    return choose.to_target(laws, SIZES, gap=target - best, best=best)


def _misses(rows: Rows, model: str) -> dict[str, tuple[float, float, float]]:
    """Returns planned and needed steps on 16 machines, and by how much the plan misses, in percent, by method."""
    planned = {one.method: one.steps for one in _plan(rows, model) if one.machines == HELD_OUT}
    found = {}
    for method in METHODS:
        ours, theirs = planned.get(method, math.inf), _steps(rows, method, HELD_OUT, model)
        found[method] = (ours, theirs, 100 * abs(ours / theirs - 1))
    return found


def _median_miss(rows: Rows, model: str) -> float:
    return statistics.median(miss for *_, miss in _misses(rows, model).values())


def _times(rows: Rows, model: str) -> dict[tuple[str, int], float]:
    """Returns the seconds to the target of each method on each number of machines, as its run has them."""
    found = {}
    for method in METHODS:
        for n in SIZES:
            if (row := _row(rows, method, n, model)) is not None:
                found[method, n] = _steps(rows, method, n, model) * _seconds(row, model)
    return found


def _ratio(rows: Rows, model: str) -> float:
    """Returns the time of what the plan chooses over that of the best."""
    plan, times = _plan(rows, model), _times(rows, model)
    return times.get((plan[0].method, plan[0].machines), math.inf) / min(times.values()) if plan else math.inf


def _findings(rows: Rows) -> list[Finding]:
    found = [Finding("best loss, of the long run", ours=f"{_best(rows):.4f}")]
    quoted = Quoted("they tell method and cluster size", MARK)
    for model in ARRIVALS:
        words = []
        for own in _by_seed(rows):
            plan, times = _plan(own, model), _times(own, model)
            best = min(times, key=times.__getitem__)
            planned = f"{NAMES[plan[0].method]} on {plan[0].machines}" if plan else "none"
            words.append(f"{planned}; the best is {NAMES[best[0]]} on {best[1]}")
        ratios = Sample.of([_ratio(own, model) for own in _by_seed(rows)], digits=2)
        found.append(Finding(f"chosen under {model} times", ours="; ".join(dict.fromkeys(words)), paper=quoted))
        found.append(Finding(f"its time over that of the best, {model}", ours=ratios))
    return found


def _paper_table(rows: Rows) -> Table:
    cells = {}
    for model in ARRIVALS:
        misses = Sample.of([_median_miss(own, model) for own in _by_seed(rows)], digits=1, unit="%")
        ratios = Sample.of([_ratio(own, model) for own in _by_seed(rows)], digits=2)
        cells[model] = [Cell(Quoted("the two models tell", MARK), misses), Cell(ours=ratios)]
    columns = [f"median error of the steps on {HELD_OUT} machines", "time of the choice over the best"]
    return paper_table.table("Arrival times", columns, cells)


def _table(rows: Rows) -> Table:
    cells = []
    for model in ARRIVALS:
        for method in METHODS:
            needs = [[_steps(own, method, n, model) for own in _by_seed(rows)] for n in SIZES]
            planned, _, misses = zip(*(_misses(own, model)[method] for own in _by_seed(rows)), strict=True)
            means = [f"{statistics.fmean(steps):.0f}" for steps in (*needs, planned)]
            cells.append([model, NAMES[method], *means, f"{statistics.fmean(misses):.0f} %"])
    header = ["Arrival times", "Method", *(f"Steps on {n}" for n in SIZES), f"Planned on {HELD_OUT}", "Missed by"]
    return Table(header, cells, "Steps to the target, means over seeds; inf where a run does not get there.")


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, len(ARRIVALS), sharey=True)
    for axes, model in zip(panels, ARRIVALS, strict=True):
        for place, own in enumerate(_by_seed(rows)):
            plan, times = _plan(own, model), _times(own, model)
            for position, method in enumerate(METHODS):
                look = drawing.look(position) | {"linestyle": "none", "alpha": 0.6, "markersize": 5}
                planned = dict(sorted((one.machines, one.seconds) for one in plan if one.method == method))
                needed = {n: times[method, n] for n in SIZES if math.isfinite(times.get((method, n), math.inf))}
                label = "" if place else NAMES[method]
                axes.plot(list(planned), list(planned.values()), color=look["color"], linewidth=1, label=label)
                axes.plot(list(needed), list(needed.values()), **look)
        axes.axvspan(LEARNED[-1] * 1.2, HELD_OUT * 1.2, color="#999999", alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="machines")
        axes.set_title(model, fontsize=9)
        drawing.ticks(axes, {n: str(n) for n in SIZES})
    panels[0].set(ylabel="seconds to the target (lines: planned)")
    drawing.legend_below(figure, panels[0], columns=4)


def _unreached(rows: Rows) -> str:
    for own, model, method in itertools.product(_by_seed(rows), ARRIVALS, METHODS):
        if not math.isfinite(_steps(own, method, HELD_OUT, model)):
            return f"The target is not reached by {NAMES[method]} on {HELD_OUT} machines, {model} times."
    return ""


def _bounds(model: str) -> list[Bound]:
    return [
        Bound(
            words=f"the median over methods by which the planned steps on {HELD_OUT} machines miss, {model} times,",
            values=lambda rows: [_median_miss(own, model) for own in _by_seed(rows)],
            most=NEAR,
            unit="%",
            digits=1,
        ),
        Bound(
            words=f"the time of what the plan chooses over that of the best, {model} times,",
            values=lambda rows: [_ratio(own, model) for own in _by_seed(rows)],
            most=WORSE,
        ),
    ]


RULE = Rule(
    setting=f"test loss {TARGETS['mnist']} on MNIST, {TARGETS['digits']} on digits, planned from 1 to 8 machines",
    needs=[Need(f"a run on {HELD_OUT} machines does not reach the target", _unreached)],
    parts=lambda scale: [bound for model in ARRIVALS for bound in _bounds(model)],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    hours={"smoke": 0.05, "laptop": 0.25},
    runs=_runs,
    reduce=evaluations_of("step", "loss", "simulated_seconds"),
    findings=_findings,
    basis=lambda rows: ask.basis(rows, model="softmax regression"),
    enough=lambda rows: bool(_by_seed(rows)),
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.2, 3.4),
)
