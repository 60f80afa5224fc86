"""Gradients rounded to widths that follow their norm, beside fixed widths: accuracy at the end, and bytes."""

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import encoded_runs, paper_table
from experiments.study.encoded_runs import FULL, WORKERS, EncodedRuns
from experiments.study.experiment import Finding, Quoted, Rows, Table, Verdict, holds
from experiments.study.paper_table import Cell
from experiments.study.significance import Contrast, holm, welch, welch_against

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


def _pairs(rows: Rows) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the pairs of dynamic and fixed width in which the dynamic one sends no more, and no less."""
    sent = {name: RUNS.sent(rows, name) for name in (*FIXED, *DYNAMIC)}
    both = [(ours, fixed) for ours in DYNAMIC for fixed in FIXED]
    no_more = [(ours, fixed) for ours, fixed in both if sent[ours] <= sent[fixed]]
    return no_more, [(ours, fixed) for ours, fixed in both if sent[ours] >= sent[fixed]]


def _contrasts(rows: Rows) -> tuple[list[Contrast], list[Contrast], list[Contrast]]:
    """Returns the tests of the rule: above at no more bytes, below at no less, and no gain that matters at no more."""
    no_more, no_less = _pairs(rows)
    ends = {name: RUNS.ends(rows, name) for name in (*FIXED, *DYNAMIC)}
    above = [
        welch(ends[ours], ends[fixed], compared=f"{ours} above {fixed}", side="greater", unit="points")
        for ours, fixed in no_more
    ]
    below = [
        welch(ends[ours], ends[fixed], compared=f"{ours} below {fixed}", side="less", unit="points")
        for ours, fixed in no_less
    ]
    alike = [
        welch_against(
            ends[ours],
            ends[fixed],
            by=MARGIN,
            compared=f"{ours} above {fixed} by less than {MARGIN:g}",
            side="less",
            unit="points",
        )
        for ours, fixed in no_more
    ]
    return holm(above), holm(below), holm(alike)


def _judge(rows: Rows) -> Verdict:
    if little := RUNS.learnt_little(rows):
        return Verdict.untested(little)
    least = f"{WIDTHS[0]} bits"
    lost = welch(
        RUNS.ends(rows, least), RUNS.ends(rows, FULL), compared=f"{least} below {FULL}", side="less", unit="points"
    )
    own = RUNS.at_the_end(rows)
    if not lost.holds:
        return Verdict.untested(
            f"Few bits lose nothing that these runs show, so that there is nothing to trade: {own}.",
            contrasts=[lost],
        )
    above, below, alike = _contrasts(rows)
    better, worse = ([found.compared for found in tests if found.holds] for tests in (above, below))
    no_gain = all(found.holds for found in alike)
    parts = [
        f"At no more bytes, {', '.join(better) or 'no dynamic width is shown above a fixed one'}",
        f"at no fewer bytes, {', '.join(worse) or 'none is shown below a fixed one'}",
        f"that no gain reaches {MARGIN:g} points {holds(no_gain)}",
    ]
    because = f"At the end: {own}. {'; '.join(parts)}."
    if not better and not worse and not no_gain:
        return Verdict.untested(because, contrasts=[lost, *above, *below, *alike])
    return Verdict.of(bool(better) and not worse, because, contrasts=[lost, *above, *below, *alike])


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
        cells[name] = [Cell(accuracy, RUNS.accuracy(rows, name)), Cell(ratio, f"{compression(rows, name):.2f}")]
    note = (
        "The paper's are of ResNet-18 on CIFAR-10 with 8 workers; its start of the dynamic widths is not known to us."
    )
    return paper_table.table("Width", ["Test accuracy", "Compression against 32 bits"], cells, note=note)


def _table(rows: Rows) -> Table:
    cells = [
        [
            name,
            f"{same[0]['rate']:g}",
            str(RUNS.accuracy(rows, name)),
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


EXPERIMENT = RUNS.experiment(
    number=33,
    title="Bits that follow the gradient",
    claim="Dynamic quantisation has a better trade-off of communication and accuracy than fixed bits.",
    source="DQ-SGD, arXiv 2107.14575, abstract",
    rule=f"By test accuracy after the last step on MNIST, at scale gpu on CIFAR-10, {RUNS.tuned.seeds['laptop']} "
    f"seeds, {WORKERS} workers, and by the bytes that a worker sends in the run, mean of the seeds; dynamic widths "
    "that start at 3, 4 and 6 bits, fixed ones of 2, 3, 4, 6 and 8, each at its own rate; an accuracy that is not "
    "finite counts as 0 %. Supported if a dynamic width ends above a fixed one that sends as much or more, and none "
    "below a fixed one that sends as much or less (one-sided Welch tests, Holm's correction for all pairs of either "
    "kind, alpha = 0.05). Not supported if one ends below such a fixed width, or if each is shown to end above each "
    f"fixed one that sends as much or more by less than {MARGIN:g} percentage points (one-sided Welch tests against "
    "the margin, Holm's correction). Not tested if none of this is shown, if full gradients do not end above "
    f"{encoded_runs.LEARNED:g} % (at scale gpu {encoded_runs.SETTINGS['gpu'].learned:g} %), or if 2 bits are not "
    "shown to end below full gradients (one-sided Welch test): then there is nothing to trade.",
    hours={"smoke": 0.1, "laptop": 0.3, "gpu": 2.0},
    findings=_findings,
    judge=_judge,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(6.0, 3.6),
    notes=(
        encoded_runs.RECIPE + encoded_runs.GPU_RECIPE,
        "The encodings are `quantised` and `dynamic_bits`, with the Euclidean norm of each leaf and every payload sent "
        "to all workers, so that each gradient is rounded once. With the largest absolute value as the norm, which is "
        "the default, few bits lose little here, so that there would be nothing to trade.",
        "Differs from the paper in: model and data, at scale gpu ResNet-20 where theirs is ResNet-18; k, which follows "
        "from the first width and the first norm, where the paper's follows from a budget; G_t, the norm of the last "
        "mean where theirs is a worker's own; widths, which are rounded up to 2, 3, 4, 5, 6, 8, 12 or 16.",
        "The paper's own figures, as they are known to us, would not pass this rule without their deviations: dynamic "
        "bits end at 87.93 %, 6 bits at 88.03 % with more bytes, and 4 bits at 85.45 % with fewer. They lie above the "
        "line through both, and so the findings have that, too.",
        "A gain can be shown, and be shown to be below half a point, too. The rule then says supported and not "
        "supported; our code says supported. This did not occur.",
        "Before the rule was written, five trials with a seed that is not of this claim chose the norm and the margin. "
        "On the validation split, at a rate of 0.03, 2, 4 and 8 bits ended at 87.4, 95.7 and 96.8 %; with the largest "
        "absolute value as the norm, 2 bits ended at 96.6 %, and dynamic bits, which stayed at 3, at 96.7 %.",
        "Seen after the runs on MNIST: dynamic widths lie between 0.26 points below the line through the fixed ones "
        "and 0.50 above it, which no test here judges. On average of a run they have 0.4, 0.8 and 1.3 bits less than "
        "they start with. These distances hang on the picks: with rates that had been picked with one seed, which "
        "were others with 3 bits and from 6 bits on, they were -0.06, +0.25 and +0.19 points.",
    ),
)
