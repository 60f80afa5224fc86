"""Finds which workers a mask or weights count, and how many; a ``Mask`` knows it without a collective."""

from typing import Any

import jax
from jax import numpy as jnp

from reducers.collectives.axes import gather_workers
from reducers.collectives.buckets import sum_workers
from reducers.mask import Mask, own_part


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


def weigh(weights: Any, contributes: Any, axes: tuple[str, ...]) -> tuple[Mask, jax.Array]:
    """Returns which workers are counted, and what each weighs, over the mean weight of those.

    Args:
      weights: [], of this worker, 0 or more; a worker with 0 is not counted.
      contributes: as of `whole_mask`; None counts all.
      axes: the worker axes, outer first.

    Returns:
      The mask, and the shares, [W], the same on all workers, which add up to the number of those that are counted.

    >>> shares = lambda weight: weigh(weight, None, ("worker",))[1]
    >>> jax.vmap(shares, axis_name="worker")(jnp.array([1.0, 3.0, 0.0]))[0]
    Array([0.5, 1.5, 0. ], dtype=float32)
    """
    counted = True if contributes is None else jnp.asarray(own_part(contributes), bool)
    given = jnp.where(counted, jnp.asarray(weights, jnp.float32), 0)
    whole = gather_workers(given, axes)
    mask = Mask(given != 0, whole != 0)
    whole = _over_largest(whole)
    total = jnp.where(mask.whole.any(), whole.sum(), 1)
    return mask, whole * (mask.whole.sum(dtype=jnp.float32) / total)


def _over_largest(weights: jax.Array) -> jax.Array:
    """Returns weights, [W] float32, over a power of two, so that their sum neither overflows nor is subnormal.

    Nothing is divided, since the reciprocal of a large power of two is subnormal itself.
    """
    digits, exponent = jnp.frexp(weights)
    below = exponent - jnp.max(exponent, where=digits != 0, initial=jnp.finfo(jnp.float32).minexp)
    return jnp.ldexp(digits, jnp.maximum(below, jnp.finfo(jnp.float32).minexp))
