"""How alike the workers' gradients are, layer by layer and over the whole model."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.adasum.pairs import nonzero


class Products(NamedTuple):
    """Dot products of the workers' gradients of one vector, and the length of their Adasum.

    Attributes:
      scales: [n], one per gradient.
      gram: [n, n], dot products of the gradients over their scales.
      length: [], norm of the result.
    """

    scales: jax.Array
    gram: jax.Array
    length: jax.Array


class Telemetry(NamedTuple):
    r"""Scalars of one vector, a layer or the whole model, and step.

    Attributes:
      orthogonality: :math:`|R| / \sqrt{\sum_i |g_i|^2}`: 1 if all are orthogonal, :math:`1 / \sqrt n` if identical.
      cosine: mean over all pairs of nonzero gradients; 0 for fewer than two.
      gain: :math:`|R|` over the length of the mean of the nonzero gradients: 1 to n.
    """

    orthogonality: Any
    cosine: Any
    gain: Any


ZERO = Telemetry(0.0, 0.0, 0.0)


def telemetry_of(products: Products) -> Telemetry:
    """Returns the telemetry of a vector.

    >>> orthogonal = telemetry_of(Products(jnp.array([3.0, 4.0]), jnp.eye(2), jnp.array(5.0)))
    >>> [round(float(x), 3) for x in orthogonal]
    [1.0, 0.0, 2.0]

    Reference: orthogonality as the authors of arXiv 2006.02924 log it in their BERT training.
    """
    scales, gram, length = products
    squares = jnp.diagonal(gram)
    counted = (scales > 0) & (squares > 0)
    count = counted.sum()
    inverse = jnp.where(counted, 1 / jnp.sqrt(jnp.where(counted, squares, 1)), 0)
    cosines = (inverse @ gram @ inverse - count) / jnp.maximum(count * (count - 1), 1)
    largest = scales.max()
    shares = scales / nonzero(largest)
    of_all = largest * jnp.sqrt(shares**2 @ squares)
    of_mean = largest * jnp.sqrt(jnp.maximum(shares @ gram @ shares, 0)) / jnp.maximum(count, 1)
    return Telemetry(_over(length, of_all), cosines, _over(length, of_mean))


def joined(layers: Sequence[Products]) -> Products:
    """Returns the products of the vector that consists of these layers, whose result was computed layer by layer.

    >>> layer = Products(jnp.array([3.0, 4.0]), jnp.eye(2), jnp.array(5.0))
    >>> [round(float(x), 3) for x in joined([layer, layer]).gram.ravel()]
    [2.0, 0.0, 0.0, 2.0]
    """
    scales, gram, length = (jnp.stack(parts) for parts in zip(*layers, strict=True))  # (layers, n), (layers, n, n), ...
    largest, longest = scales.max(0), length.max()
    shares = scales / nonzero(largest)[None]
    whole = (shares[:, :, None] * gram * shares[:, None, :]).sum(0)
    return Products(largest, whole, longest * jnp.linalg.norm(length / nonzero(longest)))


def _over(length: jax.Array, other: jax.Array) -> jax.Array:
    """Returns the ratio; as the authors do, replaces a denominator of 0 by 1."""
    return length / nonzero(other)


def metrics_of(layers: dict[str, Products]) -> dict[str, jax.Array]:
    """Returns name -> scalar, as in records: "cosine/Dense_0/kernel" is a layer's and "cosine" the whole model's."""
    model = telemetry_of(joined(list(layers.values()))) if layers else ZERO
    return _as_metrics({name: telemetry_of(products) for name, products in layers.items()}, model=model)


def initial_metrics(layers: Iterable[str]) -> dict[str, jax.Array]:
    """Returns the metrics before the first update: a zero for each name."""
    return _as_metrics(dict.fromkeys(layers, ZERO), model=ZERO)


def _as_metrics(layers: dict[str, Telemetry], *, model: Telemetry) -> dict[str, jax.Array]:
    named = {f"{key}/{layer}": getattr(t, key) for key in Telemetry._fields for layer, t in layers.items()}
    return model._asdict() | named
