"""Gradients rounded to widths that follow their norm, beside fixed widths: accuracy at the end, and bytes."""

from typing import Any

import numpy as np

from experiments.study import figures, frames
from experiments.study.claim import Facts, Figure, Frame, Rows, Value, beside
from experiments.study.encoded_runs import FULL, LEARNED, EncodedRuns
from experiments.study.tuning import RATE_AND_ACCURACY
from experiments.study.verdict import Test, Verdict, compare, decide, holm, untested

WIDTHS, STARTS = (2, 3, 4, 6, 8), (3, 4, 6)
MARGIN = 0.5  # percentage points: a gain that matters
_ROUNDED = {"norm": "l2", "exchange": "gather", "min_elements": 1}
FIXED = {f"{bits} bits": {"name": "quantised", "bits": bits, **_ROUNDED} for bits in WIDTHS}
DYNAMIC = {f"dynamic from {bits}": {"name": "dynamic_bits", "start_bits": bits, **_ROUNDED} for bits in STARTS}
RUNS = EncodedRuns({FULL: {"name": FULL}, **FIXED, **DYNAMIC}, rates=(0.015, 0.03, 0.06), gpu_rates=(0.05, 0.1, 0.2))
MARK = "[READ: table 1 of the version submitted to ICLR 2021]"


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with the bits of a number, mean of the runs, and their compression.

    Full gradients are compared as if they were gathered, too: an all-reduce sends 2 (n - 1) / n times the gradient, a
    gather n - 1 times.
    """
    df = RUNS.frame(rows)
    mean = df.groupby("encoding")["share"].transform("mean")
    bits = (32 * mean / (RUNS.workers / 2)).where(df["encoding"] != FULL, 32.0)
    return df.assign(bits=bits, compression=32 / bits)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, "encoding", "end")
    sent = frames.groups(df, "encoding", "sent")
    full = ends[FULL]
    few = f"{WIDTHS[0]} bits"
    if not full.mean() > LEARNED[df["scale"].iloc[0]]:
        return untested(f"With full gradients little is learnt: the runs end at {frames.text(full, 2, '%')}.")
    lost = compare(ends, few, "below", FULL)
    if not lost.holds:
        return decide([lost], refuted=False)

    def family(pairs: list[tuple[str, str]], is_: Any, by: float = 0.0) -> list[Test]:
        tests = [compare(ends, a, is_, b, by) for a, b in pairs]
        return holm(*tests)

    mean = {name: values.mean(skipna=False) for name, values in sent.items()}
    pairs = [(ours, fixed) for ours in DYNAMIC for fixed in FIXED]
    no_more = [(ours, fixed) for ours, fixed in pairs if mean[ours] <= mean[fixed]]
    above = family(no_more, "above")
    alike = family(no_more, "below", MARGIN)
    no_fewer = [(ours, fixed) for ours, fixed in pairs if mean[ours] >= mean[fixed]]
    below = family(no_fewer, "below")
    better = [test for test in above if test.holds]
    worse = [test for test in below if test.holds]
    no_gain = all(test.holds for test in alike)
    refuted = bool(worse) or (no_gain and not better)
    found = decide([lost, *above, *below, *alike], judged=better or above, refuted=refuted)
    if not found.tests:
        return found
    gains = ", ".join(test.compared for test in better) or "no dynamic width is shown above a fixed one"
    losses = ", ".join(test.compared for test in worse) or "none is shown below a fixed one"
    because = (
        f"At no more bytes, {gains}; at no fewer bytes, {losses}; that no gain reaches {MARGIN:g} points "
        f"{'holds' if no_gain else 'fails'}."
    )
    return found._replace(because=because)


def over_the_line(df: Frame) -> dict[str, float]:
    """Returns how far each dynamic width ends above the line through the fixed ones at as many bytes, in points.

    Beyond the fixed widths the line is level.
    """
    mean = df.groupby("encoding")[["sent", "end"]].mean()
    fixed = mean.loc[list(FIXED)]
    line = {name: np.interp(mean["sent"][name], fixed["sent"], fixed["end"]) for name in DYNAMIC}
    return {name: float(mean["end"][name] - line[name]) for name in DYNAMIC}


def _facts(df: Frame) -> Facts:
    words = "over the line through the fixed widths, points (not judged)"
    return {f"{name} {words}": f"{over:+.2f}" for name, over in over_the_line(df).items()}


def _draw(df: Frame, figure: Figure) -> None:
    kinds = dict.fromkeys(FIXED, "fixed, mean") | dict.fromkeys(DYNAMIC, "dynamic, mean")
    df = df.assign(kind=df["encoding"].map(kinds))
    order = ["fixed, mean", "dynamic, mean"]
    y = {"end": "test accuracy at the end (%)"}
    (axes,) = figures.values(figure, df, x="bits", y=y, by="kind", order=order, dots=True)
    figures.line(axes, df.loc[df["encoding"] == FULL, "end"].mean(), "full gradients, 32 bits")
    figures.finish(axes, xlabel="bits of a number, mean of the run")


CLAIM = RUNS.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    hours={"smoke": 0.1, "laptop": 0.3, "gpu": 2.0},
    values={
        **RATE_AND_ACCURACY,
        "compression against 32 bits": Value("compression", is_fixed=True),
        "MB sent by a worker": Value("sent", 1, is_fixed=True),
    },
    paper={  # test accuracy, and compression against 32 bits, of ResNet-18 on CIFAR-10 with 8 workers
        FULL: f"88.15 %, 1 {MARK}",
        "4 bits": f"85.45 %, 8 {MARK}",
        "6 bits": f"88.03 %, 5.33 {MARK}",
        **dict.fromkeys(DYNAMIC, f"87.93 %, 7.11 {MARK}"),
    },
    facts=_facts,
    draw=_draw,
    inches=(6.0, 3.6),
)
