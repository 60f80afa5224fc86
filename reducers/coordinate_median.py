"""The median over workers, coordinate by coordinate: a minority of wild gradients cannot move it far."""

import jax
import optax
from jax import numpy as jnp

from reducers.axes import AxisName, gather_workers


def coordinate_median(axis_name: AxisName) -> optax.GradientTransformationExtraArgs:
    r"""Takes the median over all workers, of each coordinate by itself.

    .. math:: R(g_1, \dots, g_n)_j = \operatorname{median}(g_{1j}, \dots, g_{nj})

    Of an even number of workers it is the mean of the two in the middle.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      A stateless reducer; dtypes are kept, arithmetic is in float32 at least. It gathers all gradients: n times the
      memory of one. NaN counts as the largest value, so that a minority of workers with NaN is outvoted as any other.

    >>> reducer = coordinate_median("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 2.0, 90.0]))
    Array([2., 2., 2.], dtype=float32)

    Reference: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, arXiv 1803.01498.
    """
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name

    def median(g):
        ordered = jnp.sort(gather_workers(g, axes), axis=0)  # (W, ...), NaN last
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]  # one, or two
        return jnp.mean(middle, axis=0, dtype=jnp.promote_types(g.dtype, jnp.float32)).astype(g.dtype)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        return jax.tree.map(median, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)
