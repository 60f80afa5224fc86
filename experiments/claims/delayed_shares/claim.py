"""Local SGD whose averages come late, where workers have shares of the data: the accuracy at the end, by the delay."""

import dataclasses
from typing import Any

from experiments.claims.delayed_averaging.recipe import DELAYS, LEARNED, MARK, RATES, WORKERS, draw, recipe
from experiments.study import frames
from experiments.study.claim import Frame, Run, Scale, beside, evaluations_of
from experiments.study.tuning import Tuned
from experiments.study.verdict import Verdict, decide, holm, opposites, paired, untested

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


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.by_seed(df, "delay", "end").reindex(columns=DELAYS)
    none = ends[0]
    if not none.mean(skipna=False) > LEARNED:
        return untested(f"Without a delay little is learnt: the runs end at {frames.text(none, 2, '%')}.")
    less: Any = {"by": -MARGIN, "unit": "points"}
    tests = holm(*(paired(f"delay {d}", ends[d], "above", "delay 0", none, **less) for d in DELAYS[1:]))
    return decide(tests, against=opposites(tests))


CLAIM = TUNED.claim(
    prose=beside(__file__, globals()),
    judge=verdict,
    model=f"MLP of 64 hidden units, {WORKERS} workers",
    labels=["delay"],
    paper=dict.fromkeys(DELAYS, f"convergence rate of SGD {MARK}"),
    hours={"smoke": 0.05, "laptop": 0.4},
    reduce=evaluations_of("step", "epoch", "simulated_seconds", "accuracy"),
    draw=lambda df, figure: draw(df, figure, margin=MARGIN),
    inches=(4.5, 3.4),
)
