"""The geometric median: the point with the least sum of distances to all gradients."""

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


def geometric_median(
    axis_name: AxisName,
    *,
    num_steps: Annotated[int, "[1, inf)"] = 64,
    smoothing: Annotated[float, "(0, 1)"] = 1e-6,
    granularity: str = "model",
    telemetry: Telemetry = "off",
) -> Reducer:
    r"""Takes the point from which the sum of the distances to all gradients is least.

    .. math:: R(g_1, \dots, g_n) = \arg\min_z \sum_i |z - g_i|

    It is found by Weiszfeld's iteration, in the space of the weights of a combination:

    .. math:: w_i \leftarrow \frac{1 / \max(\nu, |z - g_i|)}{\sum_j 1 / \max(\nu, |z - g_j|)}, \qquad z = \sum_i w_i g_i

    which starts from z = 0; nu is ``smoothing`` times the median of the distances from z. Fewer than half of the
    workers, whatever they send, cannot move it beyond the others. Of two gradients any point between is a median; it
    then is the one that is nearer to the shorter of them, by the ratio of their norms.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first; lanes last.
      num_steps: steps of the iteration.
      smoothing: the least distance, relative to the median of them.
      granularity: what counts as one vector, as of ``from_gram``: the whole "model", each "layer", or a pattern.
      telemetry: as of ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. Gradients that are not finite are left out.

    Raises:
      ValueError: for a number outside its range.

    >>> reducer = geometric_median("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> points = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]])  # a square, and a point
    >>> jax.vmap(combine, axis_name="worker")(points)[0].round(3)
    Array([0.5, 0.5], dtype=float32)

    Reference: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", arXiv 1912.13445; the iteration
    is that of the authors' code. Differs from it in: the least distance is relative, so that scales do not matter; the
    start is zero, from which one wild gradient weighs least, not the mean; the number of steps is fixed.
    """
    check_options(geometric_median, num_steps=num_steps, smoothing=smoothing)
    check_static(num_steps=num_steps)

    def rule(products, state):
        return median_weights(products.only_finite(), num_steps=num_steps, smoothing=smoothing), state

    return from_gram(axis_name, rule, granularity=granularity, telemetry=telemetry)


def median_weights(products: Products, *, num_steps: int, smoothing: float) -> jax.Array:
    """Returns the weights of the units in the geometric median, [n]."""
    present, count = products.present, products.present.sum()
    middle = jnp.maximum(count - 1, 0) // 2

    def step(_, weights):
        distances = products.length_of(weights[None, :] - jnp.diag(products.scales))  # of z from each gradient
        median = jnp.sort(jnp.where(present, distances, jnp.inf))[middle]
        least = jnp.where(jnp.isfinite(median), smoothing * median, 0)
        away = jnp.maximum(distances, least)
        nearest = jnp.where(present, away, jnp.inf).min()
        shares = jnp.where(present, jnp.where(away == 0, 1, nearest / nonzero(away)), 0)  # of 1 / away
        return shares / nonzero(shares.sum()) * products.scales

    return lax.fori_loop(0, num_steps, step, jnp.zeros_like(products.scales))
