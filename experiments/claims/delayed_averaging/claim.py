"""Local SGD whose averages come late: the accuracy at the end, by how many steps late they are."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.claims.delayed_averaging.recipe import BATCH, DELAYS, EVERY, LEARNED, MARK, RATES, WORKERS, recipe
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    ACCURACY,
    Compare,
    Group,
    Rule,
    ends_above,
)
from experiments.study.run import Row, Rows, evaluations_of
from experiments.study.tuning import Tuned
from planning.network import Network, exposed

MARGIN = 0.25  # percentage points: the least difference that matters
LINK = Network(bytes_per_second=1e9 / 8)
RATIOS = (1, 2, 4, 8)  # of the link's time over a step's, for the figure


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations, what a worker sends in a communication, and the time of a worker's gradient."""
    fastest = max(record["examples_per_second"] for record in records if record["kind"] == "train")
    return {
        **evaluations_of("step", "epoch", "simulated_seconds", "accuracy", "sent_bytes")(records),
        "bytes_per_worker": records[-1]["bytes_per_worker"],
        "gradient_seconds": BATCH / fastest,
    }


TUNED = Tuned(
    points=lambda scale: [{"delay": delay} for delay in DELAYS],
    grid=lambda scale, point: RATES[scale],
    recipe=recipe,
    seeds={"smoke": 1, "laptop": 40},
    first=("data",),
)


def _found(rows: Rows) -> dict[int, list[Row]]:
    """Returns the reported rows of each delay that has some."""
    return {delay: same for delay in DELAYS if (same := TUNED.tests(rows, delay=delay))}


def _ends(rows: Rows, delay: int) -> list[float]:
    """Returns the accuracies at the end, in percent."""
    return ask.accuracies(TUNED.tests(rows, delay=delay))


def _times(rows: Rows) -> tuple[float, float]:
    """Returns the seconds of a communication over the link, and those of a worker's step as measured."""
    reported = TUNED.tests(rows)
    return LINK.seconds(reported[0]["bytes_per_worker"]), statistics.median(row["gradient_seconds"] for row in reported)


def _findings(rows: Rows) -> list[Finding]:
    if not _found(rows):
        return []
    link, step = _times(rows)
    hidden = math.ceil(link / step)
    within = f"{hidden} steps" if hidden <= EVERY else f"{hidden} steps, more than a round's {EVERY}"
    return [
        Finding("communication over 1 Gb/s (modelled: bytes of an all-reduce)", ours=f"{1e3 * link:.2f} ms"),
        Finding(
            "a worker's step (median of runs, fastest of ten laps; without a network)", ours=f"{1e3 * step:.2f} ms"
        ),
        Finding("least delay that hides all of the communication, by arithmetic", ours=within),
    ]


def _paper_table(rows: Rows) -> Table:
    quoted = {
        0: Quoted("local SGD", MARK),
        **dict.fromkeys(DELAYS[1:], Quoted("convergence rate of SGD, communication hidden", MARK)),
    }
    cells = {str(delay): [Cell(quoted[delay], ask.accuracy(same))] for delay, same in _found(rows).items()}
    return paper_table.table("Delay (steps)", ["Test accuracy at the end"], cells) if cells else Table((), ())


def _table(rows: Rows) -> Table:
    found = _found(rows)
    if not found:
        return Table((), ())
    link, step = _times(rows)
    cells = [
        [
            str(delay),
            f"{same[0]['rate']:g}",
            str(ask.accuracy(same)),
            str(Sample.of([ask.last(row, "simulated_seconds") / row["step"][-1] for row in same], digits=3)),
            f"{1e3 * exposed(link, step_seconds=step, every_steps=EVERY, delay_steps=delay):.2f}",
        ]
        for delay, same in found.items()
    ]
    header = [
        "Delay (steps)",
        "Rate",
        "Test accuracy at the end",
        "Simulated seconds of a step",
        "Exposed ms of a step",
    ]
    note = (
        "Simulated seconds are those of workers of which a step takes a lognormal second; a delay hides what they wait "
        f"for each other. Exposed is max(0, t_link - d t_step) / {EVERY} by arithmetic, with the times above."
    )
    return Table(header, cells, note)


def _draw(rows: Rows, figure: Figure) -> None:
    panels, found = figure.subplots(1, 2), _found(rows)
    for position, delay in enumerate(found):
        ends, colour = _ends(rows, delay), drawing.COLOURS[position]
        panels[0].plot([delay] * len(ends), ends, "o", color=colour, markersize=4, alpha=0.4, markeredgewidth=0)
        panels[0].plot([delay], [statistics.fmean(ends)], "_", color=colour, markersize=18, markeredgewidth=2)
    if 0 in found:
        middle = statistics.fmean(_ends(rows, 0)) - MARGIN
        panels[0].axhline(middle, linestyle=":", **drawing.REFERENCE, label=f"no delay less {MARGIN:g} points")
        panels[0].legend(fontsize=7)
    panels[0].set(xlabel="delay (steps)", ylabel="test accuracy at the end (%)", xticks=DELAYS)
    along = [EVERY * part / 16 for part in range(17)]
    for position, ratio in enumerate(RATIOS):
        waits = [max(0.0, ratio - delay) / EVERY for delay in along]
        colour = drawing.COLOURS[position]
        panels[1].plot(along, waits, color=colour, label=f"{ratio} step{'s'[: ratio > 1]}")
    panels[1].set(xlabel="delay (steps)", ylabel="waiting a step, in steps", xticks=DELAYS, title="by arithmetic")
    panels[1].set(ylim=(None, 1.3 * max(RATIOS) / EVERY))  # room for the legend
    panels[1].legend(fontsize=7, ncols=len(RATIOS), title="a communication takes", title_fontsize=7)


def _with(delay: int) -> Group:
    return TUNED.group(f"delay {delay}", ACCURACY, delay=delay)


RULE = Rule(
    setting=f"{TUNED.seeds['laptop']} seeds, {WORKERS} workers that average their progress every {EVERY} steps and "
    "take the average so many steps late",
    needs=[ends_above(_with(0), LEARNED)],
    parts=lambda scale: [
        Compare(ours=_with(delay), is_="above", theirs=_with(0), by=-MARGIN, refuted="reversed")
        for delay in DELAYS
        if delay
    ],
    remark="That communication is hidden is no part of the verdict: where a communication takes t_link and a step "
    "t_step, a worker waits max(0, t_link - d t_step) in each round, which is 0 from d = t_link / t_step on by "
    "construction.",
)


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("6efe30e87b15",),
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    hours={"smoke": 0.05, "laptop": 0.4},
    reduce=_reduce,
    timings=("gradient_seconds",),
    findings=_findings,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.5, 3.4),
)
