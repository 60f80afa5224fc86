"""Which workers a mask counts, and how many: a ``Mask`` says so without a collective."""

from typing import Any

import jax
from jax import numpy as jnp

from reducers.collectives.axes import gather_workers
from reducers.collectives.buckets import sum_workers
from reducers.mask import Mask


def whole_mask(contributes: Any, axes: tuple[str, ...]) -> jax.Array:
    """Returns which workers are counted, [W] bool, in the order of ``axes``.

    Args:
      contributes: whether this worker is counted, or a ``Mask``.
      axes: the worker axes, outer first.

    >>> jax.vmap(lambda counted: whole_mask(counted, ("worker",)), axis_name="worker")(jnp.array([True, False]))[0]
    Array([ True, False], dtype=bool)
    """
    return contributes.whole if isinstance(contributes, Mask) else gather_workers(jnp.asarray(contributes, bool), axes)


def num_counted(contributes: Any, axes: tuple[str, ...], *, dtype: Any) -> jax.Array:
    """Returns how many workers are counted, as a number of this dtype; the arguments are those of `whole_mask`.

    >>> count = lambda counted: num_counted(counted, ("worker",), dtype=jnp.int32)
    >>> jax.vmap(count, axis_name="worker")(jnp.array([True, False, True]))
    Array([2, 2, 2], dtype=int32)
    """
    if isinstance(contributes, Mask):
        return jnp.sum(contributes.whole, dtype=dtype)
    return sum_workers(jnp.asarray(contributes, dtype), axes)
