"""Robust rules where each worker has two classes alone and nobody sends garbage: each tuned, beside the mean."""

from experiments.claims.byzantine_workers.rules import CHANCE, LEARNED, RATES, RULES, WORKERS, common
from experiments.study import figures, frames
from experiments.study.claim import Figure, Frame, beside
from experiments.study.race import Race
from experiments.study.verdict import Verdict, compare, decide_both_ways, untested

LOST = 5.0  # percentage points
LOSE = ("krum", "geometric_median", "coordinate_median")
SHOWN = ("trimmed_mean", "multi_krum", "adasum", "mgda", "upgrad")
MARK = "[READ: table in exp1.py of the authors' code; MNIST, 24 workers]"
PAPER = {
    "mean": f"98.84 ± 0.07 % {MARK}",
    "krum": f"82.97 ± 3.64 % {MARK}",
    "geometric_median": f"84.76 ± 0.83 % {MARK}",
    "coordinate_median": f"80.36 ± 0.04 % {MARK}",
}

RACE = Race(
    spec="configs/digits.py",
    methods={
        name: {"reducer.name": name, **{f"reducer.{key}": value for key, value in RULES[name].items()}}
        for name in ("mean", *LOSE, *SHOWN)
    },
    common=lambda scale: {**common(scale), "split.name": "by_label", "split.labels_per_worker": 2},
    rates=RATES,
    model=f"MLP of the config, {WORKERS} workers",
    target={"digits": 0.95},
    picked_by="end",
    floor=CHANCE,
    seeds={"smoke": 1, "laptop": 10},
)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, "method", "end")
    mean = ends["mean"]
    if not mean.mean() > LEARNED:
        return untested(f"The mean learns little: it ends at {frames.text(mean, 2, '%')}.")
    tests = [compare(ends, name, "below", "mean", -LOST) for name in LOSE]
    return decide_both_ways(tests)


def _draw(df: Frame, figure: Figure) -> None:
    least = frames.groups(df, "method", "end")["mean"].mean() - LOST
    figures.dots(
        figure,
        df,
        y="end",
        by="method",
        groups={"should lose": LOSE},
        lines={f"mean less {LOST:g} points": (least, ":")},
        xlabel="test accuracy at the end (%)",
    )


CLAIM = RACE.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.05, "laptop": 0.4},
    paper=PAPER,
    draw=_draw,
    inches=(7.0, 3.2),
)
