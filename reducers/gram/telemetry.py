"""How alike the workers' gradients are, group by group and over the whole model."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.gram.engine import Weighed
from reducers.gram.products import Products
from reducers.gram.scales import nonzero


class Telemetry(NamedTuple):
    r"""Scalars of one group, or of the whole model, and step; over the n workers whose gradient is not zero.

    Attributes:
      orthogonality: :math:`|R| / \sqrt{\sum_i |g_i|^2}`: of Adasum 1 if all are orthogonal, :math:`1 / \sqrt n` if
        identical.
      cosine: mean over all pairs; 0 for fewer than two.
      gain: :math:`|R| / |\bar g|`, over the length of the mean: of Adasum 1 to n.
      squared_gradient: :math:`(n |\bar g|^2 - \overline{|g|^2}) / (n - 1)`, the squared norm of the true gradient,
        estimated without bias; 0 for fewer than two workers.
      covariance_trace: :math:`(\overline{|g|^2} - |\bar g|^2) n / (n - 1)`, the same for the trace of the covariance of
        a worker's gradient. Times the worker's batch size it is that of one example's gradient, and over
        ``squared_gradient``, both averaged over steps, the simple noise scale.
      weight_spread: of the weights of the gradients, the largest minus the least over the mean of their magnitudes.
    """

    orthogonality: Any
    cosine: Any
    gain: Any
    squared_gradient: Any
    covariance_trace: Any
    weight_spread: Any


ZERO = Telemetry(*[0.0] * len(Telemetry._fields))


class Combination(NamedTuple):
    """The gradients of one group by their dot products, the norm of what was made of them, and its weights' spread."""

    products: Products
    norm: jax.Array
    weight_spread: jax.Array


def _combination(weighed: Weighed) -> Combination:
    products, weights, _ = weighed
    counted = products.scales > 0
    inverse = jnp.where(counted, products.scales.max() / nonzero(products.scales), 0)
    of_gradients = weights / nonzero(jnp.abs(weights).max()) * inverse
    magnitude = jnp.abs(of_gradients).sum() / jnp.maximum(counted.sum(), 1)
    spread = jnp.where(counted, of_gradients, -jnp.inf).max() - jnp.where(counted, of_gradients, jnp.inf).min()
    return Combination(products, products.length_of(weights), jnp.where(counted.any(), spread, 0) / nonzero(magnitude))


def _joined(groups: Sequence[Combination]) -> Combination:
    """Returns the vector that consists of these groups; the spread of its weights is the largest of any group."""
    products, norms, spreads = jax.tree.map(lambda *parts: jnp.stack(parts), *groups)
    longest = norms.max()
    return Combination(Products.joined(products), longest * jnp.linalg.norm(norms / nonzero(longest)), spreads.max())


def telemetry_of(combination: Combination) -> Telemetry:
    """Returns the telemetry of a group.

    >>> three_and_four = Products(jnp.eye(2), jnp.array([3.0, 4.0]), jnp.ones(2, bool))
    >>> [round(float(x), 3) for x in telemetry_of(Combination(three_and_four, jnp.array(5.0), jnp.array(0.0)))]
    [1.0, 0.0, 2.0, 0.0, 12.5, 0.0]

    Reference: orthogonality as the authors of arXiv 2006.02924 log it in their BERT training; the two estimates as in
    McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A.1, with batches of one
    worker and of all workers.
    """
    products, norm, spread = combination
    gram, scales, _ = products
    squares = jnp.diagonal(gram)
    counted = (scales > 0) & (squares > 0)
    count = counted.sum()
    inverse = jnp.where(counted, 1 / jnp.sqrt(jnp.where(counted, squares, 1)), 0)
    cosine = (inverse @ gram @ inverse - count) / jnp.maximum(count * (count - 1), 1)
    largest, shares = scales.max(), products.relative_scales
    of_all, of_sum = shares**2 @ squares, jnp.maximum(shares @ gram @ shares, 0)
    mean_square, square_of_mean = of_all / jnp.maximum(count, 1), of_sum / jnp.maximum(count, 1) ** 2
    several = jnp.where(count > 1, largest**2 / jnp.maximum(count - 1, 1), 0)
    return Telemetry(
        orthogonality=norm / nonzero(largest * jnp.sqrt(of_all)),  # with 1 for a denominator of 0, as the authors do
        cosine=cosine,
        gain=norm / nonzero(largest * jnp.sqrt(square_of_mean)),
        squared_gradient=several * (count * square_of_mean - mean_square),
        covariance_trace=several * count * (mean_square - square_of_mean),
        weight_spread=spread,
    )


def metrics_of(groups: dict[str, Weighed]) -> dict[str, jax.Array]:
    """Returns name -> scalar, as in records: "cosine/Dense_0/kernel" is a group's and "cosine" the whole model's."""
    found = {name: _combination(weighed) for name, weighed in groups.items()}
    model = telemetry_of(_joined(list(found.values()))) if found else ZERO
    return _as_metrics({name: telemetry_of(combination) for name, combination in found.items()}, model=model)


def initial_metrics(groups: Iterable[str]) -> dict[str, jax.Array]:
    """Returns the metrics before the first update: a zero for each name."""
    return _as_metrics(dict.fromkeys(groups, ZERO), model=ZERO)


def _as_metrics(groups: dict[str, Telemetry], *, model: Telemetry) -> dict[str, jax.Array]:
    named = {f"{key}/{group}": getattr(t, key) for key in Telemetry._fields for group, t in groups.items()}
    return model._asdict() | named
