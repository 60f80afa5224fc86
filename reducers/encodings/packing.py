"""Payloads as 32-bit words: whole numbers of few bits side by side, and the bits of all other arrays."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import cut, join

WORD = 32


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["bits"])
@dataclasses.dataclass
class Codes:
    """Whole numbers, each of few bits.

    Attributes:
      values: [m] uint32, each below 2^bits.
      bits: 1 to 32.
    """

    values: Any
    bits: int


def num_words(count: int, bits: int, *, slot: int = WORD) -> int:
    """Returns the number of words that ``count`` numbers of ``bits`` bits each take, padding included.

    >>> num_words(32, 3), num_words(33, 3)
    (3, 5)
    """
    return sum(-(-count * width // slot) for _, width in _parts(bits))


def pack(values: jax.Array, bits: int, *, slot: int = WORD) -> jax.Array:
    """Packs numbers below 2^bits, [m], into [num_words] words.

    A number is cut into parts whose widths are powers of two, such as 4 + 1 bits of 5, and 32 / width parts share a
    word. Neighbours in a word are from different stretches of the array, so that neighbours in the array stay so.

    Args:
      values: a number in each word, or one in each slot of it.
      bits: how many bits of each number are not 0; at most ``slot``.
      slot: the bits of a slot, such as 16 where numbers are packed in 16 bits already.

    >>> pack(jnp.array([1, 2, 3], jnp.uint32), 8)
    Array([197121], dtype=uint32)
    """
    return join([_pack_part(values >> shift, width, slot) for shift, width in _parts(bits)])


def unpack(words: jax.Array, count: int, bits: int, *, slot: int = WORD) -> jax.Array:
    """Returns the numbers that were packed, [count].

    >>> unpack(pack(jnp.array([5, 0, 7], jnp.uint32), 3), 3, 3)
    Array([5, 0, 7], dtype=uint32)
    """
    packed = cut(words, [num_words(count, width, slot=slot) for _, width in _parts(bits)])
    parts = [
        _unpack_part(part, count, width, slot) << shift
        for part, (shift, width) in zip(packed, _parts(bits), strict=True)
    ]
    return functools.reduce(jnp.bitwise_or, parts)


def _parts(bits: int) -> Iterator[tuple[int, int]]:
    """Yields the lowest bit and the width of each part: the binary digits of ``bits``."""
    shift = 0
    for width in (1 << digit for digit in range(WORD.bit_length())):
        if bits & width:
            yield shift, width
            shift += width


def _pack_part(values: jax.Array, width: int, slot: int) -> jax.Array:
    if width == slot:
        return values
    values, length = values & _mask(width, slot), num_words(values.size, width, slot=slot)
    whole = values.size // max(length, 1)  # stretches; only a last one that is shorter is padded, which XLA does slowly
    shifts = _shifts(width, slot)
    # Stretches share no bit, so that their sum is their union; XLA fuses sums with their terms.
    words = jnp.sum(values[: whole * length].reshape(whole, length) << shifts[:whole], axis=0, dtype=jnp.uint32)
    last = values[whole * length :]
    return words | jnp.pad(last << shifts[whole], (0, length - last.size)) if last.size else words


def _unpack_part(words: jax.Array, count: int, width: int, slot: int) -> jax.Array:
    if width == slot:
        return words
    return ((words[None] >> _shifts(width, slot)) & _mask(width, slot)).reshape(-1)[:count]


def _shifts(width: int, slot: int) -> np.ndarray:
    return np.arange(0, slot, width, dtype=np.uint32)[:, None]


def _mask(width: int, slot: int) -> np.uint32:
    """Returns the lowest bits of each slot."""
    return np.uint32(sum((1 << width) - 1 << place for place in range(0, WORD, slot)))


# ---- whole payloads ------------------------------------------------------------------------------------------------


def to_words(payload: Any) -> jax.Array:
    """Returns a tree of arrays and ``Codes`` as one array of words."""
    return join([_array_to_words(part) for part in _arrays(payload)])


def from_words(words: jax.Array, like: Any) -> Any:
    """Returns the payload that ``to_words`` turned into these words.

    Args:
      words: the result of ``to_words``.
      like: a payload of the same shapes, or its shapes.

    >>> payload = {"codes": Codes(jnp.array([1, 2], jnp.uint32), 2), "scale": jnp.array([0.5])}
    >>> from_words(to_words(payload), payload)
    {'codes': Codes(values=Array([1, 2], dtype=uint32), bits=2), 'scale': Array([0.5], dtype=float32)}
    """
    arrays = _arrays(like)
    parts = cut(words, [_size_in_words(part) for part in arrays])
    found = [_array_from_words(part, one) for part, one in zip(parts, arrays, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(like, is_leaf=_is_codes), found)


def size_in_words(like: Any) -> int:
    """Returns the number of words of a payload, or of one of these shapes.

    >>> size_in_words([Codes(jnp.zeros(9), 3), jnp.zeros(3, jnp.float16)])
    4
    """
    return sum(map(_size_in_words, _arrays(like)))


def _is_codes(node: Any) -> bool:
    return isinstance(node, Codes)


def _arrays(payload: Any) -> list[Any]:
    return jax.tree.leaves(payload, is_leaf=_is_codes)


def _size_in_words(part: Any) -> int:
    if isinstance(part, Codes):
        return num_words(part.values.size, part.bits)
    bits = 8 * jnp.dtype(part.dtype).itemsize
    return num_words(part.size, bits) if bits < WORD else part.size * bits // WORD


def _array_to_words(part: Any) -> jax.Array:
    if isinstance(part, Codes):
        return pack(part.values, part.bits)
    bits = 8 * part.dtype.itemsize
    if bits < WORD:
        return pack(lax.bitcast_convert_type(part.ravel(), _unsigned(bits)).astype(jnp.uint32), bits)
    return lax.bitcast_convert_type(part, jnp.uint32).ravel()


def _array_from_words(words: jax.Array, like: Any) -> Any:
    if isinstance(like, Codes):
        return Codes(unpack(words, like.values.size, like.bits), like.bits)
    bits = 8 * jnp.dtype(like.dtype).itemsize
    if bits < WORD:
        bits_of_each = unpack(words, math.prod(like.shape), bits).astype(_unsigned(bits))
    else:
        bits_of_each = words.reshape(-1, bits // WORD) if bits > WORD else words
    return lax.bitcast_convert_type(bits_of_each, like.dtype).reshape(like.shape)


def _unsigned(bits: int) -> Any:
    return jnp.dtype(f"uint{bits}")
