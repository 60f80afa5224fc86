"""The geometric median: the point with the least sum of distances to all gradients."""

from typing import Annotated, Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.options import Count, check_options, check_static
from reducers.reducer import Reducer

# A gradient farther away than this, over the scale in the middle, is taken to be so far away: it pulls as much.
_FAR = 2.0**100
# A pull that exceeds the limit by rounding, and no more than this, is at the limit.
_BORDER = 1e-5


@takes_gram_options
def geometric_median(
    axis_name: AxisName,
    *,
    num_steps: Count = 64,
    smoothing: Annotated[float, "(0, 1)"] = 1e-6,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Takes the point from which the sum of the distances to all gradients is least.

    .. math:: R(g_1, \dots, g_n) = \arg\min_z \sum_i |z - g_i|

    A gradient is the median if the unit vectors from it to all others add up to less than 1, or than the number of
    gradients that are equal to it. Otherwise the median is found by Weiszfeld's iteration, in the space of the weights
    of a combination,

    .. math:: w_i \leftarrow \frac{1 / \max(\nu, |z - g_i|)}{\sum_j 1 / \max(\nu, |z - g_j|)}, \qquad z = \sum_i w_i g_i

    which starts from z = 0, and takes a step of Newton's method instead wherever that makes the sum of the unit vectors
    shorter; nu is ``smoothing`` times the median of the distances from z. Fewer than half of the workers, whatever they
    send, cannot move it beyond the others. Any point between two gradients is their median; the result is the one that
    is nearer to the shorter, by the ratio of their norms. Gradients at a distance below 1.4e-3 of their norms count as
    equal where one of them may be the median: dot products in float32 cannot tell them apart.

    Args:
      axis_name: the worker axis or axes, lanes last.
      num_steps: the largest number of steps; a dozen suffice in most cases.
      smoothing: the least distance, relative to the median of them.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. Gradients that are not finite are left out.

    Raises:
      ValueError: for a number outside its range.

    >>> reducer = geometric_median("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> points = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]])  # a square, and a point
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(points)[0].round(3)
    Array([0.5, 0.5], dtype=float32)

    Reference: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", arXiv 1912.13445; the iteration
    is that of the authors' code. Differs from it in: the least distance is relative, so that scales do not matter; the
    start is zero, from which one wild gradient weighs least, not the mean; steps of Newton's method, and the test of
    the points, which is that of Vardi, Zhang, "The multivariate L1-median and associated data depth", 2000 (from
    memory).
    """
    check_options(geometric_median, num_steps=num_steps, smoothing=smoothing)
    check_static(num_steps=num_steps)

    def rule(products):
        return median_weights(products.only_finite(), num_steps=num_steps, smoothing=smoothing)

    return from_gram(axis_name, rule, **options)


def median_weights(products: Products, *, num_steps: int, smoothing: float) -> jax.Array:
    """Returns the weights of the units in the geometric median, [n]."""
    counted = products.counted
    count = products.counted.sum()
    middle = jnp.maximum(count - 1, 0) // 2
    # No norm over the scale in the middle overflows, once those beyond ``_FAR`` are cut to it, which pull as much.
    usual = nonzero(jnp.sort(jnp.where(counted, products.scales, jnp.inf))[middle])
    usual = jnp.where(jnp.isfinite(usual), usual, 1)
    points = products._replace(scales=jnp.minimum(products.scales / usual, _FAR))

    def pulls(weights):
        """Returns shares of 1 / distance from a point, the inverse of their sum, and directions to it, as weights."""
        differences = weights[None, :] - jnp.diag(points.scales)
        distances = points.length_of(differences)
        median = jnp.sort(jnp.where(counted, distances, jnp.inf))[middle]
        away = jnp.maximum(distances, jnp.where(jnp.isfinite(median), smoothing * median, 0))
        nearest = jnp.where(counted, away, jnp.inf).min()
        shares = jnp.where(counted, jnp.where(away == 0, 1, nearest / nonzero(away)), 0)
        directions = jnp.where(counted & (away > 0), 1 / nonzero(away), 0)[:, None] * differences
        return shares / nonzero(shares.sum()), nearest / nonzero(shares.sum()), directions

    def step(carry):
        number, weights, _ = carry
        shares, length, directions = pulls(weights)
        # Newton's step is Weiszfeld's with a correction. The matrix is the identity less one whose trace is 1.
        roots = jnp.sqrt(shares)
        cosines = jnp.einsum("im,mn,jn->ij", directions, points.gram, directions, precision="highest")
        matrix = jnp.eye(len(roots), dtype=roots.dtype) - roots[:, None] * cosines * roots[None, :]
        correction = roots * jnp.linalg.solve(matrix, roots * cosines.sum(1))
        newton = weights - length * ((1 + correction) @ directions)
        slopes = points.length_of(jnp.stack([pulls(newton)[-1].sum(0), directions.sum(0)]))
        # Where all terms of the slope cancel to their rounding, as between two gradients, any step would be noise.
        noise = 8 * jnp.finfo(roots.dtype).eps * jnp.abs(directions).sum(0) @ points.unit_norms
        is_found = jnp.abs(directions.sum(0)) @ points.unit_norms <= noise
        after = jnp.where(slopes[0] < slopes[1], newton, shares * points.scales)
        return number + 1, jnp.where(is_found, weights, after), is_found

    def goes_on(carry):
        number, _, is_found = carry
        return (number < num_steps) & ~is_found

    start = pulls(jnp.zeros_like(points.scales))[0] * points.scales
    _, weights, _ = lax.while_loop(goes_on, step, (jnp.ones_like(count), start, count < 0))
    at_point = point_of_median(points)
    weights = jnp.where(at_point.any(), at_point, pulls(weights)[0])
    return weights * points.scales * usual


def point_of_median(points: Products) -> jax.Array:
    """Returns 1 for a gradient that is the geometric median, and 0 for the others, [n].

    The pull of all others on it is less than the number of gradients that equal it.
    """
    counted = points.counted
    distances = points.distances
    eps = jnp.finfo(points.scales.dtype).eps
    longer = jnp.maximum(points.norms[:, None], points.norms[None, :])
    # Rounding of dot products makes the shortest distances' squares wrong by so much, relative to them.
    noise = jnp.where(distances > 0, 4 * eps * (longer / nonzero(distances)) ** 2, 1)
    together = (noise > 0.25) & counted[None, :]
    apart = ~together & counted[None, :]
    pulls = jnp.where(apart, 1 / nonzero(distances), 0)
    total = points.length_of(jnp.diag(points.scales * pulls.sum(1)) - pulls * points.scales[None, :])
    excess = jnp.where(counted, total - together.sum(1, dtype=total.dtype), jnp.inf)
    noise = jnp.where(apart, noise, 0).sum(1)
    is_certain = excess < -noise
    may_be = excess <= jnp.minimum(noise, _BORDER)
    # If two that lie apart may be the median, all points between them are medians.
    is_only = may_be.any() & (~may_be | together[excess.argmin()]).all()
    is_best = jnp.arange(len(excess)) == excess.argmin()
    return jnp.where(is_certain.any() | is_only, is_best, False).astype(points.scales.dtype)
