"""An autoregressive model of images: predicts each pixel from those above it and to its left."""

import math
from typing import Annotated, Any, Literal

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

from models.fields import Dtype, Remat
from models.layers import lane_convolution
from models.likelihoods import LIKELIHOODS, to_unit
from reducers.options import Count, Fraction


def order_mask(kind: Literal["A", "B"], kernel_shape: tuple[int, ...], inputs: np.ndarray, outputs: np.ndarray):
    """Returns the mask of a one-row kernel whose last tap is the pixel itself; earlier taps are free.

    Args:
      kind: The channel groups of the pixel itself that an output sees: "A", those before its own; "B", also its own.
      kernel_shape: Spatial shape; () is the pixel itself alone.
      inputs: Group of each input feature, [I].
      outputs: Group of each output feature, [O].

    Returns:
      float32 [*kernel_shape, I, O], 1 where a weight is allowed.

    >>> rgb = np.arange(3)
    >>> order_mask("A", (), rgb, rgb)
    array([[0., 1., 1.],
           [0., 0., 1.],
           [0., 0., 0.]], dtype=float32)
    """
    centre = inputs[:, None] < outputs if kind == "A" else inputs[:, None] <= outputs  # (I, O)
    mask = np.ones((*kernel_shape, *centre.shape), np.float32)
    mask.reshape(-1, *centre.shape)[-1] = centre
    return mask


def spread(features: int, groups: int) -> np.ndarray:
    """Returns the group of each feature, in order and of nearly equal size: [features].

    >>> spread(4, 3)
    array([0, 0, 1, 2])
    """
    return np.arange(features) * groups // features


class Pointwise(nn.Module):
    """A masked 1 x 1 convolution as a matrix product; its weight gradient is a matrix product, too, also over lanes.

    Args:
      mask: [I, O], 0 where no weight is allowed.
      dtype: Data type of activations.
    """

    mask: np.ndarray
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [..., O] from [..., I]."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), self.mask.shape)
        bias = self.param("bias", nn.initializers.zeros, self.mask.shape[1:])
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel * self.mask, bias, dtype=self.dtype)
        return x @ kernel + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


class GatedLayer(nn.Module):
    r"""One layer of both stacks.

    .. math:: y = \tanh(W_f * x) \odot \sigma(W_g * x)

    The vertical convolution sees its row and those above. It joins the horizontal one, which sees the pixels to the
    left and its own, before the gate. All horizontal layers but the first are residual.

    Args:
      num_filters: Number of filters F.
      kernel_size: Odd size n; the vertical kernel is (n + 1) / 2 x n, the horizontal one 1 x (n + 1) / 2.
      kind: "A" for the first layer, on the image itself; "B" for the others.
      groups: Number of channel groups, in order.
      dropout_rate: Share of gated units dropped in training.
      deterministic: True applies no dropout.
      dtype: Data type of activations.
    """

    num_filters: int
    kernel_size: int
    kind: Literal["A", "B"]
    groups: int
    dropout_rate: float
    deterministic: bool
    dtype: Any

    @nn.compact
    def __call__(self, vertical: jax.Array, horizontal: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns both stacks' features, [B, H, W, F], from those of the layer below."""
        size = self.num_filters
        before = self.kernel_size // 2
        inner = spread(size, self.groups)
        inputs = inner if self.kind == "B" else spread(horizontal.shape[-1], self.groups)
        both = np.concatenate([inner, inner])  # tanh's half, then the sigmoid's

        def conv(kernel, name, padding, mask=None):
            return lane_convolution.Conv(2 * size, kernel, padding=padding, mask=mask, dtype=self.dtype, name=name)

        def gate(x):
            signal, open_ = jnp.split(x, 2, axis=-1)
            return nn.Dropout(self.dropout_rate, deterministic=self.deterministic)(jnp.tanh(signal) * nn.sigmoid(open_))

        rows = (before + 1, self.kernel_size)
        columns = (1, before + 1)
        down = conv(rows, "vertical", ((before, 0), (before, before)))(vertical)  # (B, H, W, 2F)
        mask = order_mask(self.kind, columns, inputs, both)
        across = conv(columns, "horizontal", ((0, 0), (before, 0)), mask)(horizontal)  # (B, H, W, 2F)
        across += nn.Dense(2 * size, dtype=self.dtype, name="link")(down)  # sees only rows above, so may see all groups
        out = Pointwise(order_mask("B", (), inner, inner), self.dtype, name="out")(gate(across))  # (B, H, W, F)
        return gate(down), out if self.kind == "A" else horizontal + out


class PixelCNN(nn.Module):
    """Gated PixelCNN: two stacks of masked convolutions without a blind spot; 5,856,128 parameters on CIFAR-10.

    7 x 7 mask A, then 3 x 3 mask B layers, ReLU, 1 x 1 mask B to 1024, ReLU, 1 x 1 mask B to the likelihood's outputs.
    With ``likelihood="categorical"`` green sees red and blue sees both, with features in three groups. With
    "logistic_mixture" only the mixture's means see a pixel's channels, and there are 5,171,428 parameters. These
    numbers count weights that a mask makes zero.

    Args:
      likelihood: "categorical", a softmax over 256 values, or "logistic_mixture", of discretised logistics.
      num_filters: Filters F of each stack.
      num_layers: Layers of both stacks, including the first one with mask A.
      first_kernel_size: Kernel size of that first layer.
      kernel_size: Kernel size of the other layers.
      num_head_filters: Filters of the 1 x 1 convolution before the outputs.
      num_mixtures: Components K of "logistic_mixture"; ignored by "categorical".
      dropout_rate: Share of gated units dropped in training.
      remat: "blocks" keeps only the layers' outputs for the backward pass and recomputes the rest.
      dtype: Data type of activations; parameters and the likelihood stay float32.

    Reference: van den Oord et al., "Conditional Image Generation with PixelCNN Decoders", arXiv 1606.05328; Salimans et
    al., "PixelCNN++", arXiv 1701.05517, for the mixture; Chen et al., "Revisiting Distributed Synchronous SGD", arXiv
    1604.00981, which trained a PixelCNN on CIFAR-10, from memory with 1, 8 and 16 workers.
    Differs from the papers in: sizes are from memory and unverified, those of the PixelCNN on CIFAR-10 in arXiv
    1601.06759; which PixelCNN arXiv 1604.00981 trained is not known to us. "logistic_mixture" is the likelihood of
    PixelCNN++ on this network, not its down-sampling network.
    """

    likelihood: Literal["categorical", "logistic_mixture"] = "categorical"
    num_filters: Annotated[int, "[3, inf)"] = 128
    num_layers: Count = 15
    first_kernel_size: Literal[3, 5, 7, 9] = 7
    kernel_size: Literal[3, 5, 7, 9] = 3
    num_head_filters: Annotated[int, "[3, inf)"] = 1024
    num_mixtures: Count = 10
    dropout_rate: Fraction = 0.0
    remat: Remat = "none"
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Returns the likelihood's outputs, [B, H, W, ...], for images [B, H, W, C] uint8."""
        channels = image.shape[-1]
        likelihood = LIKELIHOODS[self.likelihood]
        groups = likelihood.groups(channels)
        shape = likelihood.shape(channels, self.num_mixtures)
        horizontal = to_unit(image).astype(self.dtype)
        # From this layer on, the vertical stack sees only rows above its own.
        vertical = jnp.pad(horizontal, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]
        layer = {"none": GatedLayer, "blocks": nn.remat(GatedLayer)}[self.remat]
        for index in range(self.num_layers):
            vertical, horizontal = layer(
                self.num_filters,
                self.kernel_size if index else self.first_kernel_size,
                "B" if index else "A",
                groups,
                self.dropout_rate,
                deterministic,
                self.dtype,
                name=f"layer_{index}",
            )(vertical, horizontal)  # (B, H, W, F) each
        x = horizontal
        for name, features in ("head", self.num_head_filters), ("outputs", math.prod(shape)):
            mask = order_mask("B", (), spread(x.shape[-1], groups), spread(features, groups))
            x = Pointwise(mask, self.dtype, name=name)(nn.relu(x))
        return x.reshape(*image.shape[:3], *shape)
