"""Probability models of the 256 values of a pixel's channels."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

MIN_LOG_SCALE, MAX_LOG_SCALE = -7.0, 7.0


class Likelihood(NamedTuple):
    """Defines how a network's outputs give the probability of an image.

    Attributes:
      shape: ``(C, K) -> shape`` of the outputs for one pixel with C channels and K mixture components.
      groups: ``C -> number of channel groups`` that the network must keep in order within a pixel: C if a channel's
        outputs may depend on the pixel's earlier channels, 1 if they may depend on no channel of the pixel.
      log_prob: ``(outputs [B, H, W, *shape], image [B, H, W, C] uint8) -> [B]``, in nats and float32.
    """

    shape: Callable[[int, int], tuple[int, ...]]
    groups: Callable[[int], int]
    log_prob: Callable[[jax.Array, jax.Array], jax.Array]


def to_unit(image: jax.Array) -> jax.Array:
    """Maps grey levels to numbers from -1 to 1.

    >>> to_unit(jnp.array([0, 255], jnp.uint8))
    Array([-1.,  1.], dtype=float32)
    """
    return image.astype(jnp.float32) / 127.5 - 1


def categorical_log_prob(outputs: jax.Array, image: jax.Array) -> jax.Array:
    r"""Log-probability under a softmax over the 256 values of each channel.

    .. math:: \log p(x) = \sum_d (o_{d, x_d} - \log \sum_v \exp o_{d, v})

    Args:
      outputs: logits [B, H, W, C, 256].
      image: [B, H, W, C] uint8.

    Returns:
      [B] float32, nats of whole images.

    >>> 2.0 ** (categorical_log_prob(jnp.zeros((1, 1, 1, 1, 256)), jnp.zeros((1, 1, 1, 1), jnp.uint8)) / jnp.log(2.0))
    Array([0.00390625], dtype=float32)

    Reference: van den Oord et al., "Pixel Recurrent Neural Networks", arXiv 1601.06759.
    """
    nats = optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), image.astype(jnp.int32))
    return -nats.sum((1, 2, 3))


def logistic_mixture_shape(channels: int, num_mixtures: int) -> tuple[int, ...]:
    """Returns (K (1 + 2 C + C (C - 1) / 2),): weights, means, log-scales and the coefficients of earlier channels.

    >>> logistic_mixture_shape(3, 10)
    (100,)
    """
    return (num_mixtures * (1 + 2 * channels + channels * (channels - 1) // 2),)


def logistic_mixture_log_prob(outputs: jax.Array, image: jax.Array) -> jax.Array:
    r"""Log-probability under a mixture of K logistics, each discretised to the 256 values.

    .. math::
        p(x) = \prod_{pixels} \sum_k \pi_k \prod_c
               \left(\sigma((x_c + 1/2 - \mu_{kc}) / s_{kc}) - \sigma((x_c - 1/2 - \mu_{kc}) / s_{kc})\right), \quad
        \mu_{kc} = m_{kc} + \sum_{d < c} a_{kcd} x_d

    in grey levels; bin 0 reaches down to minus infinity and bin 255 up to infinity, so the 256 probabilities sum to 1.
    With u and v for the two arguments, the difference is taken as
    :math:`\log \sigma(u) + \log \sigma(-v) + \log(1 - e^{v - u})`, which is exact and cancels nowhere.

    Args:
      outputs: [B, H, W, K (1 + 2 C + C (C - 1) / 2)].
      image: [B, H, W, C] uint8.

    Returns:
      [B] float32, nats of whole images.

    Reference: Salimans et al., "PixelCNN++", arXiv 1701.05517, section 2.1 and 2.2.
    Differs from the paper in: the difference of sigmoids is exact for every bin, where the authors' code turns to the
    density for improbable ones; log-scales are bounded above too, by 7, beyond which float32 has no such bins.
    """
    log_weights, means, log_scales, coefficients = _mixture(outputs, image.shape[-1])
    x = image.astype(jnp.float32)[..., None, :]  # (B, H, W, 1, C)
    # The sum over earlier channels is not a matrix product, because that may round to fewer bits.
    from_earlier = (coefficients * to_unit(image)[..., None, None, :]).sum(-1)
    centre = 127.5 * (1 + means + from_earlier)  # (B, H, W, K, C), in grey levels
    inverse = jnp.exp(-log_scales) / 127.5  # in grey levels
    above = (x + 0.5 - centre) * inverse
    below = (x - 0.5 - centre) * inverse
    up = jax.nn.log_sigmoid(above)
    down = jax.nn.log_sigmoid(-below)
    inside = up + down + jnp.log(-jnp.expm1(-inverse))
    nats = jnp.where(x == 0, up, jnp.where(x == 255, down, inside)).sum(-1)  # (B, H, W, K)
    return jax.nn.logsumexp(log_weights + nats, axis=-1).sum((1, 2))


def _mixture(outputs: jax.Array, channels: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns log-weights [..., K], means and log-scales [..., K, C], lower triangles [..., K, C, C]."""
    pairs = channels * (channels - 1) // 2
    parts = outputs.astype(jnp.float32).reshape(*outputs.shape[:-1], -1, 1 + 2 * channels + pairs)
    weights, means, log_scales, raw = jnp.split(parts, np.cumsum([1, channels, channels]), axis=-1)
    rows, columns = np.tril_indices(channels, -1)
    coefficients = jnp.zeros((*means.shape, channels)).at[..., rows, columns].set(jnp.tanh(raw))
    log_scales = jnp.clip(log_scales, MIN_LOG_SCALE, MAX_LOG_SCALE)
    return jax.nn.log_softmax(weights[..., 0]), means, log_scales, coefficients


LIKELIHOODS: dict[str, Likelihood] = {
    "categorical": Likelihood(
        shape=lambda channels, num_mixtures: (channels, 256),
        groups=lambda channels: channels,
        log_prob=categorical_log_prob,
    ),
    "logistic_mixture": Likelihood(
        shape=logistic_mixture_shape,
        groups=lambda channels: 1,
        log_prob=logistic_mixture_log_prob,
    ),
}
