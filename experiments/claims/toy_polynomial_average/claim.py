"""The toy polynomial of Horovod's guide, averaged over random samples: steps with Adasum and with averaging."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax import numpy as jnp

from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.polynomials import LABELS, NOT_STOPPED, NUM_STEPS, RATES, REDUCERS, percent_fewer, steps_to_stop
from experiments.study.verdict import Verdict, decide, holm, paired, untested

PROBLEMS = [("square", 1), ("square", 2), ("cubic", 1), ("cubic", 2)]
PROBLEM = ["polynomial", "x_max"]
DRAWS = {"smoke": 20, "laptop": 1000}
PICKED_WITH = 0  # the seed that learning rates are picked with
COUNTS = (NOT_STOPPED, NUM_STEPS)  # two ways to count a run that does not stop: the script's, and its steps
PAPER = "fewer, up to 50 % [READ: Horovod's guide to Adasum]"


def _measure(*, polynomial: str, x_max: float, num_draws: int, seed: int) -> dict[str, Any]:
    """Counts steps at all rates, over many draws of the samples, which are the same for both."""
    rates = jnp.array(RATES)
    many = jax.random.uniform(jax.random.key(seed), (num_draws, NUM_STEPS, 2), minval=-x_max, maxval=x_max)
    row: dict[str, Any] = {}
    for reducer in REDUCERS:
        count = partial(steps_to_stop, rates=rates, polynomial=polynomial, reducer=reducer)
        counts = np.asarray(jax.jit(jax.vmap(count))(many))  # [draws, R]
        row[f"{reducer}_steps"] = counts.mean(axis=0).tolist()
        row[f"{reducer}_stopped"] = (counts < NOT_STOPPED).mean(axis=0).tolist()
    return row


def frame(rows: Rows) -> Frame:
    """Returns a line for each reported run and reducer: its steps at the best rate, by each way to count."""
    df = frames.frame(rows)
    parts = [
        df.assign(gradients=LABELS[name], steps=df[f"{name}_steps"], stopped=df[f"{name}_stopped"]) for name in REDUCERS
    ]
    lines = pd.concat(parts).sort_index(kind="stable").reset_index(drop=True)
    for count in COUNTS:
        pairs = zip(lines["steps"], lines["stopped"], strict=True)
        counted = [np.array(steps) - (NOT_STOPPED - count) * (1 - np.array(stopped)) for steps, stopped in pairs]
        best = frames.picked(lines.assign(counted=counted), [*PROBLEM, "gradients"], "counted", seed=PICKED_WITH)
        lines[f"best {count}"] = best
        lines[f"steps {count}"] = frames.at(counted, best)
    best = lines[f"best {NOT_STOPPED}"]
    lines = lines.assign(rate=frames.at([RATES] * len(lines), best), share=100 * frames.at(lines["stopped"], best))
    return lines[(lines["seed"] != PICKED_WITH) & best.notna()]


def _by_seed(df: Frame, polynomial: str, x_max: int, count: int) -> Frame:
    same = df[(df["polynomial"] == polynomial) & (df["x_max"] == x_max)]
    return frames.by_seed(same, "gradients", f"steps {count}").reindex(columns=[*LABELS.values()])


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    tests = []
    for x_max in (1, 2):
        for count in COUNTS:
            steps = _by_seed(df, "square", x_max, count)
            if len(steps) < 2:
                return untested("The rule needs two seeds besides the one that rates are picked with.")
            at = f"x_max {x_max} if a run that does not stop counts {count}"
            ours, theirs = steps["Adasum"], steps["averaging"]
            tests.append(paired("Adasum", ours, "below", "averaging", theirs, unit="steps", digits=1, at=at))
    return decide(holm(*tests))


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for name, x_max in PROBLEMS:
        for count in COUNTS:
            steps = _by_seed(df, name, x_max, count)
            fewer = frames.text(percent_fewer(steps["Adasum"], than=steps["averaging"]), 1, "%")
            quantity = f"fewer steps, {name}, x_max {x_max}, {count} for a run that does not stop"
            found[quantity] = (fewer, PAPER) if name == "square" else fewer
    return found


def _draw(df: Frame, figure: Figure) -> None:
    square = df[df["polynomial"] == "square"]
    titles = [f"square, x in [-{x_max}, {x_max}]" for x_max in square["x_max"]]
    figures.curves(
        figure,
        square.assign(title=titles, rates=[RATES] * len(square)),
        along="rates",
        of="steps",
        by="gradients",
        panels="title",
        xlabel="learning rate",
        ylabel="mean steps (100: did not stop)",
        ylim=(0, NOT_STOPPED + 5),
    )


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.03, "laptop": 0.05},
    runs=repeated(
        lambda scale: [{"polynomial": name, "x_max": x_max, "num_draws": DRAWS[scale]} for name, x_max in PROBLEMS],
        seeds={"smoke": 2, "laptop": 6},
    ),
    measure=_measure,
    data="drawn samples",
    model="polynomials",
    frame=frame,
    labels=[*PROBLEM, "gradients"],
    values={
        "best rate": Value("rate", None, is_fixed=True),
        "steps, 100 for a run that does not stop": Value("steps 100", 1),
        "draws that stop": Value("share", 1, "%"),
    },
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
