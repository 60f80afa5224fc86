"""The median over workers, coordinate by coordinate: a minority of wild gradients cannot move it far."""

import optax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, gather_workers, map_together
from reducers.reducer import Reducer


def coordinate_median(axis_name: AxisName) -> Reducer:
    r"""Takes the median over all workers, of each coordinate by itself.

    .. math:: R(g_1, \dots, g_n)_j = \operatorname{median}(g_{1j}, \dots, g_{nj})

    For an even number of workers it is the mean of the two in the middle.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      A stateless reducer; dtypes are kept, arithmetic is in float32 at least. It gathers all gradients: n times the
      memory of one. NaN counts as the largest value, so that a minority of workers with NaN is outvoted as any other.
      Its update takes ``contributes``, optional: a bool of each worker, whether it is counted; the median is of those
      that are, and NaN where none is.

    >>> import jax
    >>> reducer = coordinate_median("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 2.0, 90.0]))
    Array([2., 2., 2.], dtype=float32)

    Reference: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, arXiv 1803.01498.
    """
    axes = axes_of(axis_name)

    def median_of(g, contributes, count):
        masked = jnp.where(contributes, g, jnp.nan)  # NaN is last in the order
        ordered = jnp.sort(gather_workers(masked, axes), axis=0)
        lower, upper = ordered[(count - 1) // 2], ordered[count // 2]
        wide = jnp.promote_types(g.dtype, jnp.float32)
        middle = jnp.stack([lower, jnp.where(count % 2 == 0, upper, lower)])
        return jnp.mean(middle, axis=0, dtype=wide).astype(g.dtype)

    def median(g):
        ordered = jnp.sort(gather_workers(g, axes), axis=0)  # (W, ...), NaN last
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]  # one, or two
        return jnp.mean(middle, axis=0, dtype=jnp.promote_types(g.dtype, jnp.float32)).astype(g.dtype)

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        if contributes is None:
            return map_together(median, updates, axis_name=axes), state
        count = lax.psum(jnp.asarray(contributes, jnp.int32), axes)
        return map_together(lambda g: median_of(g, contributes, count), updates, axis_name=axes), state

    return Reducer(optax.init_empty_state, update_fn, axis_name=axes, takes_mask=True, homogeneous=True)
