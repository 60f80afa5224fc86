"""Runs of local SGD whose averages come late, and the figure of their accuracies."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.study import datasets, figures
from experiments.study.frames import Frame
from experiments.study.run import Run, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORKERS, BATCH = 8, 16
EVERY = 4  # H, steps from one launch to the next
DELAYS = (0, 1, 2, 4)  # d, steps from a launch to its average
LEARNED = 90  # % of test accuracy that no delay must end at, or there is nothing to be as good as
STEPS: Mapping[Scale, int] = {"smoke": 40, "laptop": 1000}
RATES: Mapping[Scale, tuple[float, ...]] = {"smoke": (0.03, 0.06), "laptop": (0.02, 0.03, 0.045, 0.0675)}
MARK = "[READ: abstract, arXiv 2006.00441]"


def recipe(scale: Scale, *, delay: int, rate: float) -> Run:
    """Returns one run."""
    steps = STEPS[scale]
    overrides = {
        **datasets.image_set(scale),
        **datasets.MLP,
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
    return Run(spec="configs/mnist.py", overrides=overrides)


def draw(df: Frame, figure: "Figure | Axes", *, margin: float) -> None:
    """Draws the accuracy at the end by the delay, and what no delay has less a margin, in percentage points."""
    (axes,) = figures.values(figure, df, x="delay", y={"end": "test accuracy at the end (%)"}, dots=True)
    least = df.loc[df["delay"] == 0, "end"].mean() - margin
    figures.line(axes, least, f"no delay less {margin:g} points", linestyle=":")
    axes.set(xlabel="delay (steps)", xticks=DELAYS)
    axes.legend(fontsize=7, loc="lower left")
