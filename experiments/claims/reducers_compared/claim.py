"""Seven reducers on digits, each at its own learning rate: what anyone can run first."""

from experiments.study.comparison import Comparison
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Relation,
    Rule,
    ends_above,
)
from experiments.study.run import Scale
from experiments.study.significance import runs_needed

NAMES = ("mean", "sum", "adasum", "adacons", "coordinate_median", "trimmed_mean", "sign_majority")
MARGIN = 0.25  # percentage points: the least difference that matters
NOISE = 0.4  # percentage points: the deviation of seeds, as earlier runs had it
SEEDS = runs_needed(std=NOISE, difference=MARGIN)
LEARNED = 90.0  # % of test accuracy that the mean must end at, or there is nothing to be above
EPOCHS = {"smoke": 2, "laptop": 60}


def _common(scale: Scale) -> dict:
    epochs = EPOCHS[scale]
    every = {f"{key}_every_epochs": epochs / 10 for key in ("log", "eval")}
    return {"data.name": "digits", "train_epochs": epochs, "checkpoint_every_epochs": epochs, **every}


COMPARISON = Comparison(
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


OTHERS = [method for method in COMPARISON.methods if method != "mean"]


def _than_mean(name: str, is_: Relation, by: float = 0.0) -> Compare:
    return Compare(ours=COMPARISON.group(name), is_=is_, theirs=COMPARISON.group("mean"), by=by, refuted="never")


RULE = Rule(
    setting=f"on digits, {SEEDS} seeds",
    needs=[ends_above(COMPARISON.group("mean"), LEARNED)],
    parts=lambda scale: [_than_mean(name, "below", MARGIN) for name in OTHERS],
    against=lambda scale: [_than_mean(name, "above") for name in OTHERS],
)


EXPERIMENT = COMPARISON.experiment(
    prose=beside(__file__), rule=RULE, reworded=("e943389bcc1f",), hours={"smoke": 0.06, "laptop": 0.3}
)
