"""Robust rules where each worker has two classes alone and nobody sends garbage: each tuned, beside the mean."""

import statistics
from typing import Any

from experiments.claims.byzantine_workers.rules import CHANCE, LEARNED, RATES, RULES, WORKERS, common
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study.comparison import Comparison
from experiments.study.findings import Quoted, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import Compare, Rule, ends_above
from experiments.study.run import Rows, Scale

LOST = 5.0  # percentage points
LOSE = ("krum", "geometric_median", "coordinate_median")
SHOWN = ("trimmed_mean", "multi_krum", "adasum", "mgda", "upgrad")
MARK = "MEM, arXiv 2006.09365; on MNIST"
PAPER = {
    "mean": Quoted("about 99 %", MARK),
    "krum": Quoted("about 82 %", MARK),
    "geometric_median": Quoted("about 85 %", MARK),
    "coordinate_median": Quoted("about 80 %", MARK),
}


def _common(scale: Scale) -> dict[str, Any]:
    split = {"split.name": "by_label", "split.labels_per_worker": 2}
    return {**common(scale), **split}


COMPARISON = Comparison(
    spec="configs/digits.py",
    methods={
        name: {"reducer.name": name, **{f"reducer.{key}": value for key, value in RULES[name].items()}}
        for name in ("mean", *LOSE, *SHOWN)
    },
    common=_common,
    rates=RATES,
    model=f"MLP of the config, {WORKERS} workers",
    target={"digits": 0.95},
    picked_by="end",
    floor=CHANCE,
    seeds={"smoke": 1, "laptop": 10},
)


def _paper_table(rows: Rows) -> Table:
    cells = {
        name: [Cell(PAPER.get(name), str(COMPARISON.accuracy(rows, name)))]
        for name in COMPARISON.methods
        if COMPARISON.final(rows, name)
    }
    return paper_table.table("Combined by", ["Test accuracy"], cells)


def _draw(rows: Rows, figure: "Figure") -> None:
    """Draws the accuracy of each seed at the end, by rule."""
    axes = figure.subplots()
    names = [name for name in COMPARISON.methods if COMPARISON.final(rows, name)]
    for place, name in enumerate(names):
        colour = drawing.COLOURS[0] if name in LOSE else drawing.REFERENCE["color"]
        ends = COMPARISON.ends(rows, name)
        axes.plot(ends, [place] * len(ends), "o", color=colour, markersize=5, alpha=0.5, markeredgewidth=0)
        axes.plot([statistics.fmean(ends)], [place], "|", color=colour, markersize=14, markeredgewidth=2)
    if ends := COMPARISON.ends(rows, "mean"):
        axes.axvline(
            statistics.fmean(ends) - LOST, linestyle=":", **drawing.REFERENCE, label=f"mean less {LOST:g} points"
        )
        axes.legend(fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="test accuracy at the end (%)")


RULE = Rule(
    setting=f"on digits, {COMPARISON.seeds['laptop']} seeds, {WORKERS} workers of two classes each",
    needs=[ends_above(COMPARISON.group("mean"), LEARNED)],
    parts=lambda scale: [
        Compare(ours=COMPARISON.group(name), is_="below", theirs=COMPARISON.group("mean"), by=-LOST, refuted="reversed")
        for name in LOSE
    ],
    remark="The other rules are shown and not judged.",
)


EXPERIMENT = COMPARISON.experiment(
    prose=beside(__file__),
    rule=RULE,
    hours={"smoke": 0.05, "laptop": 0.4},
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 3.6),
)
