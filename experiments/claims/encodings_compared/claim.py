"""Every encoding of gradients with and without error feedback: accuracy at the end, and bytes."""

import statistics
from typing import Any

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.encoded_runs import FULL, WORKERS, EncodedRuns
from experiments.study.findings import Finding, Quoted, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Rule,
)
from experiments.study.run import Rows

MARGIN = 0.5  # percentage points: the least difference that matters
WITHOUT, WITH = "", " with feedback"
_ENCODINGS: dict[str, dict[str, Any]] = {
    "quantised to 4 bits": {"name": "quantised", "bits": 4},
    "dynamic_bits from 4 bits": {"name": "dynamic_bits", "start_bits": 4},
    "sign": {"name": "sign"},
    "top_k of 1 %": {"name": "top_k", "ratio": 0.01},
    "random_k of 1 %": {"name": "random_k", "ratio": 0.01},
    "low_rank of 4": {"name": "low_rank", "rank": 4},
}
_FEEDBACK = {WITHOUT: "off", WITH: "on"}
RUNS = EncodedRuns(
    {
        FULL: {"name": FULL},
        "half": {"name": "half"},
        **{
            f"{name}{word}": {
                **block,
                "error_feedback": feedback,
                **({} if block["name"] == "low_rank" else {"min_elements": 1}),
            }
            for name, block in _ENCODINGS.items()
            for word, feedback in _FEEDBACK.items()
        },
    },
    rates=(0.03, 0.06, 0.12),
    other_rates={"random_k of 1 %": (0.25, 0.5, 1.0)},  # of whose numbers 1 % come
)
BEHIND, LEVEL = (f"top_k of 1 %{word}" for word in (WITHOUT, WITH))
MARK = "READ: the claim alone, no numbers"
PAPER = {BEHIND: Quoted("falls behind", MARK), LEVEL: Quoted("does not fall behind", MARK)}


def _share(rows: Rows, name: str) -> float:
    """Returns the bytes that a worker sends over those of full gradients."""
    return RUNS.sent(rows, name) / RUNS.sent(rows, FULL)


def _findings(rows: Rows) -> list[Finding]:
    found = RUNS.found(rows)
    return [
        Finding(
            f"accuracy that feedback adds, points, {name} (not judged)",
            ours=f"{statistics.fmean(RUNS.ends(rows, name + WITH)) - statistics.fmean(RUNS.ends(rows, name)):+.2f}",
        )
        for name in _ENCODINGS
        if {name, name + WITH} <= set(found)
    ]


def _paper_table(rows: Rows) -> Table:
    found = RUNS.found(rows)
    cells = {name: [Cell(quoted, RUNS.group(name).sample(rows))] for name, quoted in PAPER.items() if name in found}
    return paper_table.table("Encoding", ["Test accuracy at the end"], cells) if cells else Table((), ())


def _table(rows: Rows) -> Table:
    found = RUNS.found(rows)
    if FULL not in found:
        return Table((), ())
    cells = [
        [
            name,
            f"{same[0]['rate']:g}",
            str(RUNS.group(name).sample(rows)),
            f"{RUNS.sent(rows, name) / 1e6:.2f}",
            f"{_share(rows, name):.3f}",
        ]
        for name, same in found.items()
    ]
    header = ["Encoding", "Rate", "Test accuracy at the end", "MB sent by a worker", "Bytes over full"]
    return Table(header, cells, f"Bytes of {WORKERS} workers; each exchange is the one that sends less.")


def _draw(rows: Rows, figure: Figure) -> None:
    axes = figure.subplots()
    found = RUNS.found(rows)
    if FULL not in found:
        return
    axes.axhline(statistics.fmean(RUNS.ends(rows, FULL)), **drawing.REFERENCE, label=FULL)
    for position, name in enumerate(["half", *_ENCODINGS]):
        for word in _FEEDBACK:
            if (both := name + word) in found:
                looks = drawing.look(position) | {"linestyle": "none", "markersize": 7}
                filled = "full" if word == WITH else "none"
                ends = ask.final(found[both], "accuracy", scale=100)
                axes.plot([_share(rows, both)], [ends.mean], fillstyle=filled, label=both, **looks)
                axes.errorbar([_share(rows, both)], [ends.mean], yerr=[ends.std], color=looks["color"], linewidth=1)
    axes.set(xscale="log", xlabel="bytes over those of full gradients", ylabel="test accuracy at the end (%)")
    drawing.plain_numbers(axes.xaxis)
    drawing.legend_below(figure, axes, columns=3, fontsize=7)


RULE = Rule(
    setting=f"on MNIST, {RUNS.tuned.seeds['laptop']} seeds, {WORKERS} workers",
    needs=[RUNS.has_learnt],
    parts=lambda scale: [
        Compare(ours=RUNS.group(BEHIND), is_="below", theirs=RUNS.group(FULL), by=-MARGIN, refuted="reversed"),
        Compare(ours=RUNS.group(LEVEL), is_="above", theirs=RUNS.group(FULL), by=-MARGIN, refuted="reversed"),
    ],
    remark="The other encodings are shown and not judged.",
)


EXPERIMENT = RUNS.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("e68f584587d8",),
    hours={"smoke": 0.15, "laptop": 0.5},
    findings=_findings,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(6.5, 4.6),
)
