"""Rounding at random, so that the mean of what is rounded is the number itself."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

# The kind of all keys here, whatever JAX's default is: those of two words.
_KIND = "threefry2x32"


def key_of(seed: int) -> jax.Array:
    """Returns the key of a seed, of the kind with two words.

    >>> jax.random.key_data(key_of(3))
    Array([0, 3], dtype=uint32)
    """
    return jax.random.key(seed, impl=_KIND)


def round_at_random(key: jax.Array, x: jax.Array) -> jax.Array:
    r"""Rounds up or down, up with the probability of the fraction that is cut off.

    .. math:: P(\lfloor x \rfloor + 1) = x - \lfloor x \rfloor, \qquad E[\mathrm{round}(x)] = x

    Args:
      key: a key for this array alone, see ``derived``.
      x: [m] float.

    >>> draws = jax.vmap(lambda seed: round_at_random(key_of(seed), jnp.array([0.5, -2.0])))(jnp.arange(1000))
    >>> draws.mean(0).round(1), jnp.unique(draws)
    (Array([ 0.5, -2. ], dtype=float32), Array([-2.,  0.,  1.], dtype=float32))
    """
    below = jnp.floor(x)
    return below + (uniform(key, x.size).astype(x.dtype) < x - below).astype(x.dtype)


def uniform(key: jax.Array, size: int) -> jax.Array:
    """Returns numbers in [0, 1), multiples of 2^-24, [size] float32.

    Each is a mix of its place with the two words of the key. JAX's own generator would take longer on a CPU than all
    the rest of an encoding: for 10 M floats of 8 workers 2.0 s of 2.3 s, where this takes less than 0.15 s.
    """
    first, second = jax.random.key_data(key)
    mixed = _mix(_mix(lax.iota(jnp.uint32, size) + first) ^ second)
    return (mixed >> 8).astype(jnp.int32).astype(jnp.float32) * jnp.float32(2**-24)  # XLA converts int32 faster


def derived(key: jax.Array, number: Any) -> jax.Array:
    """Returns a key that follows from another one and a number, as ``jax.random.fold_in`` does.

    A program has one for each slice of each leaf, which JAX's own would make slow to compile: ResNet-50's leaves take
    four times as long.

    Args:
      key: a key of two words, as ``key_of`` returns it.
      number: an integer.
    """
    first, second = jax.random.key_data(key)
    word = _mix(jnp.asarray(number, jnp.uint32) + jnp.uint32(0x9E3779B9))
    first = _mix(first ^ word)
    return jax.random.wrap_key_data(jnp.stack([first, _mix(second + word ^ first)]), impl=_KIND)


def _mix(x: jax.Array) -> jax.Array:
    """Maps 32-bit words one to one, so that each bit of the result depends on all bits of the word.

    Reference: "lowbias32" of Wellons, "Prospecting for Hash Functions", 2018, known from memory; tests check the
    properties that are used.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
