"""Transformer layers on activations and parameters that are cut into blocks."""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from tensor_parallel.mesh import COLUMN, check_divides, copied, side, wide_dtype
from tensor_parallel.product import matmul

Params = Mapping[str, Any]


def dense(x: jax.Array, params: Params) -> jax.Array:
    r"""Applies a dense layer.

    .. math:: y = x W + b

    Args:
      x: [..., k], this device's block.
      params: "kernel", [k, n], cut over row and column, and optionally "bias", [n], cut over column. They are cast to
        the dtype of x.

    Returns:
      [..., n], this device's block.
    """
    y = matmul(x, params["kernel"].astype(x.dtype))
    return y + _along(params["bias"], y) if "bias" in params else y


def layer_norm(x: jax.Array, params: Params, *, epsilon: float = 1e-5) -> jax.Array:
    r"""Normalises each example over its features, by two sums over the axis "column", which cuts them.

    .. math:: y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    Args:
      x: [..., k], this device's block.
      params: "scale" and "bias", [k], cut over column.
      epsilon: added to the variance.

    Returns:
      Like x; statistics are in float32 or wider.
    """
    wide = x.astype(wide_dtype(x.dtype))
    count = x.shape[-1] * side()
    mean = lax.psum(wide.sum(-1, keepdims=True), COLUMN) / count
    centred = wide - mean
    variance = lax.psum((centred**2).sum(-1, keepdims=True), COLUMN) / count
    y = centred * lax.rsqrt(variance + epsilon)
    return (y * _along(params["scale"], y) + _along(params["bias"], y)).astype(x.dtype)


def attention(x: jax.Array, params: Params, *, num_heads: int, mask: jax.Array | None = None) -> jax.Array:
    r"""Applies self-attention; heads are cut over column, and each device computes those of its examples and heads.

    .. math:: y = W_o \, \text{concat}_h \, \text{softmax}(Q_h K_h^T / \sqrt{D / H}) V_h

    Args:
      x: [B, T, D], this device's block: examples are cut over depth and row, features over column.
      params: dense layers "query", "key", "value" and "output".
      num_heads: H, over all devices; a multiple of q.
      mask: [T, T] or [B, 1, T, T] of this device's examples, True where a query sees a key; None for all.

    Returns:
      Like x.

    Raises:
      ValueError: if the number of heads is not a multiple of q, or does not divide the width.
    """
    q, (batch, time, width) = side(), x.shape
    check_divides("num_heads", num_heads, q, of="q")
    check_divides("width", width * q, num_heads, of="num_heads")
    heads = batch, time, num_heads // q, width * q // num_heads
    query, key, value = (dense(x, params[name]).reshape(heads) for name in ("query", "key", "value"))
    wide = wide_dtype(x.dtype)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=wide)
    scores *= heads[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask if mask.ndim == 4 else mask[None, None], scores, jnp.finfo(wide).min)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    y = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return dense(y.reshape(x.shape), params["output"])


def block(x: jax.Array, params: Params, *, num_heads: int, mask: jax.Array | None = None) -> jax.Array:
    """Applies a transformer block: attention and feed-forward layers, each after a layer norm, with residual sums.

    Args:
      x: [B, T, D], this device's block, as in ``attention``.
      params: "attention_norm", "attention", "feed_forward_norm", and "feed_forward" with the dense layers "inner" and
        "output", as in ``models.transformer``.
      num_heads: as in ``attention``.
      mask: as in ``attention``.

    Returns:
      Like x.

    Reference: Radford et al., "Language models are unsupervised multitask learners", 2019: norms before the layers,
    tanh approximation of GELU.
    """
    normalised = layer_norm(x, params["attention_norm"])
    x += attention(normalised, params["attention"], num_heads=num_heads, mask=mask)
    feed_forward = params["feed_forward"]
    normalised = layer_norm(x, params["feed_forward_norm"])
    inner = dense(normalised, feed_forward["inner"])
    active = jax.nn.gelu(inner, approximate=True)
    return x + dense(active, feed_forward["output"])


def _along(param: jax.Array, x: jax.Array) -> jax.Array:
    """Returns a parameter of the last dimension, cast and reshaped to be added to x; sums its gradient over copies."""
    return copied(param).astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
