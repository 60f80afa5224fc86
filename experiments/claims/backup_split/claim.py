"""How many of 100 machines should be backups: steps to a target, time of a step, and their product."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import datasets, paper_table
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Group,
    Grows,
    Measure,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale, evaluations_of
from experiments.study.significance import ALPHA
from experiments.study.tuning import NAMED_STAGES, Score, Tuned
from planning import backups as planner
from planning import steps_to_target
from planning.step_times import LateWorkers

MACHINES = 100
SIZES = {"smoke": (50, 96, 100), "laptop": (50, 60, 70, 80, 82, 84, 86, 88, 90, 92, 94, 96, 98, 100)}
RATES = {"smoke": (0.2,), "laptop": (0.2, 0.28, 0.4)}  # of the mean gradient, not of one worker
TRAIN_STEPS = {"smoke": 120, "laptop": 800}
EVALUATE_EVERY = 10  # steps
TARGETS = {"mnist": 0.95, "digits": 0.9}  # accuracy; stated before the runs
FEW, MANY = (2, 10), 20  # backups that count as few, and as many
PAPER_SPLIT = Quoted("96 + 4", "READ-2nd")
PAPER_STEPS = {50: Quoted("about 137.5e3", "MEM med-hi"), 100: Quoted("about 76.2e3", "MEM med-hi")}
PANELS = {
    "step": "steps to the target",
    "step_seconds": "simulated time of a step (s)",
    "simulated_seconds": "simulated time to the target (s)",
}


class Law(NamedTuple):
    """Steps to the target as a power of the gradients a step, ``steps * (N / 100) ** -exponent``.

    Attributes:
      exponent: the estimate.
      low, high: its 95 % confidence interval.
      steps: steps with all machines.
    """

    exponent: float
    low: float
    high: float
    steps: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} [{self.low:.2f}, {self.high:.2f}]"


def _recipe(scale: Scale, *, num_required: int, rate: float) -> Run:
    data = datasets.image_set(scale)
    overrides = {
        **data,
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.momentum": 0.0,
        "optimizer.learning_rate": rate,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "reducer.name": "backup_workers",
        "reducer.num_required": num_required,
        "arrivals.name": "paper_cluster",
        "num_workers": MACHINES,
        "batch_size_per_worker": 1,
        "train_steps": TRAIN_STEPS[scale],
        "eval_every_steps": EVALUATE_EVERY,
        "log_every_steps": 50,
        "checkpoint_every_steps": TRAIN_STEPS[scale],
        "ema_decay": 0.98,
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist.py", overrides=overrides)


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
    runs, finished = TUNED.runs(scale, rows), {row.get("run") for row in rows}
    if not all(run.name in finished for run in runs) or not _all_reach(rows):
        return runs
    law = _law(rows)
    fitted = {"exponent": round(law.exponent, 3), "steps_of_all": round(law.steps, 1)}
    plan = {"stage": "plan", "late_workers": "finish", **fitted}
    return [*runs, Run(labels=plan)]


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


def _to_target(row: Row, along: str) -> float:
    return ask.first_at(row, TARGETS[row["data"]], of="accuracy", along=along)


def _all_reach(rows: Rows) -> bool:
    is_whole_scale = any(set(sizes) <= set(_sizes(rows)) for sizes in SIZES.values())
    return is_whole_scale and all(math.isfinite(_to_target(row, "step")) for row in TUNED.tests(rows))


def _sizes(rows: Rows) -> list[int]:
    return ask.distinct(TUNED.tests(rows), "num_required")


def _of(rows: Rows, num_required: int, quantity: str) -> Sample:
    """Returns step, simulated_seconds (both to the target) or step_seconds with N gradients a step, over seeds."""
    found = TUNED.tests(rows, num_required=num_required)
    if quantity == "step_seconds":
        return Sample.of([ask.last(row, "simulated_seconds") / ask.last(row, "step") for row in found], digits=2)
    return Sample.of([_to_target(row, quantity) for row in found], digits=0)


def _law(rows: Rows) -> Law:
    """Fits the power law to the mean steps of the sizes, by least squares of the logarithms.

    The interval is Student's, of the exponents that are fitted to each seed alone. All sizes share the seeds, so that
    their steps are high or low together: how far the means lie from the law says too little of that.
    """
    from scipy import stats

    sizes = _sizes(rows)
    steps = [_of(rows, n, "step").mean for n in sizes]
    slope, intercept = np.polyfit(np.log(np.array(sizes) / MACHINES), np.log(steps), 1)
    by_seed = _exponents(rows)
    wide = stats.t.ppf(1 - ALPHA / 2, by_seed.n - 1) * by_seed.std / math.sqrt(by_seed.n) if by_seed.n > 1 else math.nan
    return Law(float(-slope), float(-slope - wide), float(-slope + wide), float(np.exp(intercept)))


def _exponents(rows: Rows) -> Sample:
    """Returns the exponent that is fitted to each seed's steps alone, over seeds."""
    found = []
    for seed in ask.distinct(TUNED.tests(rows), "seed"):
        same = ask.select(TUNED.tests(rows), seed=seed)
        sizes, steps = zip(*[(row["num_required"], _to_target(row, "step")) for row in same], strict=True)
        found.append(float(-np.polyfit(np.log(sizes), np.log(steps), 1)[0]))
    return Sample.of(found, digits=2)


def _best(rows: Rows) -> int:
    return min(_sizes(rows), key=lambda n: _of(rows, n, "simulated_seconds").mean)


def _planned_best(planned: Row, exponent: float) -> int:
    """Returns the best N at an exponent, by the planner's times of a step."""
    seconds = np.array(planned["planned_step_seconds"])
    return int(np.argmin(seconds * np.arange(1, MACHINES + 1) ** -exponent)) + 1


def _steps_by_seed(rows: Rows) -> list[list[float]]:
    """Returns each seed's steps to the target, from all gradients a step to the fewest."""
    tests = TUNED.tests(rows)
    return [
        [_to_target(row, "step") for row in sorted(ask.select(tests, seed=seed), key=lambda row: -row["num_required"])]
        for seed in ask.distinct(tests, "seed")
    ]


def _seconds_by_seed(rows: Rows, sizes: Sequence[int]) -> list[float]:
    """Returns each seed's time to the target, averaged over some sizes."""
    tests = [row for row in TUNED.tests(rows) if row["num_required"] in sizes]
    return [
        statistics.fmean(_to_target(row, "simulated_seconds") for row in ask.select(tests, seed=seed))
        for seed in ask.distinct(tests, "seed")
    ]


def _findings(rows: Rows) -> list[Finding]:
    if not _all_reach(rows):
        return []
    law, best, first, planned = _law(rows), _best(rows), _sizes(rows)[0], ask.select(rows, stage="plan")
    plan = "not planned yet"
    if planned:
        plan = _split(planned[0]["best"])
        ends = [_split(_planned_best(planned[0], end)) for end in (law.low, law.high) if math.isfinite(end)]
        if ends:
            plan += f"; {' and '.join(ends)} at the ends of the exponent's interval"
    fewer = _of(rows, first, "step").mean / _of(rows, MACHINES, "step").mean
    gain = _of(rows, MACHINES, "simulated_seconds").mean / _of(rows, best, "simulated_seconds").mean
    seconds = {n: _of(rows, n, "step_seconds").mean for n in (first, 96, MACHINES)}
    by_planner = "best split by `planning.backups`, from the fitted law and the arrival model"
    all_waited_for = "time to the target, all 100 waited for over the best split"
    model = "by construction of the arrival model"
    return [
        Finding("exponent of steps ~ N^-exponent", paper=Quoted("0.85", "DERIVED from MEM med-hi"), ours=str(law)),
        Finding("the same, fitted to each seed alone", ours=_exponents(rows)),
        Finding(
            f"steps with N = {first} over those with 100",
            paper=Quoted("about 1.8 (137.5e3 over 76.2e3)", "MEM med-hi"),
            ours=f"{fewer:.2f}",
        ),
        Finding("best split, by mean simulated time to the target", paper=PAPER_SPLIT, ours=_split(best)),
        Finding(by_planner, paper=PAPER_SPLIT, ours=plan),
        Finding(all_waited_for, ours=f"{gain:.2f}"),
        Finding(f"time of a step, N = 96 over {first}; {model}", ours=f"{seconds[96] / seconds[first]:.2f}"),
        Finding(f"time of a step, N = 100 over 96; {model}", ours=f"{seconds[MACHINES] / seconds[96]:.2f}"),
    ]


def _split(num_required: int) -> str:
    return f"{num_required} + {MACHINES - num_required}"


def _paper_table(rows: Rows) -> Table:
    if not _all_reach(rows):
        return Table((), ())
    least = Quoted("least of all", "READ-2nd")
    cells = {
        _split(n): [
            Cell(PAPER_STEPS.get(n), _of(rows, n, "step")),
            Cell(ours=_of(rows, n, "step_seconds")),
            Cell(least if n == 96 else None, _of(rows, n, "simulated_seconds")),
        ]
        for n in _sizes(rows)
    }
    return paper_table.table("N + b", list(PANELS.values()), cells, note="The paper's figure of three panels.")


def _table(rows: Rows) -> Table:
    cells, planned = [], ask.select(rows, stage="plan")
    for n in _sizes(rows) if _all_reach(rows) and planned else ():
        step = f"{planned[0]['planned_step_seconds'][n - 1]:.2f}"
        cells.append([str(n), str(MACHINES - n), step, f"{planned[0]['planned_target_seconds'][n - 1]:,.0f}"])
    return Table(["N", "b", "s per step, planned", "s to the target, planned"], cells, "By `planning.backups`.")


def _draw(rows: Rows, figure: Figure) -> None:
    if not _all_reach(rows):
        return
    sizes, planned = _sizes(rows), ask.select(rows, stage="plan")
    panels = figure.subplots(1, 3)
    for axes, (quantity, label) in zip(panels, PANELS.items(), strict=True):
        samples = [_of(rows, n, quantity) for n in sizes]
        drawing.band(axes, sizes, samples, position=0, label="ours, mean and deviation of seeds")
        axes.set(xlabel="gradients a step, N", ylabel=label)
    every = np.arange(sizes[0], MACHINES + 1)
    look = {**drawing.look(1), "marker": "", "linewidth": 1.2, "label": "planned"}
    if planned:
        law = planned[0]["steps_of_all"] * (every / MACHINES) ** -planned[0]["exponent"]
        panels[0].plot(every, law, **look | {"label": f"fit, $N^{{-{planned[0]['exponent']:.2f}}}$"})
        panels[1].plot(every, np.array(planned[0]["planned_step_seconds"])[every - 1], **look)
        panels[2].plot(every, np.array(planned[0]["planned_target_seconds"])[every - 1], **look)
        best = _best(rows)
        panels[2].axvline(best, ymax=0.8, linestyle=":", label=f"best: {_split(best)}", **drawing.REFERENCE)
    panels[0].set_ylim(0, None)
    for axes in panels[1:]:
        axes.set_yscale("log")
        drawing.plain_numbers(axes.yaxis)
    for axes in panels:
        axes.legend(fontsize=7)


def _taking(name: str, least: int, most: int) -> Group:
    """Returns the splits with so many backups, as the mean over them of each seed's time to the target."""

    def seconds(rows: Rows) -> list[float]:
        return _seconds_by_seed(rows, [n for n in _sizes(rows) if least <= MACHINES - n <= most])

    return Group(name, Measure(words="simulated time to the target", values=seconds, unit="s", digits=0))


SOME = _taking(f"{FEW[0]} to {FEW[1]} backups", *FEW)
RULE = Rule(
    setting=f"averaged over splits of {MACHINES} machines, {TUNED.seeds['laptop']} seeds; the target is test accuracy "
    "95 % on MNIST, 90 % on digits",
    needs=[
        Need(
            "a run does not reach the target",
            lambda rows: "" if _all_reach(rows) else "Not all runs reach the target.",
        )
    ],
    parts=lambda scale: [
        Grows(
            words="the steps to the target grow as a step waits for fewer gradients",
            by_run=_steps_by_seed,
            digits=0,
        ),
        Compare(ours=SOME, is_="below", theirs=_taking("no backups", 0, 0), paired=True),
        Compare(ours=SOME, is_="below", theirs=_taking(f"{MANY} or more", MANY, MACHINES), paired=True),
    ],
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("657daeee19f0",),
    model="MLP of 64 hidden units",
    hours={"smoke": 0.05, "laptop": 0.6},
    runs=_runs,
    reduce=evaluations_of("step", "simulated_seconds", "accuracy"),
    measure=_measure,
    findings=_findings,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(9.5, 3.2),
)
