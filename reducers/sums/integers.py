"""Means of integers, which floats do not hold: sums with room, and weighted means of the heights above the lowest."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import devices_and_lanes, gather_workers, num_workers
from reducers.dtypes import common_dtype, is_integer
from reducers.mask import Mask


def with_room(g: Any) -> jax.Array:
    """Returns integers of few bits in 32, so that the sum over all workers has room; floats as they are."""
    g = jnp.asarray(g)
    if not is_integer(g):
        return g
    wider = common_dtype(g.dtype, jnp.int32)  # of uint32 it is int32 unless JAX has 64 bits, and no dtype holds uint64
    has_room = jnp.issubdtype(wider, jnp.integer) and jnp.iinfo(wider).max >= jnp.iinfo(g.dtype).max
    return g.astype(wider) if has_room else g


def lowest(g: jax.Array, counted: Mask, axes: tuple[str, ...]) -> jax.Array:
    """Returns the lowest of all counted workers' integers, element by element, or 0 if none is counted; sends g.

    Args:
      g: this worker's integers.
      counted: the workers that are counted.
      axes: the worker axes, outer first.
    """
    devices, lanes = devices_and_lanes(axes)
    of_lanes = gather_workers(jnp.where(counted.own, g, _largest(g)), lanes).min(0)
    found = lax.pmin(of_lanes, devices) if devices else of_lanes
    return jnp.where(counted.whole.any(), found, 0)


def above(low: jax.Array, g: jax.Array) -> jax.Array:
    """Returns g - low as floats; the difference wraps around, and is right as an unsigned number."""
    return (g - low).astype(_unsigned(g)).astype(jnp.result_type(float))


def at(low: jax.Array, height: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Returns the integers at a height above others, rounded toward zero.

    Args:
      low: integers.
      height: a weighted mean, 0 or more, over all workers; within rounding of a whole number it is taken for that one.
        For NaN the result is the largest integer.
      axes: the worker axes.
    """
    near = 4 * num_workers(axes) * jnp.finfo(height.dtype).eps * height  # all terms of the sum are 0 or more
    nearest = jnp.round(height)
    is_whole = jnp.abs(height - nearest) <= near
    most = jnp.nextafter(jnp.asarray(2.0 ** jnp.iinfo(low.dtype).bits, height.dtype), jnp.zeros((), height.dtype))
    whole = jnp.where(is_whole, nearest, jnp.floor(height))
    floor = low + jnp.minimum(whole, most).astype(_unsigned(low)).astype(low.dtype)
    toward_zero = floor + ((floor < 0) & ~is_whole).astype(low.dtype)
    return jnp.where(jnp.isnan(height), _largest(low), toward_zero)


def _largest(g: jax.Array) -> jax.Array:
    return jnp.asarray(jnp.iinfo(g.dtype).max, g.dtype)


def _unsigned(g: jax.Array) -> jnp.dtype:
    return jnp.dtype(f"uint{jnp.iinfo(g.dtype).bits}")
