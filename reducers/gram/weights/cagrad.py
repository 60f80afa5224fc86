"""CAGrad: of all updates near the mean, the one from which the worker that gains least gains most."""

import functools
from typing import Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.gram.weights.linear_algebra import nonnegative, shortest
from reducers.options import NonNegative, check_options
from reducers.reducer import Reducer

# A convex combination of the gradients that is shorter than this, over the root of their summed squares, is taken for
# zero, as in TorchJD.
_STATIONARY = 1e-4
# Newton's method for one unknown, from above; a handful of steps suffice in most cases.
_MOST_STEPS = 40


@takes_gram_options
def cagrad(axis_name: AxisName, *, c: NonNegative = 0.5, **options: Unpack[GramOptions]) -> Reducer:
    r"""Takes the update near the mean from which the worker that gains least gains most.

    .. math:: R(g_1, \dots, g_n) = \arg\max_d \min_i d \cdot g_i \quad \text{where} \quad |d - \bar g| \le c |\bar g|
        \qquad = \; \bar g + \frac{c |\bar g|}{|g_w|} g_w

    with a convex combination of the gradients,

    .. math:: g_w = \sum_i w_i g_i, \qquad
        w = \arg\min_{w \ge 0, \, \sum_i w_i = 1} g_w \cdot \bar g + c |\bar g| |g_w|

    For a gain t of the worst, the shortest way from the mean to an update that gives each worker t is a quadratic
    program, which ``linear_algebra.nonnegative`` solves; t is the one for which that way is c times as
    long as the mean.

    Args:
      axis_name: the worker axis or axes, lanes last.
      c: the radius around the mean, over the mean's length; 0 is the mean.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. The result is zero where g_w is below 1e-4 of the root of the summed squared lengths, as no update then
      helps everybody; so one worker with a zero gradient can make it zero. NaN or Inf of a worker that counts makes
      its group NaN.

    Raises:
      ValueError: for a negative c.

    >>> reducer = cagrad("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))[0].round(1)
    Array([0.2, 1.2, 1.2], dtype=float32)

    Reference: Liu et al., "Conflict-Averse Gradient Descent for Multi-task Learning", arXiv 2110.14048, algorithm 1;
    known through TorchJD's code, which has the same result for a given c. Differs from it in: the method that solves
    the program; the gradients are never taken for zero because they are short.
    """
    check_options(cagrad, c=c)

    return from_gram(axis_name, functools.partial(conflict_averse, c=c), **options)


def conflict_averse(products: Products, c: float) -> jax.Array:
    """Returns the weights of the units, [n]; lengths are over the largest scale."""
    cosines = products.cosines
    lengths = products.relative_scales * products.unit_norms
    along = cosines @ lengths / products.num_counted  # the mean along each direction
    mean = products.scales / products.num_counted
    radius = c * jnp.sqrt(jnp.maximum(lengths @ along / products.num_counted, 0))
    has_length = lengths > jnp.finfo(lengths.dtype).tiny
    inverse = jnp.where(has_length, 1 / jnp.where(has_length, lengths, 1), 0)

    def way(gain):
        """Returns the shortest way to where everybody gains t: weights of directions, its length, and its slope."""
        weights = nonnegative(cosines, jnp.where(has_length, along - gain * inverse, 0))
        return weights, jnp.sqrt(jnp.maximum(weights @ cosines @ weights, 0)), weights @ inverse

    def newton(carry):
        number, gain, (_, length, slope) = carry
        gain = gain - length * (length - radius) / nonzero(slope)  # the slope of half the squared length
        return number + 1, gain, way(gain)

    def goes_on(carry):
        number, _, (_, length, _) = carry
        return (number < _MOST_STEPS) & (length - radius > 8 * jnp.finfo(lengths.dtype).eps * radius)

    # Nobody can gain more than alone; and nothing where a convex combination vanishes.
    total = jnp.sqrt(lengths @ lengths)
    nobody_gains = products.length_of(shortest(products) / nonzero(products.scales.max())) < _STATIONARY * total
    most = jnp.where(has_length, lengths * (along + radius), jnp.inf).min()
    most = jnp.where(nobody_gains | (products.counted & ~has_length).any(), jnp.minimum(most, 0), most)
    most = jnp.where(jnp.isfinite(most), most, 0)
    first = way(most)
    _, _, (weights, length, slope) = lax.while_loop(goes_on, newton, (jnp.zeros((), jnp.int32), most, first))
    is_zero = (nobody_gains & (most == 0) & (first[1] <= radius)) | (length < _STATIONARY * total * slope)
    shift = products.scales.max() * (radius / nonzero(length)) * weights * products.directions
    found = jnp.where(radius == 0, mean, jnp.where(is_zero, 0, mean + shift))
    return products.nan_unless_finite(found)
