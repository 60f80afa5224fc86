"""Each rule with two of nine workers that send garbage: on digits, each tuned, beside the mean without them."""

import statistics
from typing import Any

from experiments.claims.byzantine_workers.rules import CHANCE, CORRUPT, LEARNED, RATES, RULES, WORKERS, common
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study.comparison import Comparison
from experiments.study.findings import Quoted, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Rule,
    ends_above,
)
from experiments.study.run import Rows

BROKEN = 10.0  # percentage points below the clean mean: more than that is a failure
MARGIN = 1.0  # percentage points that a robust rule may lose
CLEAN = "clean mean"
FAIL = ("mean", "adasum")
STAND = ("krum", "geometric_median", "coordinate_median", "trimmed_mean")
_GARBAGE: dict[str, Any] = {"reducer.name": "corrupt", "reducer.workers": CORRUPT, "reducer.how": "garbage"}
METHODS: dict[str, dict[str, Any]] = {
    CLEAN: {"reducer.name": "mean"},
    **{name: {**_GARBAGE, "reducer.combine": {"name": name, **options}} for name, options in RULES.items()},
}
_KRUM, _YIN = "READ: abstract, arXiv 1703.02757", "READ: abstract, arXiv 1803.01498"
PAPER = {
    "mean": Quoted("no linear combination of the vectors tolerates a single Byzantine failure", _KRUM),
    "krum": Quoted("resilient, with as many workers as 2 f + 3 or more", "READ: arXiv 1703.02757"),
    "geometric_median": Quoted("more robust than averaging where much is corrupt", "READ: abstract, arXiv 1912.13445"),
    "coordinate_median": Quoted("provably robust; order-optimal error rates for strongly convex losses", _YIN),
    "trimmed_mean": Quoted("provably robust; order-optimal error rates for strongly convex losses", _YIN),
}


COMPARISON = Comparison(
    spec="configs/digits.py",
    methods=METHODS,
    common=common,
    rates=RATES,
    model=f"MLP of the config, {WORKERS} workers",
    target={"digits": 0.95},
    picked_by="end",
    seeds={"smoke": 1, "laptop": 5},
    floor=CHANCE,
)


def _paper_table(rows: Rows) -> Table:
    """Returns what the sources say of each rule, which is without numbers, and our accuracies beside it."""
    cells = {
        method: [Cell(PAPER.get(method), str(COMPARISON.accuracy(rows, method)))]
        for method in METHODS
        if COMPARISON.final(rows, method)
    }
    return paper_table.table("Combined by", ["Test accuracy"], cells)


def _draw(rows: Rows, figure: "Figure") -> None:
    """Draws the accuracy of each seed at the end, by rule: all of the axis, and its upper end."""
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    names = [name for name in METHODS if COMPARISON.final(rows, name)]
    groups = {
        "not judged": ([name for name in names if name not in (*FAIL, *STAND)], drawing.REFERENCE["color"]),
        "should fail": (FAIL, drawing.COLOURS[1]),
        "should stand": (STAND, drawing.COLOURS[0]),
    }
    for axes in panels:
        for label, (members, colour) in groups.items():
            for i, name in enumerate(name for name in names if name in members):
                ends, place = COMPARISON.ends(rows, name), names.index(name)
                looks: dict[str, Any] = {"color": colour, "label": None if i else label}
                axes.plot(ends, [place] * len(ends), "o", markersize=5, alpha=0.5, markeredgewidth=0, **looks)
                axes.plot([statistics.fmean(ends)], [place], "|", color=colour, markersize=14, markeredgewidth=2)
        if clean := COMPARISON.ends(rows, CLEAN):
            middle = statistics.fmean(clean)
            axes.axvline(middle, **drawing.REFERENCE, label=CLEAN)
            axes.axvline(middle - MARGIN, linestyle=":", **drawing.REFERENCE, label=f"{CLEAN} less {MARGIN:g} point")
        axes.set(xlabel="test accuracy at the end (%)")
    panels[0].set(xlim=(-2, 102))
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    panels[1].set(xlim=(91, 100))
    drawing.legend_below(figure, panels[1], columns=5)


RULE = Rule(
    setting=f"on digits, {COMPARISON.seeds['laptop']} seeds, {WORKERS} workers of which {len(CORRUPT)} send garbage",
    needs=[ends_above(COMPARISON.group(CLEAN), LEARNED)],
    parts=lambda scale: [
        *(
            Compare(ours=COMPARISON.group(name), is_="below", theirs=COMPARISON.group(CLEAN), by=-BROKEN)
            for name in FAIL
        ),
        *(
            Compare(ours=COMPARISON.group(name), is_="above", theirs=COMPARISON.group(CLEAN), by=-MARGIN)
            for name in STAND
        ),
    ],
    remark="The other rules are shown and not judged.",
)


EXPERIMENT = COMPARISON.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("da783d574479",),
    hours={"smoke": 0.06, "laptop": 0.5},
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.5, 4.6),
)
