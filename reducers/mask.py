"""Which workers a reducer counts: a mask that every worker knows whole, and the weights of workers."""

from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp


class Mask(NamedTuple):
    """The bools of all workers. Each worker knows them, such as from arrival times, so a reducer need not gather them.

    Reducers whose ``takes_mask`` is "whole" get it as ``contributes``; others get this worker's bool.

    Attributes:
      own: [] bool, whether this worker is counted.
      whole: [W] bool, the same on all workers.
    """

    own: jax.Array
    whole: jax.Array


def own_part(contributes: Any) -> Any:
    """Returns this worker's bool, given that or the whole mask; None for None."""
    return contributes.own if isinstance(contributes, Mask) else contributes


def bits_of_weight(weight: Any) -> jax.Array:
    """Returns the bits of a worker's weight, in float32 at least; those of NaN for a negative or infinite one.

    A compiled program cannot raise an error, but a NaN shows in the result. The weight is returned as bits, an unsigned
    integer, since XLA on CPU takes subnormal numbers for 0.

    >>> lax.bitcast_convert_type(jax.vmap(bits_of_weight)(jnp.array([2.0, -0.0, -1.0])), jnp.float32)
    Array([ 2.,  0., nan], dtype=float32)
    """
    weight = jnp.asarray(weight)
    if not jnp.issubdtype(weight.dtype, jnp.floating) or weight.dtype.itemsize < 4:
        weight = weight.astype(jnp.result_type(float))
    info = jnp.finfo(weight.dtype)
    bits = lax.bitcast_convert_type(weight, jnp.dtype(f"uint{info.bits}"))
    size = bits << 1 >> 1  # without the sign
    infinity = jnp.asarray((1 << info.nexp) - 1 << info.nmant, bits.dtype)
    is_weight = (size < infinity) & ((size == bits) | (size == 0))
    return jnp.where(is_weight, size, infinity + 1)


def as_weight(weight: Any) -> jax.Array:
    """Returns a worker's weight, in float32 at least; NaN for a negative or infinite one, see ``bits_of_weight``."""
    bits = bits_of_weight(weight)
    return lax.bitcast_convert_type(bits, jnp.dtype(f"float{8 * bits.dtype.itemsize}"))


def has_weight(weight: Any) -> jax.Array:
    """Returns whether a worker of this weight is counted: any weight but 0 counts.

    >>> jax.vmap(has_weight)(jnp.array([1e-45, 0.0, -0.0, jnp.nan]))
    Array([ True, False, False,  True], dtype=bool)
    """
    return bits_of_weight(weight) != 0
