"""Robust rules, alone and behind two ways of averaging, under six attacks, with equal and with unequal data."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.claims.attacks_survived import training
from experiments.claims.attacks_survived.training import (
    AS_IS,
    ATTACKS,
    BUCKETING,
    BYZANTINE,
    HIDDEN,
    MIXING,
    NONE,
    WORKERS,
)
from experiments.plots import drawing
from experiments.study import frames
from experiments.study.claim import Claim, Figure, Frame, Rows, Scale, Value, beside, repeated
from experiments.study.verdict import Verdict, decide_both_ways, paired, untested

STEPS: Mapping[Scale, int] = {"smoke": 20, "laptop": 400}
SEEDS: Mapping[Scale, int] = {"smoke": 1, "laptop": 4}
RATE = 0.05
LOST = 5.0  # percentage points below the mean of honest workers: a rule that loses more has not survived
LEARNED = 90.0  # % of test accuracy that the mean must end at, or there is nothing to be lost
UNEQUAL = "unequal"
MEAN = "mean"
JUDGED = ("krum", "geometric_median", "coordinate_median", "trimmed_mean", "centred_clipping")
HARMFUL = [attack for attack in ATTACKS if attack != NONE]
MARK = "[DERIVED: logs in the authors' repository, MNIST]"
PAPER = {
    (UNEQUAL, rule, before): f"worst of five attacks {worst} {MARK}"
    for (rule, before), worst in {
        ("krum", AS_IS): 1.0,
        ("krum", BUCKETING): 10.1,
        ("geometric_median", AS_IS): 11.4,
        ("geometric_median", BUCKETING): 91.7,
        ("coordinate_median", AS_IS): 9.9,
        ("coordinate_median", BUCKETING): 46.3,
        ("centred_clipping", AS_IS): 97.6,
        ("centred_clipping", BUCKETING): 97.7,
    }.items()
}


def _cases(scale: Scale) -> list[dict[str, Any]]:
    ways = [(rule, AS_IS) for rule in training.RULES]
    ways += [(rule, before) for rule in JUDGED for before in (MIXING, BUCKETING)]
    return [{"rule": rule, "before": before, "steps": STEPS[scale], "rate": RATE} for rule, before in ways]


def frame(rows: Rows) -> Frame:
    """Returns a line for each run and kind of data: accuracy with each attack, the worst, how many are survived.

    An attack is survived if at most ``LOST`` points are lost to the mean of that seed and data without an attack.
    """
    lines = []
    for row in rows:
        for data in training.LABELS:
            ends = {attack: row.get(training.key(data, attack), float("nan")) for attack in ATTACKS}
            lines.append({**{name: row[name] for name in ("rule", "before", "seed")}, "shares": data, **ends})
    df = frames.frame(lines, "rule", "before", "shares", *ATTACKS)
    aim = df[df["rule"] == MEAN].set_index(["shares", "seed"])[NONE] - LOST
    least = aim.reindex(pd.MultiIndex.from_frame(df[["shares", "seed"]])).to_numpy()
    survived = df[HARMFUL].ge(least, axis=0).sum(axis=1).where(~pd.isna(least))
    return df.assign(worst=df[HARMFUL].min(axis=1, skipna=False), survived=survived)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    clean = frames.groups(df, ["shares", "rule"], NONE)[UNEQUAL, MEAN]
    if not clean.mean() > LEARNED:
        return untested(f"The mean learns little without an attack: it ends at {frames.text(clean, 2, '%')}.")
    tests = []
    for rule in JUDGED:
        same = df[(df["shares"] == UNEQUAL) & (df["rule"] == rule)]
        worst = frames.by_seed(same, "before", "worst").reindex(columns=[AS_IS, MIXING, BUCKETING])
        tests += [
            paired(f"{rule} behind {before}", worst[before], "above", f"{rule} {AS_IS}", worst[AS_IS], unit="points")
            for before in (MIXING, BUCKETING)
        ]
    return decide_both_ways(tests)


def _draw(df: Frame, figure: Figure) -> None:
    panels = figure.subplots(1, len(training.LABELS), sharey=True)
    for axes, data in zip(panels, training.LABELS, strict=True):
        means = df[df["shares"] == data].groupby(["rule", "before"], sort=False)[list(ATTACKS)].mean()
        names = [rule if before == AS_IS else f"{before}, {rule}" for rule, before in means.index][::-1]
        drawing.heat_map(axes, means.to_numpy()[::-1].round(), best="max", marked=None, label="test accuracy (%)")
        axes.set_xticks(range(len(ATTACKS)), ATTACKS, rotation=30, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"{data} data")


VALUES: Mapping[str, Value] = {
    f"survived, of {len(HARMFUL)}": Value("survived", 1),
    "worst (%)": Value("worst", 1),
    **{f"{attack} (%)": Value(attack, 1) for attack in ATTACKS},
}
CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.2, "laptop": 0.4},
    runs=repeated(_cases, seeds=SEEDS),
    measure=training.measure,
    frame=frame,
    data="digits",
    model=f"MLP of {HIDDEN} hidden units, {WORKERS} workers, {BYZANTINE} Byzantine",
    labels=["shares", "rule", "before"],
    values=VALUES,
    paper=PAPER,
    draw=_draw,
    inches=(10.0, 6.4),
)
