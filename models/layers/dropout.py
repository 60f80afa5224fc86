"""Dropout for large activations: four decisions from each hash of the random generator."""

import math

import jax
import numpy as np
from flax import linen as nn
from jax import lax
from jax import numpy as jnp
from jax.extend import random

from models.layers import batch_parts
from reducers import targets

_RESOLUTION = 2**16  # a decision takes 16 bits


class Dropout(nn.Module):
    r"""Sets a share of the activations to zero in training, and scales up the others, which preserves the mean.

    .. math:: y = x \, k / (1 - p), \quad k \sim \text{Bernoulli}(1 - p)

    ``nn.Dropout`` does the same with a hash of 64 bits for each activation. Here each hash decides on four of them,
    which takes a quarter of the time on 2 CPU cores; text models spend much of their time on dropout. The decisions
    come from the same generator, threefry, and depend only on the key, not on lanes or devices.

    Args:
      rate: Share p to drop, rounded to a multiple of 2^-16 below 1.
      deterministic: True drops nothing.

    Reference: Srivastava et al., "Dropout", 2014; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """

    rate: float
    deterministic: bool

    @property
    def drops_nothing(self) -> bool:
        """Whether every activation is kept."""
        return self.deterministic or self._threshold == 0

    @property
    def _threshold(self) -> int:
        return min(round(self.rate * _RESOLUTION), _RESOLUTION - 1)  # below 1, so that some activations are kept

    @property
    def factor(self) -> float:
        """The factor of the activations that are kept."""
        return 1.0 if self.drops_nothing else _RESOLUTION / (_RESOLUTION - self._threshold)

    def keeps(self, shape: tuple[int, ...]) -> jax.Array | None:
        """Returns which activations [*shape] are kept, by the random key "dropout"; None if all are."""
        if self.drops_nothing:
            return None
        key, parts = self.make_rng("dropout"), batch_parts.whole_size(1)
        return random_keeps(key, shape, least=self._threshold, part=batch_parts.index(), parts=parts)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns an array like x, [...]; in training with the random key "dropout"."""
        keeps = self.keeps(x.shape)
        return x if keeps is None else jnp.where(keeps, x * self.factor, 0)


def random_keeps(
    key: jax.Array, shape: tuple[int, ...], *, least: int, part: jax.Array | int = 0, parts: int = 1
) -> jax.Array:
    """Returns which of random uint16 [*shape] are at least ``least``.

    They are the threefry hashes of 0, 1, 2, ... under ``key``, four numbers of each.

    Args:
      key: the random key.
      shape: of the decisions.
      least: the smallest number that is kept.
      part: which part of a larger array they are, cut along the first axis.
      parts: the number of its parts.

    >>> random_keeps(jax.random.key(0), (2, 3), least=2**15).dtype
    dtype('bool')
    """
    size = math.prod(shape)
    num_words = -(-size * parts // 2)
    half = -(-num_words // 2)  # a hash makes the words h and half + h
    padded = jnp.uint32(max(num_words, 1))  # an odd number of words is padded by the word 0

    def words(counts: jax.Array) -> list[jax.Array]:
        return random.threefry2x32_p.bind(*jax.random.key_data(key), counts, (counts + half) % padded)

    if parts == 1 and targets.platform() != "tpu":
        # Decisions are made before the hashes are laid out, so that a GPU writes two bits of each word, not the word.
        bits = [
            ((word & 0xFFFF) >= least).astype(jnp.uint8) | ((word >> 16) >= least).astype(jnp.uint8) << 1
            for word in words(lax.iota(jnp.uint32, half))
        ]
        keeps = (jnp.stack(bits)[..., None] & jnp.array([[[1, 2]]], jnp.uint8)) != 0
        return keeps.reshape(-1)[:size].reshape(shape)
    # Each decision makes its own hash: a part does not make those of other parts, and a TPU lays nothing out anew,
    # where two decisions of a word would take the room of 128.
    strides = np.cumprod([1, *shape[:0:-1]])[::-1]
    place = sum(lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(n) for axis, n in enumerate(strides))
    place += jnp.uint32(part) * (size % 2)
    word = jnp.uint32(part) * (size // 2) + place // 2
    is_second = word >= half
    first, second = words(jnp.where(is_second, word - half, word))
    return (jnp.where(is_second, second, first) >> (place % 2 * 16) & 0xFFFF) >= least
