"""The mean over workers: plain synchronous SGD."""

from typing import Any

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, num_counted, num_workers, sum_workers, weigh
from reducers.dtypes import divided, is_integer, wide, wide_dtype
from reducers.mask import own_part
from reducers.reducer import Combine, Reducer, as_inner
from reducers.sums import integers


def mean(axis_name: AxisName) -> Reducer:
    r"""Averages over all workers, as an all-reduce does.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_{i=1}^{n} g_i \qquad \text{or, weighted,} \qquad
        \frac{1}{\sum_i w_i} \sum_{i=1}^{n} w_i g_i

    Args:
      axis_name: the worker axis or axes.

    Returns:
      A stateless reducer. Dtypes are kept, and sums over devices are accumulated in them; the mean of integers, which
      are added up in 32 bits at least, is rounded toward zero. Its update takes ``contributes``, optional: a bool of
      each worker, whether it is counted; the mean is over the workers that are, and 0 where none is. The values of the
      others, even NaN, change nothing. It takes ``weights``, optional: a number of each worker, 0 or more, such as the
      number of examples or tokens that its gradient is the mean of; a worker of weight 0 is not counted. A weight that
      is negative, NaN or infinite makes the mean NaN on all workers, or the largest integer. The weighted mean of
      integers is computed from their differences in float32, in float64 where JAX has it. Equal integers have an exact
      mean, and a mean within rounding of a whole number is that number.

    >>> reducer = mean("worker")
    >>> jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981,
    with no backup workers.
    """
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, weights=None, **extra_args):
        del params, extra_args
        if weights is not None:
            return _weighted_mean(updates, weights, contributes, axes), state
        totals = sum_workers(jax.tree.map(integers.with_room, updates), axes, where=own_part(contributes))
        count: Any = num_workers(axes)
        if contributes is not None:
            count = num_counted(contributes, axes, dtype=jnp.float32)
        return jax.tree.map(lambda g, total: divided(total, count).astype(jnp.result_type(g)), updates, totals), state

    return Reducer(
        optax.init_empty_state,
        update_fn,
        axis_name=axes,
        takes_mask="whole",
        takes_weights=True,
        homogeneous=True,
        is_mean=True,
        numbers="number",
    )


def _weighted_mean(updates: Any, weights: Any, contributes: Any, axes: tuple[str, ...]) -> Any:
    mask, shares = weigh(weights, contributes, axes)
    share = shares[lax.axis_index(axes)]
    count = num_counted(mask, axes, dtype=shares.dtype)
    updates = jax.tree.map(jnp.asarray, updates)
    lows = jax.tree.map(lambda g: integers.lowest(g, mask, axes) if is_integer(g) else None, updates)
    given = jax.tree.map(lambda g, low: g if low is None else integers.above(low, g), updates, lows)

    def times(g):
        return (share.astype(wide_dtype(g)) * wide(g)).astype(g.dtype)

    totals = sum_workers(jax.tree.map(times, given), axes, where=mask.own)
    means = jax.tree.map(lambda total: divided(total, count), totals)

    def result(g, low, mean):
        return mean.astype(g.dtype) if low is None else integers.at(low, mean, axes)

    return jax.tree.map(result, updates, lows, means)


def combiner_of(combine: Combine, axes: tuple[str, ...]) -> Reducer:
    """Returns the reducer that another one wraps; None is ``mean``.

    Raises:
      ValueError: if it is not a transformation, or if it does not emit every update.
    """
    return mean(axes) if combine is None else as_inner(combine, key="combine")
