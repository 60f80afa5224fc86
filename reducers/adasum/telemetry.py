"""How alike the workers' gradients are, layer by layer."""

from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.adasum.pairs import nonzero


class Telemetry(NamedTuple):
    r"""Scalars of one layer and step.

    Attributes:
      orthogonality: :math:`|R| / \sqrt{\sum_i |g_i|^2}`: 1 if all are orthogonal, :math:`1 / \sqrt n` if identical.
      cosine: mean over all pairs of nonzero gradients; 0 for fewer than two.
      gain: :math:`|R|` over the length of the mean of the nonzero gradients: 1 to n.
    """

    orthogonality: Any
    cosine: Any
    gain: Any


def telemetry_of(scales: jax.Array, gram: jax.Array, length: jax.Array) -> Telemetry:
    """Returns a layer's telemetry, from the dot products of its gradients.

    Args:
      scales: [n], one per gradient.
      gram: [n, n], dot products of the gradients over their scales.
      length: [], norm of the result.

    >>> orthogonal = telemetry_of(jnp.array([3.0, 4.0]), jnp.eye(2), jnp.array(5.0))
    >>> [round(float(x), 3) for x in orthogonal]
    [1.0, 0.0, 2.0]

    Reference: orthogonality as the authors of arXiv 2006.02924 log it in their BERT training.
    """
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


def _over(length: jax.Array, other: jax.Array) -> jax.Array:
    """Returns the ratio; as the authors do, replaces a denominator of 0 by 1."""
    return length / nonzero(other)


def as_metrics(layers: dict[str, Telemetry]) -> dict[str, jax.Array]:
    """Returns name -> scalar, with the names that records have: "cosine/Dense_0/kernel"."""
    return {f"{key}/{layer}": getattr(t, key) for key in Telemetry._fields for layer, t in layers.items()}
