"""Means of the values in the middle, coordinate by coordinate: each device sorts a slice of all workers' gradients."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.collectives import (
    Devices,
    backend,
    devices_and_lanes,
    from_slices,
    gather_workers,
    map_together,
    num_counted,
    num_workers,
    to_slices,
    too_small,
)
from reducers.dtypes import wide
from reducers.mask import own_part


def mean_of_middle(updates: Any, axes: tuple[str, ...], *, num_trimmed: int, contributes: Any) -> Any:
    r"""Averages over workers what is left of each coordinate's values without the largest and the smallest ones.

    .. math:: R(g_1, \dots, g_n)_j = \frac{1}{n - 2k} \sum_{i=k+1}^{n-k} g_{(i)j}

    Args:
      updates: a tree of this worker's arrays.
      axes: the worker axes, outer first.
      num_trimmed: k, how many values are dropped at either end; (n - 1) // 2 of n workers that are counted, if that is
        less.
      contributes: whether this worker is counted, or a ``Mask``; None counts all.

    Returns:
      The tree of means, in the dtypes of the updates. NaN counts as the largest value; means of no workers are NaN.
    """
    devices, lanes = devices_and_lanes(axes)
    total = num_workers(axes)
    count: Any = total
    trimmed: Any = min(num_trimmed, (total - 1) // 2)
    if contributes is not None:
        count = num_counted(contributes, axes, dtype=jnp.int32)
        trimmed = jnp.minimum(trimmed, (count - 1) // 2)

    def of_rows(rows: jax.Array) -> jax.Array:  # (W, m) -> (m,)
        parts = backend.sort_rows(wide(rows))
        places = np.arange(total, dtype=np.int32).reshape(len(parts), -1, 1)
        kept = [jnp.where((trimmed <= i) & (i < count - trimmed), x, 0) for i, x in zip(places, parts, strict=True)]
        left = count - 2 * trimmed

        def share(total: jax.Array) -> jax.Array:
            return total / jnp.asarray(left, total.dtype)

        mean = share(_added(kept))
        # A sum can overflow where the mean does not.
        return jnp.where(jnp.isfinite(mean), mean, _added([share(x) for x in kept]))

    def reduce(g: jax.Array) -> jax.Array:
        # Where a worker is not counted it has NaN, which is last in the order.
        sent = (g if contributes is None else jnp.where(own_part(contributes), g, jnp.nan)).ravel()
        if num_workers(devices) == 1 or too_small(g.size, num_gradients=total):
            result = of_rows(gather_workers(sent, axes)).astype(g.dtype)
        else:
            (slices,) = to_slices([gather_workers(sent, lanes)], Devices(devices))
            middle = of_rows(slices).astype(g.dtype)
            (result,) = from_slices(middle, [g.size], Devices(devices))
        return result.reshape(g.shape)

    return map_together(reduce, updates, axis_name=axes)


def _added(parts: Sequence[jax.Array]) -> jax.Array:
    """Returns the sum of all rows of some arrays, [rows, m] each."""
    return functools.reduce(operator.add, map(backend.sum_rows, parts))
