"""Finds which workers a mask or weights count, and how many, without a collective if it is a ``Mask``."""

from typing import Any

import jax
from jax import numpy as jnp

from reducers.collectives.axes import gather_workers
from reducers.collectives.buckets import sum_workers
from reducers.mask import Mask, bits_of_weight, own_part


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
    """Returns which workers are counted, and each weight over the mean weight of these workers.

    Args:
      weights: [], of this worker, 0 or more; a worker with 0 is not counted.
      contributes: see ``whole_mask``; None counts all.
      axes: the worker axes, outer first.

    Returns:
      The mask, and the shares, [W], the same on all workers, which add up to the number of those that are counted: in
      float32, or in float64 where JAX has it. They are all NaN where a weight of a worker that `contributes` counts is
      negative, NaN or infinite.

    >>> shares = lambda weight: weigh(weight, None, ("worker",))[1]
    >>> jax.vmap(shares, axis_name="worker")(jnp.array([1.0, 3.0, 0.0]))[0]
    Array([0.5, 1.5, 0. ], dtype=float32)
    """
    counted = True if contributes is None else jnp.asarray(own_part(contributes), bool)
    given = jnp.where(counted, bits_of_weight(weights), 0)
    whole = gather_workers(given, axes)
    mask = Mask(given != 0, whole != 0)
    of_each = _over_largest(whole)
    total = jnp.where(mask.whole.any(), of_each.sum(), 1)
    return mask, of_each * (mask.whole.sum(dtype=of_each.dtype) / total)


def _over_largest(bits: jax.Array) -> jax.Array:
    """Returns weights, [W], over a power of two, so that their sum neither overflows nor is subnormal; NaN if one is.

    Nothing is divided, since the reciprocal of a large power of two is subnormal itself.

    Args:
      bits: the bits of the weights.
    """
    dtype = jnp.result_type(float)
    info = jnp.finfo(jnp.dtype(f"float{8 * bits.dtype.itemsize}"))
    exponents = jnp.maximum(bits >> info.nmant, 1)  # subnormal numbers have that of the smallest normal ones
    digits = (bits - (exponents - 1 << info.nmant)).astype(dtype)  # the weight is this times 2^(exponent - a constant)
    exponents = exponents.astype(jnp.int32)
    below = exponents - jnp.max(exponents, where=bits != 0, initial=1)
    scaled = jnp.ldexp(digits, jnp.maximum(below, jnp.finfo(dtype).minexp))
    return jnp.where((exponents == (1 << info.nexp) - 1).any(), jnp.nan, scaled)
