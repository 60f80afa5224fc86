"""Local SGD whose averages come late, where workers have shares of the data: the accuracy at the end, by the delay."""

import dataclasses
import statistics

from experiments.claims.delayed_averaging.recipe import DELAYS, EVERY, LEARNED, MARK, RATES, WORKERS, recipe
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.findings import Quoted, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import ACCURACY, Compare, Group, Rule, ends_above
from experiments.study.run import Rows, Run, Scale, evaluations_of
from experiments.study.tuning import Tuned

ALPHA = 0.5
MARGIN = 0.5  # percentage points: the least difference that matters


def _recipe(scale: Scale, *, delay: int, rate: float) -> Run:
    run = recipe(scale, delay=delay, rate=rate)
    return dataclasses.replace(run, overrides={**run.overrides, "split.name": "dirichlet", "split.alpha": ALPHA})


TUNED = Tuned(
    points=lambda scale: [{"delay": delay} for delay in DELAYS],
    grid=lambda scale, point: RATES[scale],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 20},
    first=("data",),
)


def _with(delay: int) -> Group:
    return TUNED.group(f"delay {delay}", ACCURACY, delay=delay)


def _paper_table(rows: Rows) -> Table:
    quoted = Quoted("convergence rate of SGD", MARK)
    found = {delay: same for delay in DELAYS if (same := TUNED.tests(rows, delay=delay))}
    cells = {str(delay): [Cell(quoted, ask.accuracy(same))] for delay, same in found.items()}
    return paper_table.table("Delay (steps)", ["Test accuracy at the end"], cells) if cells else Table((), ())


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    for position, delay in enumerate(DELAYS):
        if same := TUNED.tests(rows, delay=delay):
            ends, colour = ask.accuracies(same), drawing.COLOURS[position]
            axes.plot([delay] * len(ends), ends, "o", color=colour, markersize=4, alpha=0.4, markeredgewidth=0)
            axes.plot([delay], [statistics.fmean(ends)], "_", color=colour, markersize=18, markeredgewidth=2)
    if same := TUNED.tests(rows, delay=0):
        middle = statistics.fmean(ask.accuracies(same)) - MARGIN
        axes.axhline(middle, linestyle=":", **drawing.REFERENCE, label=f"no delay less {MARGIN:g} points")
        axes.legend(fontsize=7)
    axes.set(xlabel="delay (steps)", ylabel="test accuracy at the end (%)", xticks=DELAYS)


RULE = Rule(
    setting=f"{TUNED.seeds['laptop']} seeds, {WORKERS} workers of Dirichlet ({ALPHA}) shares "
    f"that average their progress every {EVERY} steps and take the average so many steps late",
    needs=[ends_above(_with(0), LEARNED)],
    parts=lambda scale: [
        Compare(ours=_with(delay), is_="above", theirs=_with(0), by=-MARGIN, paired=True, refuted="reversed")
        for delay in DELAYS
        if delay
    ],
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    hours={"smoke": 0.05, "laptop": 0.4},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "accuracy"),
    paper_table=_paper_table,
    draw=_draw,
    inches=(4.5, 3.4),
)
