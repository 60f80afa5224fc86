r"""The simple noise scale: the batch size at which the noise of a gradient is as large as the gradient itself.

.. math:: B = b \, \frac{\overline{\mathrm{tr} \, \Sigma_b}}{\overline{|G|^2}}

G is the true gradient and :math:`\Sigma_b` the covariance of a worker's gradient, which is a mean over b examples. A
reducer with telemetry estimates both in each step. The estimates of few workers are noisy, and the ratio of two noisy
numbers is biased, so each is averaged over steps first: a moving average that forgets 1 % a step. Every step counts,
whether it is recorded or not.

Reference: McCandlish, Kaplan, Amodei, OpenAI Dota Team, "An Empirical Model of Large-Batch Training", arXiv 1812.06162,
appendix A.1.
"""

import math
from collections.abc import Mapping

import reducers
from training.setup import TrainSetup

SQUARED_GRADIENT = "squared_gradient"
COVARIANCE_TRACE = "covariance_trace"
NOISE_SCALE = "noise_scale"
DECAY = 0.99

Averages = dict[str, tuple[float, ...]]
"""Where a metric belongs, "" for the model and "/Dense_0/kernel" for a group -> averages of the trace and of |G|^2."""


def initial_averages(setup: TrainSetup) -> Averages:
    """Returns the averages before the first step, one for each of the reducer's estimates.

    The dict is empty if the reducer estimates nothing, or does not measure a mean of the gradients of b examples, or a
    constant multiple of it: it may measure an optimizer's updates, Adasum of micro-batches, or the mean of several
    steps, which ``adaptive_batch`` emits only in some steps.
    """
    is_mean = setup.micro_batches["count"] == 1 or setup.micro_batches["combine"] != "adasum"
    if setup.config.reducer_on != "gradients" or not is_mean or setup.reducer.local_workers != "never":
        return {}
    names = reducers.report(setup.worker_shapes.reducer_state).metrics
    places = [name.removeprefix(SQUARED_GRADIENT) for name in names if name.startswith(SQUARED_GRADIENT)]
    return {place: (0.0, 0.0) for place in places if f"{COVARIANCE_TRACE}{place}" in names}


def add_step(averages: Averages, numbers: Mapping[str, float]) -> None:
    """Adds the finite metrics of one step to the averages.

    Both averages begin at zero and have the same weights, so that no factor corrects them: it would cancel.
    """
    for place, before in averages.items():
        now = (numbers[f"{COVARIANCE_TRACE}{place}"], numbers[f"{SQUARED_GRADIENT}{place}"])
        if all(map(math.isfinite, now)):
            averages[place] = tuple(DECAY * a + (1 - DECAY) * b for a, b in zip(before, now, strict=True))


def noise_scales(averages: Averages, *, batch_size: int) -> dict[str, float]:
    """Returns name -> noise scale in examples, as in records: "noise_scale" is the model's.

    A group has no noise scale if its average estimate of |G|^2 is not positive, because noise then hides the gradient.

    Args:
      averages: the averages over all steps so far.
      batch_size: b, the number of examples in a worker's gradient.

    >>> averages = {"": (0.0, 0.0), "/Dense_0/kernel": (0.0, 0.0)}
    >>> metrics = {"covariance_trace": 6.0, "squared_gradient": 0.5}
    >>> add_step(averages, metrics | {"covariance_trace/Dense_0/kernel": 1.0, "squared_gradient/Dense_0/kernel": -0.1})
    >>> noise_scales(averages, batch_size=16)
    {'noise_scale': 192.0}
    """
    return {
        f"{NOISE_SCALE}{place}": batch_size * trace / square
        for place, (trace, square) in averages.items()
        if square > 0
    }
