"""Means of the values in the middle, coordinate by coordinate: each device sorts a slice of all workers' gradients."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import (
    Devices,
    backend,
    devices_and_lanes,
    from_slices,
    gather_workers,
    join,
    map_together,
    num_counted,
    num_workers,
    to_slices,
    too_small,
    weigh,
)
from reducers.dtypes import wide
from reducers.mask import own_part


def mean_of_middle(
    updates: Any,
    axes: tuple[str, ...],
    *,
    num_trimmed: int | None,
    contributes: Any,
    weights: Any = None,
    around_median: bool = False,
) -> Any:
    r"""Averages each coordinate over the workers, without its largest and smallest values.

    .. math:: R(g_1, \dots, g_n)_j = \frac{1}{n - 2k} \sum_{i=k+1}^{n-k} g_{(i)j}

    With weights, scaled to add up to n, a value takes up as much of the order as it weighs, and the part of the order
    from k to n - k is averaged. Around the median, the mean is that of the n - k values nearest to it.

    Args:
      updates: a tree of this worker's arrays.
      axes: the worker axes, outer first.
      num_trimmed: k, how many values are dropped at either end, at most (n - 1) // 2 of n workers that are counted.
        None is the median; with weights, that is the mean of the values that reach the middle.
      contributes: whether this worker is counted, or a ``Mask``; None counts all.
      weights: this worker's, [], 0 or more; None if all weigh the same.
      around_median: whether k values are dropped in all, those farthest from the median; not with weights.

    Returns:
      The tree of means, in the dtypes of the updates. NaN counts as the largest value; the mean of no workers is 0,
      and NaN if a weight is invalid.
    """
    devices, lanes = devices_and_lanes(axes)
    total = num_workers(axes)
    count: Any = total
    most = (total - 1) // 2 if num_trimmed is None else min(num_trimmed, (total - 1) // 2)
    trimmed: Any = most
    shares = None
    if weights is not None:
        contributes, shares = weigh(weights, contributes, axes)
    if contributes is not None:
        count = num_counted(contributes, axes, dtype=jnp.int32)
        trimmed = jnp.minimum(most, jnp.maximum(count - 1, 0) // 2)

    def of_rows(rows):  # (W, m) -> (m,)
        if shares is not None:
            return _weighted_middle(wide(rows), shares, count=count, is_median=num_trimmed is None, trimmed=trimmed)
        parts = backend.sort_rows(wide(rows))
        first, left = trimmed, count - 2 * trimmed
        if around_median:
            left = count - trimmed
            first = _first_around_median(parts, count=count, left=left, most=most)
        places = np.arange(total, dtype=np.int32).reshape(len(parts), -1, 1)
        kept = [jnp.where((first <= i) & (i < first + left), x, 0) for i, x in zip(places, parts, strict=True)]

        def share(total):
            return total / jnp.maximum(left, 1).astype(total.dtype)

        mean = share(_added(kept))
        # A sum can overflow where the mean does not.
        return jnp.where(jnp.isfinite(mean), mean, _added([share(x) for x in kept]))

    def reduce(g):
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


def _first_around_median(parts: Sequence[jax.Array], *, count: Any, left: Any, most: int) -> jax.Array:
    """Returns the place of the first of so many sorted values nearest to the median, [1, m]; the smaller of equals."""
    halves = join(list(parts), axis=0) / 2  # whose differences do not overflow

    def at(place):
        return lax.dynamic_index_in_dim(halves, place, keepdims=False)

    median = at((count - 1) // 2) / 2 + at(count // 2) / 2

    def farthest(first):
        low, high = median - at(first), at(first + left - 1) - median
        largest = jnp.maximum(low, high)
        return jnp.where((first + left <= count) & ~jnp.isnan(largest), largest, jnp.inf)

    return jnp.stack([farthest(first) for first in range(most + 1)]).argmin(0, keepdims=True).astype(jnp.int32)


def _weighted_middle(
    rows: jax.Array, shares: jax.Array, *, count: jax.Array, is_median: bool, trimmed: jax.Array
) -> jax.Array:
    """Returns the weighted mean of the middle of each column, [W, m] -> [m]; shares add up to the count."""
    order = jnp.argsort(rows, axis=0)
    values = jnp.take_along_axis(rows, order, 0)
    lengths = shares.astype(rows.dtype)[order]
    ends = jnp.cumsum(lengths, axis=0)
    half = count.astype(rows.dtype) / 2
    # A value ends at the middle if it does up to the rounding of the sums of shares.
    near = 8 * jnp.finfo(rows.dtype).eps * count.astype(rows.dtype)
    if is_median:
        kept = ((ends - lengths <= half + near) & (ends >= half - near) & (lengths > 0)).astype(rows.dtype)
    else:
        first = trimmed.astype(rows.dtype)
        kept = jnp.maximum(jnp.minimum(ends, 2 * half - first) - jnp.maximum(ends - lengths, first), 0)
        kept = jnp.where(kept > near, kept, 0)
    total = kept.sum(0)
    nobody = jnp.where((total > 0) | (count == 0), 0, jnp.nan)  # a weight of NaN leaves nothing either
    return jnp.where(kept > 0, kept / total[None] * values, 0).sum(0) + nobody


def _added(parts: Sequence[jax.Array]) -> jax.Array:
    """Returns the sum of all rows of some arrays, [rows, m] each."""
    return functools.reduce(operator.add, map(backend.sum_rows, parts))
