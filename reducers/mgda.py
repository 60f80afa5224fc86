"""MGDA: the shortest vector among all weighted means of the gradients."""

from typing import Annotated

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import Telemetry
from reducers.gram.scales import nonzero
from reducers.options import check_options, check_static
from reducers.reducer import Reducer


def mgda(
    axis_name: AxisName,
    *,
    num_steps: Annotated[int, "[1, inf)"] = 250,
    granularity: str = "model",
    telemetry: Telemetry = "off",
) -> Reducer:
    r"""Takes the shortest of all convex combinations of the gradients, which is a descent direction for all workers.

    .. math:: R(g_1, \dots, g_n) = \sum_i w_i g_i, \qquad
        w = \arg\min_{w \ge 0, \, \sum_i w_i = 1} \Big| \sum_i w_i g_i \Big|^2

    The program is solved by a Frank-Wolfe iteration with pairwise steps: each moves as much weight as helps most from
    the worker of the largest to that of the least slope. A worker can end with a weight of 0.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first; lanes last.
      num_steps: steps of the iteration.
      granularity: what counts as one vector, as of ``from_gram``: the whole "model", each "layer", or a pattern.
      telemetry: as of ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. A worker with a zero gradient makes the result zero; NaN or Inf of one that counts makes its group NaN.
      Workers of weight 0 are left out, see ``reducers.counts``. Gradients shorter than 1e-19 of the longest count as
      equally short.

    Raises:
      ValueError: for a number outside its range.

    >>> reducer = mgda("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[1.0, 0.0], [1.0, 2.0]]))[0]
    Array([1., 0.], dtype=float32)

    Reference: Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", 2012; Sener,
    Koltun, "Multi-Task Learning as Multi-Objective Optimization", arXiv 1810.04650; known through the latter's code and
    TorchJD's. Differs from them in: pairwise steps, which converge faster than their Frank-Wolfe steps.
    """
    check_options(mgda, num_steps=num_steps)
    check_static(num_steps=num_steps)

    def rule(products, state):
        return products.of_units(shortest(products, num_steps=num_steps)), state

    return from_gram(axis_name, rule, granularity=granularity, telemetry=telemetry)


def shortest(products: Products, *, num_steps: int) -> jax.Array:
    """Returns the weights of the shortest convex combination of the gradients, [n]."""
    gram, present = products.at_one_scale, products.present
    count = jnp.maximum(present.sum(), 1)

    def step(_, weights):
        slopes = gram @ weights
        to = jnp.where(present, slopes, jnp.inf).argmin()
        away = jnp.where(weights > 0, slopes, -jnp.inf).argmax()
        curvature = gram[to, to] + gram[away, away] - 2 * gram[to, away]
        best = jnp.where(curvature > 0, (slopes[away] - slopes[to]) / nonzero(curvature), jnp.inf)
        moved = jnp.where(slopes[away] > slopes[to], jnp.minimum(best, weights[away]), 0)
        return weights.at[to].add(moved).at[away].add(-moved)

    weights = lax.fori_loop(0, num_steps, step, present / count.astype(gram.dtype))
    return jnp.where(jnp.isfinite(gram).all(), weights, jnp.nan)
