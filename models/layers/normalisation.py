"""Normalisation of activations in deep convolutional networks: batch or group."""

import math
from typing import Literal

import jax
from flax import linen as nn

from models.layers import batch_parts
from reducers.dtypes import mixing_dtypes

Norm = Literal["batch", "group"]


def num_groups(channels: int) -> int:
    """Returns the number of groups of GroupNorm: at most 32, with two or more channels in each group.

    One channel per group would be instance normalisation, which turns a 1x1 map into zeros.

    >>> [num_groups(channels) for channels in (2048, 64, 48, 16, 1)]
    [32, 32, 8, 8, 1]
    """
    return math.gcd(32, channels // 2) if channels > 1 else 1


def normalise(
    x: jax.Array,
    *,
    norm: Norm,
    deterministic: bool,
    dtype: str,
    name: str,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> jax.Array:
    r"""Adds a normalising layer with scale and bias to the module whose compact method calls it.

    .. math:: \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Args:
      x: [B, H, W, D].
      norm: ``"batch"`` takes mean and variance of each channel over this worker's batch in training, and from the
        running statistics, collection "batch_stats", in evaluation; ``"group"`` takes those of groups of channels of
        one image.
      deterministic: True in evaluation.
      dtype: Data type of the result; parameters, statistics and their sums stay float32.
      name: Name of the layer in the module.
      momentum: Momentum m of the running statistics, ``m * old + (1 - m) * batch's``.
      epsilon: Added to the variance.
      scale_init: Initializer of the scale.

    Returns:
      [B, H, W, D] of ``dtype``.

    Reference: Ioffe and Szegedy, arXiv 1502.03167; Wu and He, "Group Normalization", arXiv 1803.08494.
    Differs from the paper in: the running variance has no factor n / (n - 1).
    """
    if norm == "group":
        layer = nn.GroupNorm(num_groups(x.shape[-1]), epsilon=epsilon, dtype=dtype, scale_init=scale_init, name=name)
        return mixing_dtypes(layer)(x)
    batch_norm = nn.BatchNorm(
        use_running_average=deterministic,
        axis_name=batch_parts.axis_name(),
        momentum=momentum,
        epsilon=epsilon,
        dtype=dtype,
        scale_init=scale_init,
        name=name,
    )
    return mixing_dtypes(batch_norm)(x)
