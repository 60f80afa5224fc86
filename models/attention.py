"""Building blocks of BERT and the causal transformer."""

from collections.abc import Callable
from typing import Literal

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.fields import Dtype, Remat

PAD = 0  # the token of padding in all text data


class SelfAttention(nn.Module):
    r"""Scaled dot-product attention with several heads.

    .. math:: y = W_o \, \text{concat}_h \, \text{softmax}(Q_h K_h^T / \sqrt{D / H}) V_h

    Query, key and value have separate kernels, so that per-layer reducers see three layers.

    Args:
      num_heads: Number of heads H, which must divide D.
      dropout_rate: Share of attention weights dropped in training.
      dtype: Data type of activations; the softmax is in float32.
      kernel_init: Initializer of the query, key and value kernels.
      output_init: Initializer of the output kernel.

    Reference: Vaswani et al., "Attention is all you need", arXiv 1706.03762, equation 1.
    """

    num_heads: int
    dropout_rate: float
    dtype: Dtype
    kernel_init: Callable
    output_init: Callable

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, deterministic: bool) -> jax.Array:
        """Returns [B, T, D] for x [B, T, D]; mask [B or 1, 1, T or 1, T] is True where a query sees a key."""
        batch, time, width = x.shape
        if width % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads}: must divide width={width}")
        heads = (batch, time, self.num_heads, width // self.num_heads)
        query, key, value = (
            nn.Dense(width, dtype=self.dtype, kernel_init=self.kernel_init, name=name)(x).reshape(heads)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * heads[-1] ** -0.5
        # A finite minimum, so that a row without any key (an example of padding only) is uniform instead of NaN.
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
        weights = nn.Dropout(self.dropout_rate, deterministic=deterministic)(jax.nn.softmax(scores))  # (B, H, T, T)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value).reshape(x.shape)
        return nn.Dense(width, dtype=self.dtype, kernel_init=self.output_init, name="output")(y)  # (B, T, D)


class FeedForward(nn.Module):
    """Dense layer of 4 D, GELU, dense layer of D.

    Args:
      gelu: "exact" uses the error function, "tanh" its approximation.
      dtype: Data type of activations.
      kernel_init: Initializer of the first kernel.
      output_init: Initializer of the second kernel.
    """

    gelu: Literal["exact", "tanh"]
    dtype: Dtype
    kernel_init: Callable
    output_init: Callable

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [B, T, D] for x [B, T, D]."""
        width = x.shape[-1]
        inner = nn.Dense(4 * width, dtype=self.dtype, kernel_init=self.kernel_init, name="inner")(x)  # (B, T, 4 D)
        inner = nn.gelu(inner, approximate=self.gelu == "tanh")
        return nn.Dense(width, dtype=self.dtype, kernel_init=self.output_init, name="output")(inner)


def layer_norm(*, epsilon: float, dtype: Dtype, name: str) -> nn.LayerNorm:
    """Returns a layer norm with float32 statistics; the variance is the mean squared deviation, which cannot cancel."""
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)


def embed_positions(
    owner: nn.Module, time: int, *, max_length: int, width: int, init: Callable, dtype: Dtype
) -> jax.Array:
    """Returns the learned embedding of positions 0 to T - 1, [1, T, D], as a parameter of ``owner``.

    Raises:
      ValueError: If there are more positions than the model has.
    """
    if time > max_length:
        raise ValueError(f"max_length={max_length}: must be at least the data's {time} tokens")
    return owner.param("positions", init, (max_length, width))[None, :time].astype(dtype)


def unembed(x: jax.Array, embedding: nn.Embed) -> jax.Array:
    """Returns the logits x E^T [..., V] of x [..., D] with the embedding's table E, summed in float32."""
    table = embedding.embedding.astype(x.dtype)  # (V, D)
    return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)


def run(block: nn.Module, x: jax.Array, mask: jax.Array, *, deterministic: bool, remat: Remat) -> jax.Array:
    """Applies a block; with remat "blocks", the backward pass recomputes its activations instead of keeping them."""

    def apply(block: nn.Module, x: jax.Array, mask: jax.Array) -> jax.Array:
        return block(x, mask, deterministic=deterministic)

    return (nn.remat(apply) if remat == "blocks" else apply)(block, x, mask)
