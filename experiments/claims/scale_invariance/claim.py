"""Networks with and without scale invariance over scales of parameters and loss, by four optimizers."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.claims.scale_invariance.training import ADAM, BATCHES, CLIP, OPTIMIZERS, end_losses, task
from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.verdict import Verdict, decide_both_ways, paired, untested
from models.fields import ScaleInvariant

PAIRS = tuple(itertools.product((0.01, 1.0, 100.0), repeat=2))  # scales of the parameters and of the loss
PLAIN = PAIRS.index((1.0, 1.0))
LEARNED = 0.7  # share of the loss of a uniform guess
FORMS: Mapping[ScaleInvariant, str] = {"on": "invariant", "off": "ordinary"}
RATES = {
    name: tuple(float(f"{rate:.3g}") for rate in np.logspace(*((-3.5, -1) if name == ADAM else (-1.5, 1)), 6))
    for name in OPTIMIZERS
}
STEPS = {"smoke": 10, "laptop": 250}
TUNING, REPORTED = "validation", "test"
TUNING_SEEDS = {"smoke": 1, "laptop": 3}
SEEDS = {"smoke": 2, "laptop": 5}
PAPER = {
    ("transformer", "invariant", "SGD with decay"): "1.672 [READ]",
    ("transformer", "invariant", "clipping"): "1.580 [READ]",
    ("transformer", "ordinary", "Adam"): "1.479 [READ]",
}


def _measure(*, network: str, form: ScaleInvariant, split: str, steps: int, seed: int, **at: int) -> dict[str, Any]:
    """Returns the loss of a uniform guess, and each optimizer's losses at the end; None stands for NaN or infinity."""
    of = task(network, form, split=split)
    lanes: list[tuple[float, ...]] = []
    for which, name in enumerate(OPTIMIZERS):
        if split == TUNING:
            lanes += [(which, rate, 1.0, 1.0) for rate in RATES[name]]
        else:
            lanes += [(which, RATES[name][at[place_of(name)]], *pair) for pair in PAIRS]
    losses = end_losses(of, lanes, steps=steps, seed=seed)
    ends = np.array([loss if math.isfinite(loss) else None for loss in losses]).reshape(len(OPTIMIZERS), -1)
    return {"guess": math.log(of.num_classes), **dict(zip(OPTIMIZERS, ends.tolist(), strict=True))}


def place_of(optimizer: str) -> str:
    """Returns the label of an optimizer's rate: its place in its list."""
    return f"{optimizer}_at"


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the tuning runs, and the reported runs of each network whose tuning runs are finished."""
    tuning, reported = [], []
    seeds, tried = TUNING_SEEDS[scale], _lines(rows, TUNING)
    for network, form in itertools.product(BATCHES, FORMS):
        labels = {"network": network, "form": form, "steps": STEPS[scale]}
        tuning += [Run(labels={**labels, "split": TUNING, "seed": seed}) for seed in range(seeds)]
        same = tried[(tried["network"] == network) & (tried["form"] == form)]
        if same["seed"].nunique() == seeds:
            at = {
                place_of(name): int(np.argmin(np.mean(losses.tolist(), axis=0)))
                for name, losses in same.groupby("optimizer", sort=False)["losses"]
            }
            final = {**labels, "split": REPORTED, **at}
            reported += [Run(labels={**final, "seed": seed}) for seed in range(seeds, seeds + SEEDS[scale])]
    return tuning + reported


def counted(row: Mapping[str, Any], optimizer: str) -> list[float]:
    """Returns a run's losses; a loss above that of a uniform guess counts as the guess's.

    >>> counted({"guess": 2.0, "adam": [1.0, 3.0, None]}, "adam")
    [1.0, 2.0, 2.0]
    """
    return [row["guess"] if loss is None else min(loss, row["guess"]) for loss in row[optimizer]]


def _lines(rows: Rows, split: str) -> Frame:
    """Returns a line for each run of a split and optimizer, with the losses that count."""
    found = [
        {**row, "optimizer": name, "losses": counted(row, name), "at": row.get(place_of(name))}
        for row in rows
        if row["split"] == split
        for name in OPTIMIZERS
    ]
    return frames.frame(found, "network", "form", "optimizer", "losses", "guess", "at")


def frame(rows: Rows) -> Frame:
    """Returns the reported losses, with their spread over the pairs of scales."""
    df = _lines(rows, REPORTED)
    least, largest = df["losses"].map(min), df["losses"].map(max)
    df = df.assign(form=df["form"].map(FORMS), kernels=df["optimizer"].map(OPTIMIZERS))
    return df.assign(
        plain=[losses[PLAIN] for losses in df["losses"]],
        least=least,
        largest=largest,
        spread=largest - least,
        lost=[losses.count(guess) for losses, guess in zip(df["losses"], df["guess"], strict=True)],
        rate=[RATES[name][int(at)] for name, at in zip(df["optimizer"], df["at"], strict=True)],
        name=df["kernels"] + " of the " + df["form"] + " network",
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    for (network, form), same in df[df["optimizer"] == CLIP].groupby(["network", "form"]):
        if (same["plain"] / same["guess"]).mean() >= LEARNED:
            return untested(f"The {form} {network} learns little: it ends at {frames.text(same['plain'], 3)}.")
    clip, adam = "clipping of the invariant network", "Adam of the invariant network"
    ordinary = "clipping of the ordinary network"
    found = []
    for network in BATCHES:
        spread = frames.by_seed(df[df["network"] == network], "name", "spread")
        shown: Any = {"unit": "nats", "digits": 3, "at": network}
        found.append(paired(clip, spread[clip], "below", adam, spread[adam], **shown))
        found.append(paired(ordinary, spread[ordinary], "above", f"ten times {clip}", 10 * spread[clip], **shown))
    return decide_both_ways(found)


def _facts(df: Frame) -> Facts:
    tried = df["optimizer"].map(RATES)
    edge = df[(df["rate"] == tried.str[0]) | (df["rate"] == tried.str[-1])]
    named = dict.fromkeys(edge["name"].str.replace("network", "") + edge["network"])
    return {
        "rates at the edge of those that were tried": ", ".join(named) or "none",
        "loss with clipping, invariant network, twice as long": ("not run", "1.495 [READ]"),
    }


def _draw(df: Frame, figure: Figure) -> None:
    panels = figure.subplots(1, len(BATCHES))
    shown = df[(df["form"] == FORMS["on"]) | (df["optimizer"] == CLIP)]
    look: Any = {"xlabel": "scale of the parameters, and of the loss", "ylabel": "test loss (nats)", "legend": False}
    for axes, (network, same) in zip(panels, shown.groupby("network", sort=False), strict=False):
        same = same.assign(pairs=[range(len(PAIRS))] * len(same))
        figures.curves(axes, same, along="pairs", of="losses", by="name", title=network, **look)
        axes.set_xticks(range(len(PAIRS)), [f"{c:g}\n{s:g}" for c, s in PAIRS])
    drawing.legend_below(figure, panels[0])


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.1, "laptop": 0.25},
    runs=_runs,
    measure=_measure,
    data="Python's own reference, digits",
    model="transformer, CNN",
    frame=frame,
    labels=["network", "form", "kernels"],
    values={
        "rate": Value("rate", None, is_fixed=True),
        "loss at scales of 1 (nats)": Value("plain", 3),
        "least": Value("least", 3),
        "largest": Value("largest", 3),
        "spread": Value("spread", 3),
        "pairs of 9 as bad as a guess": Value("lost", 1, is_fixed=True),
    },
    paper=PAPER,
    facts=_facts,
    draw=_draw,
    inches=(9.0, 3.4),
)
