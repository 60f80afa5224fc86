"""Whether backup workers and Adasum compose: accuracy against simulated time at equal machines."""

from typing import Any

from experiments.study import datasets
from experiments.study.claim import Scale, beside
from experiments.study.race import Race

MACHINES = 32
REQUIRED = 30  # gradients that a step with backups waits for
BACKUP = {"reducer.name": "backup_workers", "reducer.num_required": REQUIRED}
EPOCHS = {"smoke": 20, "laptop": 4}  # they count examples that were used, so that all methods have the same


def _common(scale: Scale) -> dict[str, Any]:
    return {
        **datasets.mlp(scale, momentum=0.0),
        "arrivals.name": "paper_cluster",
        "num_workers": MACHINES,
        "batch_size_per_worker": 8 if scale == "smoke" else 16,
        "train_epochs": EPOCHS[scale],
        "checkpoint_every_epochs": EPOCHS[scale],
        "log_every_epochs": 0.5,
        "eval_every_epochs": 0.5 if scale == "smoke" else 0.1,
    }


RACE = Race(
    spec="configs/mnist.py",
    methods={
        "mean": {"reducer.name": "mean"},
        "adasum": {"reducer.name": "adasum"},
        "backup": BACKUP,
        "backup_adasum": {**BACKUP, "reducer.combine": "adasum"},
        "async": {"server.name": "asynchronous"},
    },
    common=_common,
    rates={"smoke": (0.2,), "laptop": (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)},
    model="MLP of 64 hidden units",
    target={"mnist": 0.95, "digits": 0.9},
    along="simulated_seconds",
)
CLAIM = RACE.claim(
    prose=beside(globals()),
    judge=lambda df: RACE.sooner(df, "backup_adasum", than=("backup", "adasum")),
    hours={"smoke": 0.05, "laptop": 0.25},
)
