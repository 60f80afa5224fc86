"""The mean over workers without the extremes, coordinate by coordinate."""

import optax

from reducers.collectives import AxisName, axes_of, num_workers
from reducers.coordinatewise.middle import mean_of_middle
from reducers.options import Natural, check_options, check_static
from reducers.reducer import Reducer


def trimmed_mean(axis_name: AxisName, *, num_trimmed: Natural = 1) -> Reducer:
    r"""Averages over workers without the largest and the smallest values, coordinate by coordinate.

    .. math:: R(g_1, \dots, g_n)_j = \frac{1}{n - 2k} \sum_{i=k+1}^{n-k} g_{(i)j}

    where :math:`g_{(1)j} \le \dots \le g_{(n)j}` and k is ``num_trimmed``: between the mean, k = 0, and the median.

    Args:
      axis_name: the worker axis or axes.
      num_trimmed: how many values are dropped at either end.

    Returns:
      A stateless reducer; dtypes are kept, arithmetic is in float32 at least. Each device sorts a slice of all
      gradients, which sends what an all-reduce sends. NaN counts as the largest value, so that up to ``num_trimmed``
      workers with NaN are dropped. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted; if m are, k is at most (m - 1) // 2, so that one is left; if none is, the result is 0. It takes
      ``weights``, optional: a number of each worker, 0 or more; then k times the mean weight is dropped at either end,
      part of a value's if need be. A weight that is negative, NaN or infinite makes the result NaN.

    Raises:
      ValueError: for a negative ``num_trimmed``; and when traced, if it leaves no worker.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> reducer = trimmed_mean("worker", num_trimmed=1)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 3.0, -70.0, 90.0]))
    Array([2., 2., 2., 2.], dtype=float32)

    Reference: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, arXiv 1803.01498. Differs from the paper in: a number of workers is trimmed, not a fraction.
    """
    check_options(trimmed_mean, num_trimmed=num_trimmed)
    check_static(num_trimmed=num_trimmed)
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, weights=None, **extra_args):
        del params, extra_args
        if contributes is None and 2 * num_trimmed >= num_workers(axes):
            raise ValueError(f"num_trimmed={num_trimmed}: at both ends, leaves none of {num_workers(axes)} workers")
        return mean_of_middle(updates, axes, num_trimmed=num_trimmed, contributes=contributes, weights=weights), state

    return Reducer(
        optax.init_empty_state,
        update_fn,
        axis_name=axes,
        takes_mask="whole",
        takes_weights=True,
        homogeneous=True,
        numbers="floating",
    )
