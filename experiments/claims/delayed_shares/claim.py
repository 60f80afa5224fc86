"""Local SGD whose averages come late, where workers have shares of the data: the accuracy at the end, by the delay."""

import dataclasses
import functools

from experiments.claims.delayed_averaging import claim as delayed_averaging
from experiments.claims.delayed_averaging.claim import DELAYS, LEARNED, WORKERS
from experiments.study import frames
from experiments.study.claim import Frame, beside, evaluations_of
from experiments.study.verdict import Verdict, paired

ALPHA = 0.5
MARGIN = 0.5  # percentage points: the least difference that matters
SHARES = {"split.name": "dirichlet", "split.alpha": ALPHA}
TUNED = dataclasses.replace(
    delayed_averaging.TUNED,
    recipe=functools.partial(delayed_averaging.recipe, split=SHARES),
    seeds={"smoke": 1, "laptop": 20},
)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.by_seed(df, "delay", "end").reindex(columns=DELAYS)
    return delayed_averaging.no_worse(ends, margin=MARGIN, learned=LEARNED, test=paired)


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    labels=["delay"],
    paper=dict.fromkeys(DELAYS, f"convergence rate of SGD {delayed_averaging.MARK}"),
    hours={"smoke": 0.05, "laptop": 0.4},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "accuracy"),
    draw=lambda df, figure: delayed_averaging.draw(df, figure, margin=MARGIN),
    inches=(4.5, 3.4),
)
