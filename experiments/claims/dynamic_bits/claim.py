"""Gradients rounded to widths that follow their norm, beside fixed widths: accuracy at the end, and bytes."""

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study.encoded_runs import FULL, WORKERS, EncodedRuns
from experiments.study.experiment import Verdict, holds
from experiments.study.findings import Finding, Quoted, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    OwnRule,
    Relation,
)
from experiments.study.run import Rows
from experiments.study.significance import Contrast, holm

WIDTHS, STARTS = (2, 3, 4, 6, 8), (3, 4, 6)
MARGIN = 0.5  # percentage points: a gain that matters
_ROUNDED: Mapping[str, Any] = {"norm": "l2", "exchange": "gather", "min_elements": 1}
FIXED = {f"{bits} bits": {"name": "quantised", "bits": bits, **_ROUNDED} for bits in WIDTHS}
DYNAMIC = {f"dynamic from {bits}": {"name": "dynamic_bits", "start_bits": bits, **_ROUNDED} for bits in STARTS}
RUNS = EncodedRuns({FULL: {"name": FULL}, **FIXED, **DYNAMIC}, rates=(0.015, 0.03, 0.06), gpu_rates=(0.05, 0.1, 0.2))
MARK = "READ: table 1 of the version submitted to ICLR 2021"
PAPER = {  # test accuracy, and compression against 32 bits, of ResNet-18 on CIFAR-10 with 8 workers
    FULL: ("88.15 %", "1"),
    "4 bits": ("85.45 %", "8"),
    "6 bits": ("88.03 %", "5.33"),
    "dynamic": ("87.93 %", "7.11"),
}


def compression(rows: Rows, name: str) -> float:
    """Returns the bytes of gradients in 32 bits, if they were gathered, too, over those of an encoding."""
    if name == FULL:
        return 1.0
    # An all-reduce sends 2 (n - 1) / n times the gradient, a gather n - 1 times.
    return WORKERS / 2 * RUNS.sent(rows, FULL) / RUNS.sent(rows, name)


def _on_the_line(rows: Rows, name: str) -> float:
    """Returns the accuracy at as many bytes on the line through the fixed widths, in percent; beyond it its end."""
    places, means = zip(*((RUNS.sent(rows, n), statistics.fmean(RUNS.ends(rows, n))) for n in FIXED), strict=True)
    return float(np.interp(RUNS.sent(rows, name), places, means))


def _all_there(rows: Rows) -> bool:
    return len(RUNS.found(rows)) == len(RUNS.encodings)


def _findings(rows: Rows) -> list[Finding]:
    if not _all_there(rows):
        return []
    return [
        Finding(
            f"{name} over the line through the fixed widths, points (not judged)",
            ours=f"{statistics.fmean(RUNS.ends(rows, name)) - _on_the_line(rows, name):+.2f}",
        )
        for name in DYNAMIC
    ]


def _paper_table(rows: Rows) -> Table:
    if not _all_there(rows):
        return Table((), ())
    cells = {}
    for name in RUNS.encodings:
        quoted = PAPER.get("dynamic" if name in DYNAMIC else name)
        accuracy, ratio = (Quoted(text, MARK) for text in quoted) if quoted else (None, None)
        cells[name] = [Cell(accuracy, RUNS.group(name).sample(rows)), Cell(ratio, f"{compression(rows, name):.2f}")]
    note = (
        "The paper's are of ResNet-18 on CIFAR-10 with 8 workers; its start of the dynamic widths is not known to us."
    )
    return paper_table.table("Width", ["Test accuracy", "Compression against 32 bits"], cells, note=note)


def _table(rows: Rows) -> Table:
    cells = [
        [
            name,
            f"{same[0]['rate']:g}",
            str(RUNS.group(name).sample(rows)),
            f"{RUNS.sent(rows, name) / 1e6:.1f}",
        ]
        for name, same in RUNS.found(rows).items()
    ]
    note = f"Payloads go to all {WORKERS - 1} others; full gradients are all-reduced, which sends less of them."
    return Table(["Width", "Rate", "Test accuracy at the end", "MB sent by a worker"], cells, note)


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    if not _all_there(rows):
        return
    for position, (label, names) in enumerate({"fixed": FIXED, "dynamic": DYNAMIC}.items()):
        places = [32 / compression(rows, name) for name in names]
        colour = drawing.COLOURS[position]
        for place, name in zip(places, names, strict=True):
            ends = RUNS.ends(rows, name)
            axes.plot([place] * len(ends), ends, "o", color=colour, markersize=4, alpha=0.4, markeredgewidth=0)
        means = [statistics.fmean(RUNS.ends(rows, name)) for name in names]
        looks: Any = {"linestyle": "-" if label == "fixed" else "none", "marker": drawing.MARKERS[position]}
        axes.plot(places, means, label=f"{label}, mean", color=colour, markersize=8, fillstyle="none", **looks)
    axes.axhline(statistics.fmean(RUNS.ends(rows, FULL)), **drawing.REFERENCE, label="full gradients, 32 bits")
    axes.set(xlabel="bits of a number, mean of the run", ylabel="test accuracy at the end (%)")
    axes.legend(fontsize=8, loc="lower right")


def _pairs(rows: Rows, *, more: bool) -> list[tuple[str, str]]:
    """Returns the pairs of dynamic and fixed width in which the dynamic one sends no less, or no more."""
    sent = {name: RUNS.sent(rows, name) for name in (*FIXED, *DYNAMIC)}
    return [
        (ours, fixed)
        for ours in DYNAMIC
        for fixed in FIXED
        if (sent[ours] >= sent[fixed] if more else sent[ours] <= sent[fixed])
    ]


def _family(rows: Rows, pairs: list[tuple[str, str]], is_: Relation, by: float = 0.0) -> list[Contrast]:
    groups = [(RUNS.group(ours), RUNS.group(fixed)) for ours, fixed in pairs]
    return holm([Compare(ours=ours, is_=is_, theirs=fixed, by=by).contrast(rows) for ours, fixed in groups])


def _judge(rows: Rows) -> Verdict:
    if little := RUNS.learnt_little(rows):
        return Verdict.untested(little)
    lost = Compare(ours=RUNS.group(f"{WIDTHS[0]} bits"), is_="below", theirs=RUNS.group(FULL)).contrast(rows)
    own = f"At the end: {', '.join(f'{name} {RUNS.group(name).sample(rows)}' for name in RUNS.found(rows))}."
    if not lost.holds:
        return Verdict.untested(
            f"Few bits lose nothing that is shown: there is nothing to trade. {own}", contrasts=[lost]
        )
    no_more = _pairs(rows, more=False)
    above, below = _family(rows, no_more, "above"), _family(rows, _pairs(rows, more=True), "below")
    alike = _family(rows, no_more, "below", MARGIN)
    better, worse = ([found.compared for found in tests if found.holds] for tests in (above, below))
    no_gain = all(found.holds for found in alike)
    because = (
        f"{own} At no more bytes, {', '.join(better) or 'no dynamic width is shown above a fixed one'}; at no fewer "
        f"bytes, {', '.join(worse) or 'none is shown below a fixed one'}; that no gain reaches {MARGIN:g} points "
        f"{holds(no_gain)}."
    )
    contrasts = [lost, *above, *below, *alike]
    if not better and not worse and not no_gain:
        return Verdict.untested(because, contrasts=contrasts)
    return Verdict.of(bool(better) and not worse, because, contrasts=contrasts)


RULE = OwnRule(
    f"By test accuracy at the end, {RUNS.tuned.seeds['laptop']} seeds, {WORKERS} workers, and by the bytes that a "
    "worker sends in the run, mean of the seeds; an accuracy that is not finite counts as 0 %. Supported if a "
    "dynamic width ends above a fixed one that sends as much or more, and none below a fixed one that sends as much "
    "or less (one-sided Welch tests, Holm's correction for all pairs of either kind, alpha = 0.05). Not supported "
    "if one ends below such a fixed width, or if each is shown to end above each fixed one that sends as much or "
    f"more by less than {MARGIN:g} percentage points (one-sided Welch tests against the margin, Holm's correction). "
    f"Not tested if none of this is shown, if {RUNS.has_learnt.words}, or if {WIDTHS[0]} bits are not shown to end "
    "below full gradients (one-sided Welch test): then there is nothing to trade.",
    _judge,
)


EXPERIMENT = RUNS.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("e5c48fbaa8cc",),
    hours={"smoke": 0.1, "laptop": 0.3, "gpu": 2.0},
    findings=_findings,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(6.0, 3.6),
)
