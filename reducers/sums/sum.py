"""The sum over workers, with which Adasum's authors compare."""

import optax

from reducers.collectives import AxisName, axes_of, sum_workers
from reducers.mask import own_part
from reducers.reducer import Reducer


def sum(axis_name: AxisName) -> Reducer:  # noqa: A001 - the field's name for it
    r"""Sums over all workers; the mean with a learning rate n times as large, for SGD.

    .. math:: R(g_1, \dots, g_n) = \sum_{i=1}^{n} g_i

    Args:
      axis_name: the worker axis or axes.

    Returns:
      A stateless reducer; dtypes are kept, and sums over devices are accumulated in them: those of integers wrap
      around. Its update takes ``contributes``, optional: a bool of each worker, whether it is counted; the sum over
      fewer workers is smaller.

    >>> import jax, jax.numpy as jnp
    >>> reducer = sum("worker")
    >>> jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([4., 4.], dtype=float32)

    Reference: the baseline of Maleki et al., "Scaling Distributed Training with Adaptive Summation",
    arXiv 2006.02924.
    """

    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        return sum_workers(updates, axes, where=own_part(contributes)), state

    return Reducer(
        optax.init_empty_state, update_fn, axis_name=axes, takes_mask="whole", homogeneous=True, numbers="number"
    )
