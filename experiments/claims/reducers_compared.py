"""Every reducer on digits, each at its own learning rate: what anyone can run first."""

from experiments import rows as ask
from experiments.comparison import Comparison
from experiments.experiment import Rows, Scale, Verdict

NAMES = ("mean", "sum", "adasum", "adacons", "coordinate_median", "trimmed_mean", "sign_majority")
MARGIN = 2.0  # standard errors
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
    rates={"smoke": (0.03, 0.1), "laptop": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)},
    target={"digits": 0.975},
    seeds={"smoke": 1, "laptop": 5},
)


def _judge(rows: Rows) -> Verdict:
    ours = {
        method: COMPARISON.accuracy(rows, method) for method in COMPARISON.methods if COMPARISON.final(rows, method)
    }
    if set(ours) != set(COMPARISON.methods) or min(sample.n for sample in ours.values()) < COMPARISON.seeds["laptop"]:
        return Verdict.untested("The rule needs five seeds of every reducer.")
    mean = ours.pop("mean")
    if not mean.mean > LEARNED:
        return Verdict.untested(f"The mean itself learns little: it ends at {mean}.")
    above = [f"{name} ({sample})" for name, sample in ours.items() if ask.above(sample, mean, errors=MARGIN)]
    return Verdict.of(not above, f"Above the mean's {mean}: {', '.join(above) or 'none'}.")


EXPERIMENT = COMPARISON.experiment(
    number=18,
    title="All reducers on digits",
    claim="On a small task, no way of combining gradients ends above their mean once each has its own learning rate.",
    source="ours: of no paper",
    rule="Supported if no reducer's mean test accuracy, over five seeds, is above that of the mean by more than two "
    f"standard errors of the difference. Not tested if the mean itself ends below {LEARNED:g} %.",
    hours={"smoke": 0.06, "laptop": 0.3},
    judge=_judge,
)
