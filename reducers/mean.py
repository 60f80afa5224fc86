"""The mean over workers: plain synchronous SGD."""

import jax
import optax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, num_workers, sum_workers
from reducers.reducer import Reducer


def mean(axis_name: AxisName) -> Reducer:
    r"""Averages over all workers, as an all-reduce does.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_{i=1}^{n} g_i

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      A stateless reducer. Dtypes are kept, and sums over devices are accumulated in them; the mean of integers is
      rounded toward zero. Its update takes ``contributes``, optional: a bool of each worker, whether it is counted; the
      mean is over the workers that are, and 0 where none is. The values of the others, even NaN, change nothing.

    >>> reducer = mean("worker")
    >>> jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981,
    with no backup workers.
    """
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        totals = sum_workers(updates, axes, where=contributes)
        if contributes is None:
            return jax.tree.map(lambda total: (total / num_workers(axes)).astype(total.dtype), totals), state
        count = sum_workers(jnp.asarray(contributes, jnp.float32), axes)

        def average(total):
            wide = total.astype(jnp.promote_types(total.dtype, jnp.float32))
            return (wide / jnp.maximum(count, 1)).astype(total.dtype)

        return jax.tree.map(average, totals), state

    return Reducer(optax.init_empty_state, update_fn, axis_name=axes, takes_mask=True, homogeneous=True, is_mean=True)
