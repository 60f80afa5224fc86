"""Each rule with two of nine workers that send garbage: on digits, each tuned, beside the mean without them."""

from experiments.claims.byzantine_workers.rules import CHANCE, CORRUPT, LEARNED, RATES, RULES, WORKERS, common
from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Figure, Frame, beside
from experiments.study.race import Race
from experiments.study.verdict import Verdict, compare, decide, holm, untested

BROKEN = 10.0  # percentage points below the clean mean: more than that is a failure
MARGIN = 1.0  # percentage points that a robust rule may lose
CLEAN = "clean mean"
FAIL = ("mean", "adasum")
STAND = ("krum", "geometric_median", "coordinate_median", "trimmed_mean")
_GARBAGE = {"reducer.name": "corrupt", "reducer.workers": CORRUPT, "reducer.how": "garbage"}
_YIN = "provably robust; order-optimal error rates for strongly convex losses [READ: abstract, arXiv 1803.01498]"
PAPER = {
    "mean": "no linear combination of vectors tolerates a single Byzantine failure [READ: abstract, arXiv 1703.02757]",
    "krum": "resilient, with as many workers as 2 f + 3 or more [READ: arXiv 1703.02757]",
    "geometric_median": "more robust than averaging where much is corrupt [READ: abstract, arXiv 1912.13445]",
    "coordinate_median": _YIN,
    "trimmed_mean": _YIN,
}


RACE = Race(
    spec="configs/digits.py",
    methods={
        CLEAN: {"reducer.name": "mean"},
        **{name: {**_GARBAGE, "reducer.combine": {"name": name, **options}} for name, options in RULES.items()},
    },
    common=common,
    rates=RATES,
    model=f"MLP of the config, {WORKERS} workers",
    target={"digits": 0.95},
    picked_by="end",
    seeds={"smoke": 1, "laptop": 5},
    floor=CHANCE,
)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, "method", "end")
    clean = ends[CLEAN]
    if not clean.mean() > LEARNED:
        return untested(f"{CLEAN} learns little: it ends at {frames.text(clean, 2, '%')}.")
    lost = [compare(ends, name, "below", CLEAN, -BROKEN) for name in FAIL]
    kept = [compare(ends, name, "above", CLEAN, -MARGIN) for name in STAND]
    return decide(holm(*lost, *kept))


def _draw(df: Frame, figure: Figure) -> None:
    clean = frames.groups(df, "method", "end")[CLEAN].mean()
    figures.dots(
        figure,
        df,
        y="end",
        by="method",
        groups={"should fail": FAIL, "should stand": STAND},
        colours=(drawing.COLOURS[1], drawing.COLOURS[0]),
        lines={CLEAN: (clean, "-"), f"{CLEAN} less {MARGIN:g} point": (clean - MARGIN, ":")},
        limits=[(-2, 102), (91, 100)],
        xlabel="test accuracy at the end (%)",
    )


CLAIM = RACE.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.06, "laptop": 0.5},
    paper=PAPER,
    draw=_draw,
    inches=(7.5, 4.2),
)
