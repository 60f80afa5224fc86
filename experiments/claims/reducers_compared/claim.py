"""Seven reducers on digits, each at its own learning rate: what anyone can run first."""

from experiments.study import datasets, frames
from experiments.study.claim import Frame, beside
from experiments.study.race import Race
from experiments.study.verdict import Verdict, compare, decide, holm, untested

NAMES = ("mean", "sum", "adasum", "adacons", "coordinate_median", "trimmed_mean", "sign_majority")
METHODS = {name: {"reducer.name": name} for name in NAMES}
METHODS["adasum of deltas"] = {"reducer.name": "adasum", "reducer_on": "updates"}
MARGIN = 0.25  # percentage points: the least difference that matters
SEEDS = 41  # show it with a power of 80 % where seeds deviate by 0.4 points, as those of earlier runs did
LEARNED = 90  # % of test accuracy that the mean must end at, or there is nothing to be above

RACE = Race(
    spec="configs/digits.py",
    methods=METHODS,
    common=datasets.digits,
    rates={"smoke": (0.03, 0.1), "laptop": (0.01, 0.02, 0.04, 0.08, 0.16)},
    model="MLP of the config",
    target={"digits": 0.975},
    picked_by="end",
    seeds={"smoke": 1, "laptop": SEEDS},
)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends, others = frames.groups(df, "method", "end"), [method for method in RACE.methods if method != "mean"]
    mean = ends["mean"]
    if not mean.mean() > LEARNED:
        return untested(f"The mean learns little: it ends at {frames.text(mean, 2, '%')}.")
    no_gain = holm(*(compare(ends, name, "below", "mean", MARGIN) for name in others))
    gain = holm(*(compare(ends, name, "above", "mean") for name in others))
    return decide(no_gain, against=gain)


CLAIM = RACE.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.06, "laptop": 0.3},
)
