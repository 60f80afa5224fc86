"""Vectors of any scale: arithmetic that neither overflows nor underflows float32, from 1e-30 to 1e30."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp


def wide_dtype(x: Any) -> Any:
    """Returns the dtype of x, or float32 if that is narrower: gradients are multiplied and added up in it."""
    return jnp.promote_types(x.dtype, jnp.float32)


def wide(x: jax.Array) -> jax.Array:
    """Returns x in float32 at least."""
    return x.astype(wide_dtype(x))


def power_of_two(x: jax.Array) -> jax.Array:
    """Returns the power of two nearest to x >= 0, a scale that rounds nothing; 0 for 0.

    At most an eighth of the largest number: XLA multiplies by the inverse of a scale, and takes that of a larger one,
    which is subnormal, for 0.

    >>> power_of_two(jnp.array([0.0, 1.0, 5.0, 6.0]))
    Array([0., 1., 4., 8.], dtype=float32)
    """
    info = jnp.finfo(x.dtype)
    return lax.reduce_precision(jnp.minimum(x, info.max / 8), info.nexp, 0)


def nonzero(x: jax.Array) -> jax.Array:
    """Returns x, or 1 where x is 0, as a divisor."""
    return jnp.where(x == 0, 1, x)


def unit(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns scale and unit, x = scale * unit, the largest element of unit being about 1; (0, x) for zero."""
    scale = power_of_two(jnp.max(jnp.abs(x), initial=0.0))
    return scale, x / nonzero(scale)
