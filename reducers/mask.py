"""Which workers a reducer counts: a mask that every worker knows whole, and the weights of workers."""

from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp


class Mask(NamedTuple):
    """The bools of all workers, each of whom knows them, such as from arrival times: a reducer sends nothing for them.

    A reducer gets it as ``contributes`` that says so (``Reducer.takes_mask`` is "whole"); others get their own bool.

    Attributes:
      own: [] bool, whether this worker is counted.
      whole: [W] bool, the same on all workers.
    """

    own: jax.Array
    whole: jax.Array


def own_part(contributes: Any) -> Any:
    """Returns this worker's bool of a mask, whether it is known whole or not; None for none."""
    return contributes.own if isinstance(contributes, Mask) else contributes


def bits_of_weight(weight: Any) -> jax.Array:
    """Returns the bits of what a worker weighs, in float32 at least; those of NaN for what is no weight.

    That is a negative number or an infinity: nothing can be raised in a program that is compiled, and NaN goes into the
    result, where it is seen. Bits, as a number without a sign, since to XLA on CPU a subnormal number is 0.

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
    """Returns what a worker weighs, in float32 at least, NaN for what is no weight; see ``bits_of_weight``."""
    bits = bits_of_weight(weight)
    return lax.bitcast_convert_type(bits, jnp.dtype(f"float{8 * bits.dtype.itemsize}"))


def has_weight(weight: Any) -> jax.Array:
    """Returns whether a worker of this weight is counted, as it is for any weight but 0.

    >>> jax.vmap(has_weight)(jnp.array([1e-45, 0.0, -0.0, jnp.nan]))
    Array([ True, False, False,  True], dtype=bool)
    """
    return bits_of_weight(weight) != 0
