"""MGDA: the shortest vector among all weighted means of the gradients."""

from typing import Unpack

import jax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.gram.weights.least_squares import nonnegative
from reducers.reducer import Reducer


@takes_gram_options
def mgda(axis_name: AxisName, **options: Unpack[GramOptions]) -> Reducer:
    r"""Takes the shortest of all convex combinations of the gradients, which is a descent direction for all workers.

    .. math:: R(g_1, \dots, g_n) = \sum_i w_i g_i, \qquad
        w = \arg\min_{w \ge 0, \, \sum_i w_i = 1} \Big| \sum_i w_i g_i \Big|^2

    The program is solved by an active-set method, ``gram.least_squares.nonnegative``, in a bounded number of steps. A
    worker can end with a weight of 0.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first; lanes last.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``, as of ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. A worker with a zero gradient makes the result zero; NaN or Inf of one that counts makes its group NaN.
      Workers of weight 0 are left out, see ``reducers.Report``.

    >>> reducer = mgda("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[1.0, 0.0], [1.0, 2.0]]))[0]
    Array([1., 0.], dtype=float32)

    Reference: Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", 2012; Sener,
    Koltun, "Multi-Task Learning as Multi-Objective Optimization", arXiv 1810.04650; known through the latter's code and
    TorchJD's. Differs from them in: an active-set method, which ends, in place of Frank-Wolfe steps.
    """

    def rule(products, state):
        return shortest(products), state

    return from_gram(axis_name, rule, **options)


def shortest(products: Products) -> jax.Array:
    """Returns the weights of the units in the shortest convex combination of the gradients, [n].

    With unit vectors u_i = g_i / |g_i| and a_i = 1 / |g_i|, up to a factor, it is that of the x >= 0 for which
    |sum x_i u_i|^2 + (sum a_i x_i - 1)^2 is least: for a given direction of x, that is least where |sum| is. So lengths
    may differ by any factor.
    """
    not_zero, scales = products.counted & (products.scales > 0), products.scales
    shortest = nonzero(jnp.where(not_zero, scales, jnp.inf).min())
    of_units = jnp.where(not_zero, jnp.where(jnp.isfinite(shortest), shortest, 1) / nonzero(scales), 0)
    inverse = of_units * products.directions  # of lengths, over that of the shortest scale
    largest = nonzero(inverse.max())
    a = inverse / largest
    x = nonnegative(products.cosines + a[:, None] * a[None, :], -a)
    weights = jnp.where(not_zero, x / nonzero(a @ x) * (shortest / largest) * products.directions, 0)
    weights = jnp.where((products.counted & ~not_zero).any(), 0, weights)  # a zero gradient is the shortest
    return jnp.where(jnp.isfinite(products.gram).all(), weights, jnp.nan)
