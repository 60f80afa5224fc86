"""Real processes: waiting for the first gradients against waiting for all, and against asynchronous SGD."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.study import datasets
from experiments.study.claim import Scale, beside, evaluations_of
from experiments.study.race import Race

WORKERS, REQUIRED = 8, 6
EPOCHS = {"smoke": 4, "laptop": 0.4}  # they count examples that were used, so that all methods have the same
EVALUATIONS = 40
DELAYS = {"name": "lognormal", "median_seconds": 0.15, "sigma": 0.5}


def _common(scale: Scale) -> dict[str, Any]:
    epochs = EPOCHS[scale]
    return {
        **datasets.mlp(scale, momentum=None),
        **{f"arrivals.{key}": value for key, value in DELAYS.items()},
        **{"num_workers": WORKERS, "batch_size_per_worker": 8},
        **{"train_epochs": epochs, "eval_every_epochs": epochs / EVALUATIONS, "checkpoint_every_epochs": epochs},
        "log_every_steps": 1,  # the clock begins at the first record
    }


def _reduce(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a run's evaluations; its clock begins after the first step, which compiles the programs."""
    began = next(record["wall_seconds"] for record in records if record["kind"] == "train")
    found = evaluations_of("step", "epoch", "simulated_seconds", "accuracy", "wall_seconds")(records)
    return {**found, "wall_seconds": [seconds - began for seconds in found["wall_seconds"]]}


RACE = Race(
    spec="configs/mnist.py",
    methods={
        "backup": {"reducer.name": "backup_workers", "reducer.num_required": REQUIRED},
        "all": {"reducer.name": "mean"},
        "async": {"server.name": "asynchronous"},
    },
    common=_common,
    rates={"smoke": (0.1,), "laptop": (0.025, 0.05, 0.1, 0.2, 0.4)},
    model="MLP of 64 hidden units in processes",
    target={"mnist": 0.92, "digits": 0.8},
    along="wall_seconds",
    live=DELAYS,
    seeds={"smoke": 1, "laptop": 5},
)
CLAIM = RACE.claim(
    prose=beside(globals()),
    judge=lambda df: RACE.sooner(df, "backup", than=("all", "async")),
    hours={"smoke": 0.04, "laptop": 0.6},
    reduce=_reduce,
    timings=("wall_seconds",),
)
