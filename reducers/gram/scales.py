"""Vectors of any scale: arithmetic that neither overflows nor underflows float32, from 1e-30 to 1e30."""

from collections.abc import Sequence

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.dtypes import as_real, common_dtype, wide

# A sum that is smaller than so many ulps of its terms is rounding noise.
NOISE_ULPS = 8
_BEYOND = 1 << 20  # an exponent larger than that of any number


def power_of_two(x: jax.Array) -> jax.Array:
    """Returns the power of two nearest to x >= 0, a scale that rounds nothing; 0 for 0.

    It is at most an eighth of the largest number: XLA multiplies by the inverse of a scale, and that of a larger one is
    subnormal, which XLA takes for 0.

    >>> power_of_two(jnp.array([0.0, 1.0, 5.0, 6.0]))
    Array([0., 1., 4., 8.], dtype=float32)
    """
    info = jnp.finfo(x.dtype)
    return lax.reduce_precision(jnp.minimum(x, info.max / 8), info.nexp, 0)


def nonzero(x: jax.Array) -> jax.Array:
    """Returns x, or 1 where x is 0, as a divisor."""
    return jnp.where(x == 0, 1, x)


def quotient(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns x / y for a y of any scale, or x where y is 0.

    XLA multiplies by 1 / y, which is subnormal, and so 0, for y > 8.5e37. Both are divided by a power of two first,
    which changes no bit of other quotients.

    >>> quotient(jnp.array([1e38, 3e38, 1.0]), jnp.array([2e38, 3e38, 0.0]))
    Array([0.5, 1. , 1. ], dtype=float32)
    """
    inverse = 1 / nonzero(power_of_two(jnp.abs(y)))
    return x * inverse / nonzero(y * inverse)


def without_noise(total: jax.Array, terms: jax.Array) -> jax.Array:
    """Returns a sum with 0 for its elements that are the rounding noise of terms that cancel out.

    This changes no element by more than its rounding error. But noise has a direction, and a projection onto it, taken
    away from another vector, is a large error. A compiled sum of products may differ from 0 where its terms cancel,
    since one of the products is not rounded.

    Args:
      total: the sum.
      terms: the sum of the terms' magnitudes.

    >>> without_noise(jnp.array([1e-8, 1e-2]), jnp.array([2.0, 2.0]))
    Array([0.  , 0.01], dtype=float32)
    """
    return jnp.where(jnp.abs(total) < NOISE_ULPS * jnp.finfo(total.dtype).eps * terms, 0, total)


def apart(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns exponent and mantissa of x >= 0; ordered by exponent first, the pairs are in the order of the numbers.

    >>> apart(jnp.array([0.0, 3.0, 4.0, jnp.inf]))[0]
    Array([-1048576,        2,        3,  1048576], dtype=int32)
    """
    mantissa, exponent = jnp.frexp(x)
    exponent = jnp.where(x == 0, -_BEYOND, jnp.where(jnp.isinf(x), _BEYOND, exponent))
    return exponent, jnp.where(jnp.isinf(x), x, mantissa)


def unit(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns scale and unit, x = scale * unit, the largest element of unit being about 1; (0, x) for zero."""
    scale = power_of_two(jnp.max(jnp.abs(x), initial=0.0))
    return scale, x / nonzero(scale)


def common_scale(arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the power of two nearest to the largest element of all arrays, in float32 at least.

    >>> common_scale([jnp.array([0.5, -3.5]), jnp.zeros(0)])
    Array(4., dtype=float32)
    """
    sizes = [jnp.abs(x) for x in arrays]
    dtype = common_dtype(jnp.float32, *(size.dtype for size in sizes))
    largest = [jnp.max(size, initial=0).astype(dtype) for size in sizes]
    return power_of_two(jnp.stack([jnp.zeros((), dtype), *largest]).max())


def norm_over(scale: jax.Array, arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the Euclidean norm of all arrays over a scale of theirs, so that no square leaves the dtype's range.

    >>> norm_over(jnp.array(2.0**100), [jnp.array([3 * 2.0**100]), jnp.array([4 * 2.0**100])])
    Array(5., dtype=float32)
    """
    parts = [wide(as_real(x)) for x in arrays]
    return optax.tree.norm([x / nonzero(scale).astype(x.dtype) for x in parts])
