"""Seven reducers on digits, each at its own learning rate: what anyone can run first."""

from experiments.study import frames
from experiments.study.claim import Frame, Scale, beside
from experiments.study.race import Race
from experiments.study.verdict import Verdict, decide, holm, untested, welch

NAMES = ("mean", "sum", "adasum", "adacons", "coordinate_median", "trimmed_mean", "sign_majority")
MARGIN = 0.25  # percentage points: the least difference that matters
SEEDS = 41  # show it with a power of 80 % where seeds deviate by 0.4 points, as those of earlier runs did
LEARNED = 90  # % of test accuracy that the mean must end at, or there is nothing to be above
EPOCHS = {"smoke": 2, "laptop": 60}


def _common(scale: Scale) -> dict:
    epochs = EPOCHS[scale]
    every = {f"{key}_every_epochs": epochs / 10 for key in ("log", "eval")}
    return {"data.name": "digits", "train_epochs": epochs, "checkpoint_every_epochs": epochs, **every}


RACE = Race(
    spec="configs/digits.py",
    methods={name: {"reducer.name": name} for name in NAMES}
    | {"adasum of deltas": {"reducer.name": "adasum", "reducer_on": "updates"}},
    common=_common,
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
    no_gain = holm(*(welch(name, ends[name], "below", "mean", mean, by=MARGIN, unit="points") for name in others))
    gain = holm(*(welch(name, ends[name], "above", "mean", mean, unit="points") for name in others))
    return decide(no_gain, refuted=any(test.holds for test in gain), shown=gain)


CLAIM = RACE.claim(
    prose=beside(__file__, globals()),
    judge=verdict,
    reworded=("e943389bcc1f",),
    hours={"smoke": 0.06, "laptop": 0.3},
)
