"""Inception-v3, with its auxiliary head."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.fields import Dtype, Remat
from models.layers import lane_convolution
from models.layers.normalisation import Norm, normalise
from models.layers.pooling import max_pool_3x3
from reducers.dtypes import mixing_dtypes
from reducers.options import Fraction, Positive

MIN_SIZE = 75  # pixels a side; one pixel is left after the last block


class Conv(NamedTuple):
    """A convolution of a branch: stride 1 pads to keep the size of the map, stride 2 does not pad."""

    features: int
    height: int = 1
    width: int = 1
    stride: int = 1


class Split(NamedTuple):
    """The end of a branch: 1x3 and 3x1 convolutions side by side."""

    features: int


# A block is a list of parallel branches, a branch a list of layers. Names are torchvision's. Pairs instead of a
# dictionary: the order is that of the channels, and flax sorts dictionaries when it lifts a module, as remat does.
Branch = tuple[Conv | Split | Literal["average", "maximum"], ...]
Branches = tuple[tuple[str, Branch], ...]


def block_a(pool: int) -> Branches:
    """Returns the branches of a block on the 35x35 map."""
    return (
        ("branch1x1", (Conv(64),)),
        ("branch5x5", (Conv(48), Conv(64, 5, 5))),
        ("branch3x3dbl", (Conv(64), Conv(96, 3, 3), Conv(96, 3, 3))),
        ("branch_pool", ("average", Conv(pool))),
    )


BLOCK_B: Branches = (  # from 35x35 to 17x17
    ("branch3x3", (Conv(384, 3, 3, stride=2),)),
    ("branch3x3dbl", (Conv(64), Conv(96, 3, 3), Conv(96, 3, 3, stride=2))),
    ("branch_pool", ("maximum",)),
)


def block_c(inner: int) -> Branches:
    """Returns the branches of a block on the 17x17 map."""
    return (
        ("branch1x1", (Conv(192),)),
        ("branch7x7", (Conv(inner), Conv(inner, 1, 7), Conv(192, 7, 1))),
        ("branch7x7dbl", (Conv(inner), Conv(inner, 7, 1), Conv(inner, 1, 7), Conv(inner, 7, 1), Conv(192, 1, 7))),
        ("branch_pool", ("average", Conv(192))),
    )


BLOCK_D: Branches = (  # from 17x17 to 8x8
    ("branch3x3", (Conv(192), Conv(320, 3, 3, stride=2))),
    ("branch7x7x3", (Conv(192), Conv(192, 1, 7), Conv(192, 7, 1), Conv(192, 3, 3, stride=2))),
    ("branch_pool", ("maximum",)),
)

BLOCK_E: Branches = (  # on the 8x8 map
    ("branch1x1", (Conv(320),)),
    ("branch3x3", (Conv(384), Split(384))),
    ("branch3x3dbl", (Conv(448), Conv(384, 3, 3), Split(384))),
    ("branch_pool", ("average", Conv(192))),
)

BLOCKS: tuple[tuple[str, Branches], ...] = (
    ("Mixed_5b", block_a(32)),
    ("Mixed_5c", block_a(64)),
    ("Mixed_5d", block_a(64)),
    ("Mixed_6a", BLOCK_B),
    ("Mixed_6b", block_c(128)),
    ("Mixed_6c", block_c(160)),
    ("Mixed_6d", block_c(160)),
    ("Mixed_6e", block_c(192)),  # the input of the auxiliary head
    ("Mixed_7a", BLOCK_D),
    ("Mixed_7b", BLOCK_E),
    ("Mixed_7c", BLOCK_E),
)


class Layers(NamedTuple):
    """Settings that all convolutions of a network share."""

    norm: Callable[..., jax.Array]
    dtype: Dtype
    width: float

    def scaled(self, features: int) -> int:
        """Returns the channels of a layer that has ``features`` channels at width 1."""
        return max(1, round(self.width * features))


class ConvNorm(nn.Module):
    """A convolution without bias, normalised, with ReLU."""

    layers: Layers
    conv: Conv
    padding: tuple[int, int]
    stddev: float = 0.1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = lane_convolution.Conv(
            self.layers.scaled(self.conv.features),
            (self.conv.height, self.conv.width),
            strides=self.conv.stride,
            padding=[(p, p) for p in self.padding],
            use_bias=False,
            kernel_init=nn.initializers.truncated_normal(self.stddev),
            dtype=self.layers.dtype,
            name="conv",
        )(x)
        return nn.relu(self.layers.norm(x, name="norm"))


class Block(nn.Module):
    """Parallel branches, whose channels are concatenated."""

    layers: Layers
    branches: Branches

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([self._branch(x, name, branch) for name, branch in self.branches], axis=-1)

    def _branch(self, x: jax.Array, name: str, branch: Branch) -> jax.Array:
        def apply(x, conv, name):
            padding = (conv.height // 2, conv.width // 2) if conv.stride == 1 else (0, 0)
            return ConvNorm(self.layers, conv, padding, name=name)(x)

        for number, part in enumerate(branch, 1):
            if part == "average":
                x = mixing_dtypes(nn.avg_pool)(x, (3, 3), padding=((1, 1), (1, 1)))
            elif part == "maximum":
                x = max_pool_3x3(x)
            elif isinstance(part, Split):
                halves = {"a": Conv(part.features, 1, 3), "b": Conv(part.features, 3, 1)}
                x = jnp.concatenate([apply(x, c, f"{name}_{number}{half}") for half, c in halves.items()], axis=-1)
            else:
                x = apply(
                    x, part, name if name in ("branch1x1", "branch_pool") or len(branch) == 1 else f"{name}_{number}"
                )
        return x


class AuxiliaryHead(nn.Module):
    """A second classifier on the 17x17 map, whose gradient has a shorter path to the early layers."""

    layers: Layers
    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        window = (min(5, x.shape[1]), min(5, x.shape[2]))
        x = mixing_dtypes(nn.avg_pool)(x, window, (3, 3))  # (B, 5, 5, 768), at 299x299
        x = ConvNorm(self.layers, Conv(128), (0, 0), name="conv0")(x)
        # The map of a smaller image is padded to the 5x5 that the kernel needs.
        padding = (max(0, 6 - x.shape[1]) // 2, max(0, 6 - x.shape[2]) // 2)
        x = ConvNorm(self.layers, Conv(768, 5, 5), padding, stddev=0.01, name="conv1")(x)  # (B, 1, 1, 768)
        kernel_init = nn.initializers.truncated_normal(0.001)
        dense = nn.Dense(self.num_classes, kernel_init=kernel_init, dtype=self.layers.dtype, name="dense")
        return dense(x.mean((1, 2)))  # (B, C)


class InceptionV3(nn.Module):
    """Inception-v3 for images of about 299x299: 27,161,264 parameters for 1,000 classes of RGB images.

    The auxiliary head has 3,326,696 of them, which leaves 23,834,568 without it. In training with the head the network
    returns (logits, auxiliary logits), otherwise logits alone.

    Args:
      num_classes: Number of classes, C.
      auxiliary: Whether there is an auxiliary head.
      dropout_rate: Share of the 2,048 means over pixels that are dropped in training.
      width: Factor on every layer's channels.
      norm: ``"batch"``, with each worker's own statistics, or ``"group"``, which has no running statistics.
      norm_momentum: Momentum of BatchNorm's running statistics. The authors' 0.9997 forgets the start in about 10,000
        steps, so it suits long runs only; 0.9 forgets it in about 50.
      remat: ``"blocks"`` keeps only the blocks' inputs for the backward pass and recomputes the rest.
      dtype: Data type of activations; parameters stay float32.

    Raises:
      ValueError: If images are smaller than 75x75.

    Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567, and the
    authors' code, research/inception in tensorflow/models.
    Differs from the authors' code in: normalisation has a scale, and the mean over 3x3 windows counts zeros beyond the
    border, both as in torchvision; ``norm_momentum``. Initialisation is the authors': normal, cut at two standard
    deviations, with 0.1, and 0.01 and 0.001 in the head; the last dense layer's 0.01 is from memory and unverified.
    """

    num_classes: int
    auxiliary: Literal["on", "off"] = "on"
    dropout_rate: Fraction = 0.2
    width: Positive = 1.0
    norm: Norm = "batch"
    norm_momentum: Fraction = 0.9
    remat: Remat = "none"
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array | tuple[jax.Array, jax.Array]:
        height, wide = image.shape[1:3]
        if min(height, wide) < MIN_SIZE:
            raise ValueError(f"image={height}x{wide}: Inception-v3 needs at least {MIN_SIZE}x{MIN_SIZE} pixels")
        norm = functools.partial(
            normalise,
            norm=self.norm,
            deterministic=deterministic,
            dtype=self.dtype,
            momentum=self.norm_momentum,
            epsilon=1e-3,
        )
        layers = Layers(norm, self.dtype, self.width)
        conv = functools.partial(ConvNorm, layers)
        x = conv(Conv(32, 3, 3, stride=2), (0, 0), name="Conv2d_1a_3x3")(image)  # (B, 149, 149, 32), at 299x299
        x = conv(Conv(32, 3, 3), (0, 0), name="Conv2d_2a_3x3")(x)  # (B, 147, 147, 32)
        x = max_pool_3x3(conv(Conv(64, 3, 3), (1, 1), name="Conv2d_2b_3x3")(x))  # (B, 73, 73, 64)
        x = conv(Conv(80), (0, 0), name="Conv2d_3b_1x1")(x)
        x = max_pool_3x3(conv(Conv(192, 3, 3), (0, 0), name="Conv2d_4a_3x3")(x))  # (B, 35, 35, 192)
        block = nn.remat(Block) if self.remat == "blocks" else Block
        early = x
        for name, branches in BLOCKS:
            x = block(layers, branches, name=name)(x)
            early = x if name == "Mixed_6e" else early  # (B, 17, 17, 768)
        x = nn.Dropout(self.dropout_rate, deterministic=deterministic)(x.mean((1, 2)))  # (B, 8, 8, 2048) -> (B, 2048)
        kernel_init = nn.initializers.truncated_normal(0.01)
        logits = nn.Dense(self.num_classes, kernel_init=kernel_init, dtype=self.dtype, name="dense")(x)  # (B, C)
        if self.auxiliary == "on" and (not deterministic or self.is_initializing()):
            head = AuxiliaryHead(layers, self.num_classes, name="AuxLogits")(early)  # (B, C)
            return logits if deterministic else (logits, head)
        return logits
