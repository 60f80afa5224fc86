"""Residual networks for ImageNet (18, 34, 50 layers) and for CIFAR (20, 32, 44, 56 layers)."""

import functools
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.fields import Dtype, Remat
from models.layers import lane_convolution
from models.layers.normalisation import Norm, normalise
from models.layers.pooling import max_pool_3x3
from reducers.options import Count

Shortcut = Literal["padding", "projection"]

HE_NORMAL = nn.initializers.variance_scaling(2.0, "fan_in", "normal")


def convolution(features: int, size: int, *, stride: int = 1, dtype: Dtype, name: str) -> nn.Conv:
    """Returns a convolution without bias, padded equally on both sides; "SAME" with a stride would not be."""
    return lane_convolution.Conv(
        features,
        (size, size),
        strides=stride,
        padding=size // 2,
        use_bias=False,
        kernel_init=HE_NORMAL,
        dtype=dtype,
        name=name,
    )


def pad_shortcut(x: jax.Array, *, features: int, stride: int) -> jax.Array:
    """Returns the shortcut without parameters (option A): every ``stride``-th pixel, and zeros for missing channels.

    >>> pad_shortcut(jnp.ones((1, 4, 4, 2)), features=3, stride=2)[0, :, :, 2]
    Array([[0., 0.],
           [0., 0.]], dtype=float32)
    """
    x = x[:, ::stride, ::stride]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, features - x.shape[-1])))


class Convolution(NamedTuple):
    """One convolution of a block: the side of its kernel, and its channels as a multiple of the block's width."""

    size: int
    multiple: int = 1


BASIC = (Convolution(3), Convolution(3))
BOTTLENECK = (Convolution(1), Convolution(3), Convolution(1, multiple=4))


class Block(nn.Module):
    """A residual block, ``relu(x + f(x))``: f is a chain of normalised convolutions with ReLU between them.

    Attributes:
      width: Channels of the 3x3 convolutions.
      convolutions: The convolutions of f.
      stride: Stride of the first 3x3 convolution, which is the second convolution in a bottleneck ("v1.5"; in v1 the
        first one has the stride).
      shortcut: Replaces x where f changes its shape.
      last_scale_init: Initializer of the scale of f's last normalisation.
      norm: Adds a normalising layer.
      dtype: Data type of activations.
    """

    width: int
    convolutions: tuple[Convolution, ...]
    stride: int
    shortcut: Shortcut
    last_scale_init: nn.initializers.Initializer
    norm: Callable[..., jax.Array]
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y, last = x, len(self.convolutions)
        strided = [c.size for c in self.convolutions].index(3) + 1
        for number, (size, multiple) in enumerate(self.convolutions, 1):
            stride = self.stride if number == strided else 1
            y = convolution(self.width * multiple, size, stride=stride, dtype=self.dtype, name=f"conv{number}")(y)
            scale_init = self.last_scale_init if number == last else nn.initializers.ones
            y = self.norm(y, scale_init=scale_init, name=f"norm{number}")
            y = nn.relu(y) if number < last else y
        if x.shape != y.shape and self.shortcut == "padding":
            x = pad_shortcut(x, features=y.shape[-1], stride=self.stride)
        elif x.shape != y.shape:
            x = convolution(y.shape[-1], 1, stride=self.stride, dtype=self.dtype, name="shortcut_conv")(x)
            x = self.norm(x, name="shortcut_norm")
        return nn.relu(x + y)  # (B, H / stride, W / stride, width * multiple of the last)


class ResNet(nn.Module):
    """A residual network: a stem, stages of blocks, the mean over pixels, a dense layer.

    Convolution kernels are initialised as in He et al. 2015 (normal, variance 2 / fan in), the dense layer's kernel
    with half that variance, since no ReLU follows it. Running statistics have momentum 0.9; epsilon is 1e-5.

    Args:
      num_classes: Number of classes, C.
      num_filters: Channels of the first stage; each further stage has twice as many at half the resolution.
      shortcut: Where a block changes the shape: ``"projection"``, a 1x1 convolution (option B of the paper), or
        ``"padding"``, which takes every second pixel, adds channels of zeros and has no parameters (option A).
      norm: ``"batch"``, with each worker's own statistics, or ``"group"``, which has no running statistics.
      zero_init_residual: ``"on"`` starts the scale of each block's last normalisation at 0, so that blocks start as the
        identity or their shortcut (Goyal et al., arXiv 1706.02677, section 5.1).
      remat: ``"blocks"`` keeps only the blocks' inputs for the backward pass and recomputes the rest.
      dtype: Data type of activations; parameters stay float32.
    """

    num_classes: int
    num_filters: Count = 64
    shortcut: Shortcut = "projection"
    norm: Norm = "batch"
    zero_init_residual: Literal["on", "off"] = "off"
    remat: Remat = "none"
    dtype: Dtype = "float32"

    stages: ClassVar[tuple[int, ...]] = ()  # blocks of each stage
    convolutions: ClassVar[tuple[Convolution, ...]] = BASIC
    stem: ClassVar[Literal["7x7", "3x3"]] = "7x7"  # 7x7 with stride 2, then a pool with stride 2; or 3x3 alone

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        norm = functools.partial(normalise, norm=self.norm, deterministic=deterministic, dtype=self.dtype)
        size, stride = (7, 2) if self.stem == "7x7" else (3, 1)
        x = convolution(self.num_filters, size, stride=stride, dtype=self.dtype, name="stem_conv")(image)
        x = nn.relu(norm(x, name="stem_norm"))  # (B, H / 2, W / 2, F) or (B, H, W, F)
        x = max_pool_3x3(x, padding=1) if self.stem == "7x7" else x  # (B, H / 4, W / 4, F)
        block = functools.partial(
            nn.remat(Block) if self.remat == "blocks" else Block,
            convolutions=self.convolutions,
            shortcut=self.shortcut,
            last_scale_init=nn.initializers.zeros if self.zero_init_residual == "on" else nn.initializers.ones,
            norm=norm,
            dtype=self.dtype,
        )
        for stage, num_blocks in enumerate(self.stages):
            for number in range(num_blocks):
                stride = 2 if stage > 0 and number == 0 else 1
                name = f"stage{stage + 1}_block{number + 1}"
                x = block(self.num_filters * 2**stage, stride=stride, name=name)(x)
        return nn.Dense(self.num_classes, dtype=self.dtype, name="dense")(x.mean((1, 2)))  # (B, C)


class ResNet18(ResNet):
    """ResNet-18 for images of about 224x224: 11,689,512 parameters for 1,000 classes of RGB images.

    Reference: He et al., arXiv 1512.03385, table 1.
    Differs from the paper in: projections where a block changes the shape (the paper's option B; its comparison with
    plain networks has option A).
    """

    stages = (2, 2, 2, 2)


class ResNet34(ResNet):
    """ResNet-34 for images of about 224x224: 21,797,672 parameters for 1,000 classes of RGB images.

    Reference and differences are those of ``ResNet18``.
    """

    stages = (3, 4, 6, 3)


class ResNet50(ResNet):
    """ResNet-50 v1.5 for images of about 224x224: 25,557,032 parameters for 1,000 classes of RGB images.

    Reference: He et al., arXiv 1512.03385, table 1; Goyal et al., arXiv 1706.02677, for v1.5.
    Differs from the paper in: a bottleneck strides in its 3x3 convolution, not in its first 1x1.
    """

    stages = (3, 4, 6, 3)
    convolutions = BOTTLENECK


class ResNet20(ResNet):
    """ResNet-20 for images of about 32x32: 269,722 parameters for 10 classes of RGB images.

    Reference: He et al., arXiv 1512.03385, section 4.2, n = 3.
    """

    num_filters: Count = 16
    shortcut: Shortcut = "padding"

    stages = (3, 3, 3)
    stem = "3x3"


class ResNet32(ResNet20):
    """ResNet-32 for images of about 32x32: 464,154 parameters for 10 classes of RGB images.

    Reference: He et al., arXiv 1512.03385, section 4.2, n = 5.
    """

    stages = (5, 5, 5)


class ResNet44(ResNet20):
    """ResNet-44 for images of about 32x32: 658,586 parameters for 10 classes of RGB images.

    Reference: He et al., arXiv 1512.03385, section 4.2, n = 7.
    """

    stages = (7, 7, 7)


class ResNet56(ResNet20):
    """ResNet-56 for images of about 32x32: 853,018 parameters for 10 classes of RGB images.

    Reference: He et al., arXiv 1512.03385, section 4.2, n = 9.
    """

    stages = (9, 9, 9)
