"""Parts of transformers whose backward pass keeps little, since what is kept is written to memory and read again.

Each has a rule of differentiation of its own (``jax.custom_vjp``), which keeps inputs and computes the rest again.
Statistics and derivatives are in float32 at least.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from reducers import targets
from reducers.dtypes import wide, wide_dtype

# ---- what XLA is told --------------------------------------------------------------------------------------------


def in_rows(x: jax.Array) -> jax.Array:
    """Returns x, which a GPU holds row by row, as its gradient.

    A sum over examples, such as the gradient of embeddings of positions, would otherwise have XLA lay out all
    activations of the model for it, and transpose them in each layer.
    """
    if targets.platform() != "gpu":
        return x
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def computed_once(x: jax.Array) -> jax.Array:
    """Returns x, which XLA computes once: on accelerators it would do so again in each kernel that needs it."""
    return x if targets.platform() == "cpu" else lax.optimization_barrier(x)


def differentiated_by(forward: Callable, backward: Callable, *, constants: tuple[int, ...]) -> Callable:
    """Returns a decorator that gives a function a rule of differentiation, as ``jax.custom_vjp`` and its ``defvjp``.

    Args:
      forward: takes the arguments; returns the result, and what is kept.
      backward: takes the constants, what is kept, and the slope of the result; returns those of the other arguments.
      constants: the places of arguments that are no arrays.
    """

    def decorate(function: Callable) -> Callable:
        rule = jax.custom_vjp(function, nondiff_argnums=constants)
        rule.defvjp(forward, backward)
        return rule

    return decorate


# ---- GELU --------------------------------------------------------------------------------------------------------


def _gelu_forward(x, approximate):
    return gelu(x, approximate), x


def _gelu_backward(approximate, x, slope):
    z = wide(x)
    value, derivative = _distribution(z, approximate)
    return ((wide(slope) * (value + z * derivative)).astype(x.dtype),)


def _distribution(z, approximate):
    """Returns the normal distribution function of z, or its approximation, and the derivative of that."""
    if not approximate:
        return (1 + lax.erf(z * math.sqrt(0.5))) / 2, jnp.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    c, b = math.sqrt(2 / math.pi), 0.044715
    t = jnp.tanh(c * (z + b * z**3))
    return (1 + t) / 2, (1 - t**2) * (c / 2 * (1 + 3 * b * z**2))


@differentiated_by(_gelu_forward, _gelu_backward, constants=(1,))
def gelu(x: jax.Array, approximate: bool) -> jax.Array:
    """Returns x times the normal distribution function, as ``nn.gelu``; the backward pass keeps x alone.

    Args:
      x: [...]
      approximate: Whether a tanh stands for the error function.
    """
    z = wide(x)
    return (z * _distribution(z, approximate)[0]).astype(x.dtype)


def _gelu_product_forward(x, bias, kernel, approximate):
    return gelu_product(x, bias, kernel, approximate), (x, bias, kernel)


def _gelu_product_backward(approximate, kept, slope):
    x, bias, kernel = kept
    x = computed_once(x) + _row(bias, x)  # so that the activations are not those of the forward pass, kept
    rows = tuple(range(x.ndim - 1))
    of_x = in_rows(_gelu_backward(approximate, x, slope @ kernel.T)[0])
    active = in_rows(gelu(x, approximate))
    return of_x, wide(of_x).sum(rows).astype(bias.dtype), jnp.tensordot(active, slope, (rows, rows))


@differentiated_by(_gelu_product_forward, _gelu_product_backward, constants=(3,))
def gelu_product(x: jax.Array, bias: jax.Array, kernel: jax.Array, approximate: bool) -> jax.Array:
    """Returns ``gelu`` of x [..., D] plus a bias [D], times a kernel [D, F]; the backward pass keeps these three."""
    return gelu(x + _row(bias, x), approximate) @ kernel


# ---- layer norm --------------------------------------------------------------------------------------------------


def _layer_norm_forward(x, scale, bias, epsilon, dtype):
    z = wide(x)
    share = 1 / x.shape[-1]  # a factor of the terms, so that no kernel of its own divides their sum
    mean = computed_once((z * share).sum(-1))
    variance = computed_once((jnp.square(z - mean[..., None]) * share).sum(-1))
    y = _normal(x, mean, variance, epsilon)[0] * _row(scale, z) + _row(bias, z)
    return y.astype(dtype), (x, scale, mean, variance)


def _normal(x, mean, variance, epsilon):
    inverse = lax.rsqrt(variance[..., None] + epsilon)
    return (wide(x) - mean[..., None]) * inverse, inverse


def _layer_norm_backward(epsilon, dtype, kept, slope):
    del dtype
    x, scale, mean, variance = kept
    normal, inverse = _normal(x, mean, variance, epsilon)
    slope = wide(computed_once(slope))
    weighted = slope * _row(scale, slope)
    along = (weighted * normal).mean(-1, keepdims=True)
    change = inverse * (weighted - weighted.mean(-1, keepdims=True) - normal * along)
    rows = tuple(range(x.ndim - 1))
    return change.astype(x.dtype), (slope * normal).sum(rows).astype(scale.dtype), slope.sum(rows).astype(scale.dtype)


@differentiated_by(_layer_norm_forward, _layer_norm_backward, constants=(3, 4))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float, dtype: Any) -> jax.Array:
    """Returns x [..., D] normalised over the last axis, times ``scale`` [D], plus ``bias`` [D].

    The variance is the mean of squared deviations. The backward pass keeps x and two numbers of each row.
    """
    return _layer_norm_forward(x, scale, bias, epsilon, dtype)[0]


def _row(x: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.expand_dims(x, range(like.ndim - 1)).astype(like.dtype)


# ---- attention ---------------------------------------------------------------------------------------------------


def _attend_forward(query, key, value, mask, keeps, factor):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=wide_dtype(query))
    # A finite minimum, so that a row without any key (an example of padding only) is uniform instead of NaN.
    hidden = jnp.where(mask, 0, jnp.finfo(scores.dtype).min).astype(scores.dtype)
    weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5 + hidden).astype(value.dtype)  # (B, H, T, T)
    if keeps is not None:  # the sign holds it, since no weight is negative
        weights = jnp.where(computed_once(keeps), weights, -weights)
    y = jnp.einsum("bhqk,bhkd->bhqd", _dropped(weights, factor), value)
    return y, (query, key, value, mask, weights, y)


def _dropped(weights, factor):
    return weights if factor == 1 else jnp.maximum(weights, 0) * factor


def _attend_backward(factor, kept, slope):
    query, key, value, mask, weights, y = kept
    along = (wide(slope) * wide(y)).sum(-1, keepdims=True)  # the sum over keys of weights times their slopes
    of_weights = wide(jnp.einsum("bhqd,bhkd->bhqk", slope, value))
    if factor != 1:
        of_weights = jnp.where(weights > 0, of_weights * factor, 0)
    of_scores = jnp.abs(wide(weights)) * (of_weights - along) * query.shape[-1] ** -0.5
    of_scores = jnp.where(mask, of_scores, 0).astype(query.dtype)
    of_value = jnp.einsum("bhqk,bhqd->bhkd", _dropped(weights, factor), slope)
    of_query = jnp.einsum("bhqk,bhkd->bhqd", of_scores, key)
    of_key = jnp.einsum("bhqk,bhqd->bhkd", of_scores, query)
    return of_query, of_key, of_value, None, None


@differentiated_by(_attend_forward, _attend_backward, constants=(5,))
def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, keeps: jax.Array | None, factor: float
) -> jax.Array:
    """Returns the average of values by the softmax of scaled dot products, with dropout of its weights.

    The backward pass keeps the weights, once, in the dtype of the values.

    Args:
      query: [B, H, T, D].
      key: [B, H, T, D].
      value: [B, H, T, D].
      mask: [B or 1, 1, T or 1, T], True where a query sees a key.
      keeps: [B, H, T, T], the weights that dropout keeps; None keeps all.
      factor: Factor of the weights that are kept.

    Returns:
      [B, H, T, D]
    """
    return _attend_forward(query, key, value, mask, keeps, factor)[0]
