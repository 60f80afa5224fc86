"""The bytes that a transformer block sends on 64 devices in one, two and two and a half dimensions."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.verdict import Verdict, bound, decide, untested
from tensor_parallel import cost, published_bandwidth

DEEP, FLAT = {"q": 4, "d": 4}, {"q": 8, "d": 1}
HIDDEN = (1024, 2048, 4096, 8192)
ROWS = tuple(1 << power for power in range(10, 18))  # examples times tokens
# (rows, hidden size) of the figure's arrangements of 64 devices, which are not known.
OF_THE_FIGURE: Sequence[tuple[int, int]] = ()
LEAST, MOST = 1.2, 1.7
MARK = "READ, abstract"
NAMES = {"one": "1-D", "two": "8 x 8 x 1", "deep": "4 x 4 x 4"}


def _measure(*, hidden: int, seed: int) -> dict[str, Any]:
    """Returns the megabytes and the rounds of a block, for each number of rows."""
    del seed  # nothing is drawn
    return {"shapes": [{"rows": rows, "hidden": hidden, **_sent(rows, hidden)} for rows in ROWS]}


def _sent(rows: int, hidden: int) -> dict[str, float]:
    """Returns the megabytes that a device sends for a block, and the rounds, by arrangement; numbers of 4 bytes."""
    block = [(rows, hidden, 3 * hidden), (rows, hidden, hidden), (rows, hidden, 4 * hidden), (rows, 4 * hidden, hidden)]
    deep, flat = cost(block, **DEEP), cost(block, **FLAT)
    sent = {"one": deep["1-D"], "two": flat["2.5-D"], "deep": deep["2.5-D"]}
    found = {name: each.bytes / 1e6 for name, each in sent.items()}
    return found | {f"{name}_rounds": each.rounds for name, each in sent.items()}


def frame(rows: Rows) -> Frame:
    """Returns a line for each run and shape, with the bytes of 8 x 8 x 1 over those of 4 x 4 x 4."""
    runs = frames.frame(rows)[["seed", "scale", "shapes"]].explode("shapes", ignore_index=True)
    keys = ["rows", "hidden", *NAMES, *(f"{name}_rounds" for name in NAMES)]
    df = runs.join(Frame(runs["shapes"].tolist(), columns=keys))
    return df.assign(ratio=df["two"] / df["deep"], rows_over_hidden=df["rows"] / df["hidden"])


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    found = df[[shape in OF_THE_FIGURE for shape in zip(df["rows"], df["hidden"], strict=True)]]
    if not len(found):
        return untested("The figure's batches and hidden sizes are not known.")
    words = "the ratio of steps, 8 x 8 x 1 over 4 x 4 x 4, at the shapes that the figure states"
    return decide((), bound(words, *found["ratio"], least=LEAST, most=MOST))


def _facts(df: Frame) -> Facts:
    published = published_bandwidth(**FLAT) / published_bandwidth(**DEEP)
    ratio, place, one = df["ratio"], df["rows_over_hidden"], df["deep"] / df["one"]
    rounds = ", ".join(f"{df[f'{key}_rounds'].iloc[0]} ({name})" for key, name in NAMES.items())
    quantity = "bytes of 8 x 8 x 1 over those of 4 x 4 x 4, least and most of all shapes"
    return {
        quantity: (f"{ratio.min():.2f} to {ratio.max():.2f}", f"1.45 in efficiency [{MARK}]"),
        "the same by the published formula": f"{published:.2f}",
        "rows over hidden size where 4 x 4 x 4 sends less": _range(place[ratio > 1]),
        "rows over hidden size where 8 x 8 x 1 sends less": _range(place[ratio < 1]),
        f"rows over hidden size where the ratio lies in {LEAST} to {MOST}": _range(place[ratio.between(LEAST, MOST)]),
        "bytes of 4 x 4 x 4 over those of 64 in one dimension": f"{one.min():.2f} to {one.max():.2f}",
        "rounds of a block, forward and backward": rounds,
    }


def _range(values: pd.Series) -> str:
    return f"{values.min():g} to {values.max():g}" if len(values) else "none of the shapes"


def _draw(df: Frame, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    widest = df[df["hidden"] == df["hidden"].max()].rename(columns=NAMES)
    sent = widest.melt(["rows"], [*NAMES.values()], "devices", "sent")
    y, title = {"sent": "MB sent by a device"}, f"hidden size {df['hidden'].max():,}"
    figures.values(left, sent, x="rows", y=y, by="devices", title=title, xscale="log", yscale="log")
    figures.known(right, df, x="rows_over_hidden", y="ratio", **drawing.look(0))
    figures.line(right, 1)
    figures.line(right, 1.45, "the paper's efficiency", linestyle="--")
    right.axhspan(LEAST, MOST, color="#009E73", alpha=0.08, linewidth=0, label=f"{LEAST} to {MOST}")
    ylabel = "bytes, 8 x 8 x 1 over 4 x 4 x 4"
    figures.finish(right, xscale="log", xlabel="rows over hidden size", ylabel=ylabel)


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=repeated(
        lambda scale: [{"hidden": hidden} for hidden in (HIDDEN[:1] if scale == "smoke" else HIDDEN)],
        seeds={"smoke": 1, "laptop": 3},
    ),
    measure=_measure,
    data="arithmetic",
    model="a transformer block",
    frame=frame,
    labels=["hidden", "rows"],
    values={
        **{f"{name} (MB)": Value(key, 0, is_fixed=True) for key, name in NAMES.items()},
        "8 x 8 x 1 over 4 x 4 x 4": Value("ratio", is_fixed=True),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
