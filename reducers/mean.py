"""The mean over workers: plain synchronous SGD."""

import jax
import optax

from reducers.axes import AxisName, num_workers, sum_workers


def mean(axis_name: AxisName) -> optax.GradientTransformationExtraArgs:
    r"""Averages over all workers, as an all-reduce does.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_{i=1}^{n} g_i

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      A stateless reducer; dtypes are kept, and sums over devices are accumulated in them.

    >>> import jax.numpy as jnp
    >>> reducer = mean("worker")
    >>> jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981,
    with no backup workers.
    """

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        return jax.tree.map(lambda g: sum_workers(g, axis_name) / num_workers(axis_name), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
