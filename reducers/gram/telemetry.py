"""How alike the workers' gradients are, group by group and over the whole model."""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.gram.products import Products, Weighed
from reducers.gram.scales import apart, nonzero, quotient, unit


class Telemetry(NamedTuple):
    r"""Scalars of one group, or of the whole model, and step; over the n workers whose gradient is not zero.

    Attributes:
      orthogonality: :math:`|R| / \sqrt{\sum_i |g_i|^2}`: of Adasum 1 if all are orthogonal, :math:`1 / \sqrt n` if
        identical.
      cosine: mean over all pairs; NaN for fewer than two workers.
      gain: :math:`|R| / |\bar g|`, over the length of the mean: of Adasum 1 to n.
      squared_gradient: :math:`(n |\bar g|^2 - \overline{|g|^2}) / (n - 1)`, the squared norm of the true gradient,
        estimated without bias; NaN for one worker.
      covariance_trace: :math:`(\overline{|g|^2} - |\bar g|^2) n / (n - 1)`, the same for the trace of the covariance of
        a worker's gradient; NaN for one worker. Times the worker's batch size it is that of one example's gradient, and
        over ``squared_gradient``, both averaged over steps, the simple noise scale.
      weight_spread: the largest minus the least weight of a gradient, over the mean magnitude.
    """

    orthogonality: Any
    cosine: Any
    gain: Any
    squared_gradient: Any
    covariance_trace: Any
    weight_spread: Any


_SQUARED = ("squared_gradient", "covariance_trace")  # those that scale with the square of the gradients


def unscaled(metrics: dict[str, Any], scale: jax.Array) -> dict[str, Any]:
    """Returns the metrics of gradients g, given those of scale * g.

    >>> unscaled({"cosine": 0.5, "squared_gradient/Dense_0": 8.0}, scale=2.0)
    {'cosine': 0.5, 'squared_gradient/Dense_0': 2.0}
    """
    return {name: x / scale**2 if name.partition("/")[0] in _SQUARED else x for name, x in metrics.items()}


def telemetry_of(products: Products, length: jax.Array, weight_spread: jax.Array) -> Telemetry:
    """Returns the telemetry of a group from its gradients' dot products, and the length of their combination.

    The length is over the largest of the scales, by which no norm of a gradient overflows.

    >>> at_60_degrees = Products(jnp.array([[1.0, 0.5], [0.5, 1.0]]), jnp.array([3.0, 4.0]), jnp.ones(2, bool))
    >>> of_mean = telemetry_of(at_60_degrees, jnp.sqrt(37.0) / 2 / 4, jnp.array(0.0))
    >>> [round(float(x), 3) for x in of_mean]
    [0.608, 0.5, 1.0, 6.0, 6.5, 0.0]

    Reference: orthogonality as the authors of arXiv 2006.02924 log it in their BERT training; the two estimates as in
    McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.1, with batches of one
    worker and of all workers.
    """
    shares = products.relative_scales
    largest = products.scales.max()
    count = (products.norms > 0).sum(dtype=largest.dtype)
    others = jnp.maximum(count - 1, 1)
    total = jnp.maximum(count, 1)
    mean_square = shares**2 @ products.unit_norms**2 / total  # over the largest scale
    root = nonzero(jnp.sqrt(total * mean_square))  # 1 instead of 0, as the authors have it
    mean = products.length_of(shares) / total
    is_one = (count == 1) | (products.counted.sum() < 2)
    several = jnp.where(is_one, jnp.nan, largest**2 / others)
    of_pairs = (products.length_of(products.directions) ** 2 - count) / (total * others)
    return Telemetry(
        orthogonality=length / root,
        cosine=jnp.where(count < 2, jnp.nan, of_pairs),
        gain=length / nonzero(mean),
        squared_gradient=several * (count * mean**2 - mean_square),
        covariance_trace=several * count * (mean_square - mean**2),
        weight_spread=weight_spread,
    )


def metrics_of(groups: Collection[str], weighed: Weighed) -> dict[str, jax.Array]:
    """Returns name -> scalar, as in records: "cosine/Dense_0/kernel" is a group's and "cosine" the whole model's.

    The spread of the model's weights is the largest of any group.
    """
    products, weights, _ = weighed
    largest = products.scales.max(1)
    lengths = jax.vmap(Products.length_of)(products, quotient(weights, largest[:, None]))
    spreads = jax.vmap(_spread)(products, weights)
    scale, units = unit(lengths * quotient(largest, largest.max()))
    model = Products.joined(products), scale * jnp.linalg.norm(units), spreads.max()
    model_first = jax.tree.map(lambda m, g: jnp.concatenate([m[None], g]), model, (products, lengths, spreads))
    scalars = jnp.concatenate(jax.vmap(telemetry_of)(*model_first)).astype(jnp.float32)
    return dict(zip(_names(groups), scalars, strict=True))


def initial_metrics(groups: Collection[str]) -> dict[str, Any]:
    """Returns the metrics before the first update: a zero for each name."""
    return dict.fromkeys(_names(groups), jnp.zeros((), jnp.float32))


def _names(groups: Collection[str]) -> list[str]:
    return [f"{key}{place}" for key in Telemetry._fields for place in ("", *(f"/{group}" for group in groups))]


def _spread(products: Products, weights: jax.Array) -> jax.Array:
    """Returns ``weight_spread`` of a group, from the weights of its units."""
    not_zero = products.scales > 0
    exponents, mantissas = apart(jnp.abs(weights))
    exponents -= apart(products.scales)[0]
    largest = jnp.where(not_zero, exponents, exponents.min()).max()
    of_gradients = jnp.where(not_zero, jnp.sign(weights) * jnp.ldexp(mantissas, exponents - largest), 0)
    magnitude = jnp.abs(of_gradients).sum() / jnp.maximum(not_zero.sum(dtype=weights.dtype), 1)
    spread = jnp.where(not_zero, of_gradients, -jnp.inf).max() - jnp.where(not_zero, of_gradients, jnp.inf).min()
    return jnp.where(not_zero.any(), spread, 0) / nonzero(magnitude)
