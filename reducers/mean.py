"""The mean over workers: plain synchronous SGD."""

import jax
import optax
from jax import numpy as jnp

from reducers.axes import AxisName, num_workers
from reducers.sums import sum_workers


def mean(axis_name: AxisName) -> optax.GradientTransformationExtraArgs:
    r"""Averages over all workers, as an all-reduce does.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_{i=1}^{n} g_i

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      A stateless reducer; dtypes are kept, and sums over devices are accumulated in them. Its update takes
      ``contributes``, optional: a bool of each worker, whether it is counted; the mean is over those that are, and 0
      where none is. Whatever the others hold, NaN too, changes nothing.

    >>> reducer = mean("worker")
    >>> jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981,
    with no backup workers.
    """

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        if contributes is None:
            return jax.tree.map(lambda g: g / num_workers(axis_name), sum_workers(updates, axis_name)), state
        count = sum_workers(jnp.asarray(contributes, jnp.float32), axis_name)
        totals = sum_workers(jax.tree.map(lambda g: jnp.where(contributes, g, 0), updates), axis_name)

        def average(total):
            wide = total.astype(jnp.promote_types(total.dtype, jnp.float32))
            return (wide / jnp.maximum(count, 1)).astype(total.dtype)

        return jax.tree.map(average, totals), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
