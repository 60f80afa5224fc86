"""Dropout for large activations: four decisions from each hash of the random generator."""

import math

import jax
from flax import linen as nn
from jax import lax
from jax import numpy as jnp
from jax.extend import random

from models.layers import batch_parts

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
        whole = batch_parts.whole_size(shape[0]), *shape[1:]
        return batch_parts.own(random_keeps(self.make_rng("dropout"), whole, least=self._threshold))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns an array like x, [...]; in training with the random key "dropout"."""
        keeps = self.keeps(x.shape)
        return x if keeps is None else jnp.where(keeps, x * self.factor, 0)


def random_keeps(key: jax.Array, shape: tuple[int, ...], *, least: int) -> jax.Array:
    """Returns which of random uint16 [*shape] are at least ``least``.

    They are the threefry hashes of 0, 1, 2, ... under ``key``, four numbers of each. The decisions are made before the
    hashes are laid out, so that a GPU writes two bits of each word instead of the word.

    >>> random_keeps(jax.random.key(0), (2, 3), least=2**15).dtype
    dtype('bool')
    """
    size = math.prod(shape)
    num_words = -(-size // 2)
    counts = lax.iota(jnp.uint32, num_words + num_words % 2) % jnp.uint32(
        max(num_words, 1)
    )  # an odd one is padded by 0
    words = random.threefry2x32_p.bind(*jax.random.key_data(key), *counts.reshape(2, -1))
    bits = [
        ((word & 0xFFFF) >= least).astype(jnp.uint8) | ((word >> 16) >= least).astype(jnp.uint8) << 1 for word in words
    ]
    keeps = (jnp.stack(bits)[..., None] & jnp.array([[[1, 2]]], jnp.uint8)) != 0
    return keeps.reshape(-1)[:size].reshape(shape)
