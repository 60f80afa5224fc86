"""Every reducer on digits, each at its own learning rate: what anyone can run first."""

import statistics

from experiments.study.comparison import Comparison
from experiments.study.experiment import Rows, Sample, Scale, Verdict
from experiments.study.significance import holm, runs_needed, welch, welch_against

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


def _judge(rows: Rows) -> Verdict:
    ends = {method: COMPARISON.ends(rows, method) for method in COMPARISON.methods}
    mean = ends.pop("mean")
    if not statistics.fmean(mean) > LEARNED:
        return Verdict.untested(f"The mean itself learns little: it ends at {Sample.of(mean, digits=2, unit='%')}.")
    above = holm(
        [welch(ours, mean, compared=f"{name} above mean", side="greater", unit="points") for name, ours in ends.items()]
    )
    within = holm(
        [
            welch_against(
                ours,
                mean,
                by=MARGIN,
                compared=f"{name} above by less than {MARGIN:g} points",
                side="less",
                unit="points",
            )
            for name, ours in ends.items()
        ]
    )
    better = [contrast for contrast in above if contrast.holds]
    unclear = [contrast.compared for contrast in within if not contrast.holds]
    if better:
        names = ", ".join(contrast.compared for contrast in better)
        return Verdict.of(False, f"Significantly better than the mean: {names}.", contrasts=above)
    if unclear:
        because = f"Neither above nor shown to be within the margin: {', '.join(unclear)}."
        return Verdict.untested(because, contrasts=[*above, *within])
    return Verdict.of(True, "No method is above the mean, and each is within the margin.", contrasts=[*above, *within])


EXPERIMENT = COMPARISON.experiment(
    number=18,
    title="All reducers on digits",
    claim="On a small task, no way of combining gradients ends above their mean once each has its own learning rate.",
    source="ours: of no paper",
    rule=f"By test accuracy at the end, {SEEDS} seeds, one-sided Welch tests corrected by Holm's method, at 0.05. Not "
    "supported if a method's mean is above that of the mean. Supported if, moreover, each method is shown to be above "
    f"it by less than {MARGIN:g} percentage points. Not tested where neither is shown, or if the mean itself ends "
    f"below {LEARNED:g} %.",
    hours={"smoke": 0.06, "laptop": 0.3},
    judge=_judge,
)
