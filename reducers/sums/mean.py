"""The mean over workers: plain synchronous SGD."""

from typing import Any

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, num_counted, num_workers, sum_workers, weigh
from reducers.dtypes import common_dtype, wide, wide_dtype
from reducers.mask import own_part
from reducers.reducer import Combine, Reducer, as_inner


def mean(axis_name: AxisName) -> Reducer:
    r"""Averages over all workers, as an all-reduce does.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_{i=1}^{n} g_i \qquad \text{or, weighted,} \qquad
        \frac{1}{\sum_i w_i} \sum_{i=1}^{n} w_i g_i

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.

    Returns:
      A stateless reducer. Dtypes are kept, and sums over devices are accumulated in them; the mean of integers, which
      are added up in 32 bits at least, is rounded toward zero. Its update takes ``contributes``, optional: a bool of
      each worker, whether it is counted; the mean is over the workers that are, and 0 where none is. The values of the
      others, even NaN, change nothing. It takes ``weights``, optional: a number of each worker, 0 or more, such as the
      number of examples or tokens that its gradient is the mean of; a worker of weight 0 is not counted. The weighted
      mean of integers is computed in float32, which holds each of them up to 16777216.

    >>> reducer = mean("worker")
    >>> jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981,
    with no backup workers.
    """
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, weights=None, **extra_args):
        del params, extra_args
        given = updates
        if weights is not None:
            contributes, shares = weigh(weights, contributes, axes)
            share = shares[lax.axis_index(axes)]
            updates = jax.tree.map(lambda g: jnp.where(contributes.own, times(share, g), 0), updates)
        totals = sum_workers(jax.tree.map(_without_overflow, updates), axes, where=own_part(contributes))
        count: Any = num_workers(axes)
        if contributes is not None:
            count = num_counted(contributes, axes, dtype=jnp.float32)
        return jax.tree.map(lambda g, total: _share(total, count).astype(jnp.result_type(g)), given, totals), state

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


def times(share: jax.Array, g: Any) -> jax.Array:
    """Returns a share, [] float32, of an array, computed in float32 at least; that of integers is float32."""
    g = jnp.asarray(g)
    g = g if jnp.issubdtype(g.dtype, jnp.inexact) else g.astype(jnp.float32)
    return (share.astype(wide_dtype(g)) * wide(g)).astype(g.dtype)


def _without_overflow(g: Any) -> Any:
    """Returns integers of few bits as such of 32, in which the sum over all workers has room."""
    g = jnp.asarray(g)
    if not jnp.issubdtype(g.dtype, jnp.integer):
        return g
    wider = common_dtype(g.dtype, jnp.int32)  # of uint32 it is int32 unless JAX has 64 bits, and no dtype holds uint64
    has_room = jnp.issubdtype(wider, jnp.integer) and jnp.iinfo(wider).max >= jnp.iinfo(g.dtype).max
    return g.astype(wider) if has_room else g


def _share(total: jax.Array, count: Any) -> jax.Array:
    """Returns the total over a count, a Python int or [] float32; in float32 at least, of integers toward zero."""
    count = count if isinstance(count, int) else jnp.maximum(count, 1)
    if jnp.issubdtype(total.dtype, jnp.integer):
        return lax.div(total, jnp.full_like(total, count))
    if isinstance(count, int):
        return total / count
    if jnp.iscomplexobj(total):
        return lax.complex(total.real / count, total.imag / count)
    return wide(total) / count.astype(wide_dtype(total))


def combiner_of(combine: Combine, axes: tuple[str, ...]) -> Reducer:
    """Returns the reducer that another one wraps; None is ``mean``.

    Raises:
      ValueError: if it is no transformation, or if it does not emit every update.
    """
    return mean(axes) if combine is None else as_inner(combine, key="combine")
