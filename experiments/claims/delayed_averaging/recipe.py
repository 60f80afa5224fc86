"""Runs of local SGD whose averages come late."""

from collections.abc import Mapping

from experiments.study import datasets
from experiments.study.run import Run, Scale

WORKERS, BATCH = 8, 16
EVERY = 4  # H, steps from one launch to the next
DELAYS = (0, 1, 2, 4)  # d, steps from a launch to its average
LEARNED = 90.0  # % of test accuracy that no delay must end at, or there is nothing to be as good as
STEPS: Mapping[Scale, int] = {"smoke": 40, "laptop": 1000}
RATES: Mapping[Scale, tuple[float, ...]] = {"smoke": (0.03, 0.06), "laptop": (0.02, 0.03, 0.045, 0.0675)}
MARK = "READ: abstract, arXiv 2006.00441"


def recipe(scale: Scale, *, delay: int, rate: float) -> Run:
    """Returns one run."""
    data, steps = datasets.image_set(scale), STEPS[scale]
    overrides = {
        **data,
        "model.name": "mlp",
        "model.hidden_sizes": (64,),
        "optimizer.learning_rate": rate,
        "learning_rate_scaling": "none",
        "reducer_on": "updates",
        "reducer.name": "local_sgd",
        "reducer.every_steps": EVERY,
        "reducer.delay_steps": delay,
        "arrivals.name": "lognormal",
        "num_workers": WORKERS,
        "batch_size_per_worker": BATCH,
        "train_steps": steps,
        "eval_every_steps": steps // 10,
        "log_every_steps": steps // 10,
        "checkpoint_every_steps": steps,
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist.py", overrides=overrides)
