"""Whether backup workers and Adasum compose: accuracy against simulated time at equal machines."""

import math
from typing import Any

from experiments import datasets
from experiments.comparison import Comparison
from experiments.experiment import Experiment, Rows, Sample, Scale, Verdict

MACHINES, REQUIRED = 32, 30
BOTH = "backup_adasum"
EPOCHS = {"smoke": 20, "laptop": 4}  # of examples that were used, so the same for all methods


def _common(scale: Scale) -> dict[str, Any]:
    return {
        **datasets.image_set(scale),
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.momentum": 0.0,
        "schedule.name": "constant",
        "learning_rate_scaling": "none",
        "arrivals.name": "paper_cluster",
        "num_workers": MACHINES,
        "batch_size_per_worker": 8 if scale == "smoke" else 16,
        "train_epochs": EPOCHS[scale],
        "eval_every_epochs": 0.5 if scale == "smoke" else 0.1,
        "checkpoint_every_epochs": EPOCHS[scale],
        "log_every_epochs": 0.5,
    }


COMPARISON = Comparison(
    spec="configs/mnist.py",
    methods={
        "mean": {"reducer.name": "mean"},
        "adasum": {"reducer.name": "adasum"},
        "backup": {"reducer.name": "backup_workers", "reducer.num_required": REQUIRED},
        BOTH: {"reducer.name": "backup_workers", "reducer.num_required": REQUIRED, "reducer.combine": "adasum"},
        "async": {"server.name": "asynchronous"},
    },
    common=_common,
    rates={"smoke": (0.2,), "laptop": (0.005, 0.0125, 0.03, 0.08, 0.2, 0.5, 1.2)},
    target={"mnist": 0.95, "digits": 0.9},
    along="simulated_seconds",
)


def _judge(rows: Rows) -> Verdict:
    aim = f"{100 * COMPARISON.aim(rows):g} %"
    times = {method: COMPARISON.until(rows, method) for method in (BOTH, "backup", "adasum")}
    if not all(found and all(map(math.isfinite, found)) for found in times.values()):
        return Verdict("not tested at this scale", f"Not all runs reach {aim}.")
    first = [ours < min(others) for ours, *others in zip(*times.values(), strict=True)]
    means = {method: f"{Sample.of(found).mean:.0f}" for method, found in times.items()}
    because = (
        f"Both together are at {aim} first in {sum(first)} of {len(first)} seeds (needed: all), on average after "
        f"{means[BOTH]} simulated seconds; backup workers alone after {means['backup']}, Adasum alone after "
        f"{means['adasum']}."
    )
    return Verdict("supported" if all(first) else "not supported", because)


EXPERIMENT = Experiment(
    number=17,
    title="Backup workers and Adasum together",
    claim="Backup workers and Adasum compose: together they reach a given accuracy in less simulated time than either "
    "alone.",
    source="ours: of no paper",
    rule="Supported if in every seed the first 30 of 32 machines combined by Adasum are at the target (test accuracy "
    "95 % on MNIST, 90 % on digits) in less simulated time than both the mean of the first 30 and Adasum of all 32. "
    "Not tested where one of the three does not get there.",
    selection=COMPARISON.selection,
    hours={"smoke": 0.05, "laptop": 0.25},
    runs=COMPARISON.runs,
    reduce=COMPARISON.reduce,
    findings=COMPARISON.findings,
    judge=_judge,
    table=COMPARISON.table,
    draw=COMPARISON.draw,
    notes=(
        "32 machines whatever the method, an MLP (64 hidden units), 16 examples a worker, SGD without momentum at a "
        "constant rate, 4 epochs of examples that are used, evaluated 10 times in each. Times are those of the arrival "
        "model `paper_cluster`, the same for all methods with the same seed; combining takes no time, which favours "
        "Adasum. The numbers of backups and of examples a worker were set and not tuned.",
    ),
)
