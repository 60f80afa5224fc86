"""FairGrad: the update whose gains are shared fairly among the workers, by a measure of fairness to choose."""

import functools
from typing import Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.options import Positive, check_options
from reducers.reducer import Reducer

_MOST_STEPS = 200


@takes_gram_options
def fairgrad(axis_name: AxisName, *, alpha: Positive = 2.0, **options: Unpack[GramOptions]) -> Reducer:
    r"""Takes the update that shares its gains fairly, by the measure of alpha-fairness.

    .. math:: R(g_1, \dots, g_n) = \sum_i w_i g_i, \qquad w_i = (g_i \cdot R)^{-\alpha}, \quad w > 0

    so that a worker that gains little weighs much. Up to a factor R maximises

    .. math:: \sum_i \frac{(g_i \cdot R)^{1 - \alpha}}{1 - \alpha}

    over updates of a given length: near 0 the sum of all gains, as the mean does; at 1 their product, as ``nash_mtl``
    does; for a large alpha the least gain. The weights are unique, and are found by a damped Newton method, as the
    minimum of a convex function. Gradients c times as long give an update c^((1 - alpha) / (1 + alpha)) times as long:
    beyond 1 it grows as gradients get shorter.

    Args:
      axis_name: the worker axis or axes, lanes last.
      alpha: the fairness, above 0.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. The result is zero where a convex combination of the gradients vanishes, or nearly (where the dot
      products' rounding would decide), since no update then helps everybody; so a zero gradient makes it zero. NaN or
      Inf of a worker that counts makes its group NaN.

    Raises:
      ValueError: for an alpha that is not positive.

    >>> reducer = fairgrad("worker", alpha=2.0)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[1.0, 0.0], [0.0, 8.0]]))[0].round(3)
    Array([1. , 0.5], dtype=float32)

    Reference: Ban, Ji, "Fair Resource Allocation in Multi-Task Learning", arXiv 2402.15638, algorithm 1; known through
    TorchJD's code, which is adapted from the authors'. Differs from it in: the equation is solved to rounding, where
    the code calls a solver of least squares; zero where no update helps everybody; no alpha of 0, which is ``mean``.
    """
    check_options(fairgrad, alpha=alpha)
    return from_gram(axis_name, functools.partial(fair, alpha=alpha), homogeneous=False, **options)


def fair(products: Products, alpha: float) -> jax.Array:
    r"""Returns the weights of the units, [n].

    With p = 1 / alpha, lengths l_i and cosines C, l_i w_i = r_i z_i is the minimum of a convex function, where

    .. math:: \sum_j C_{ij} r_j z_j = r_i z_i^{-p}, \qquad r_i = l_i^{(p - 1) / (p + 1)}

    so that z is 1 for orthogonal gradients. Newton's steps are scaled by the root of the second derivatives of its last
    part, which leaves a matrix that is at least p times the identity. No step changes a number by more than 1 / (2 p +
    2) of it, so that these derivatives stay within a factor of 2, and the function falls.
    """
    p = 1 / alpha
    power = (p - 1) / (p + 1)
    cosines = products.cosines
    takes_part = products.counted & (products.scales > 0)
    eps = jnp.finfo(cosines.dtype).eps
    identity = jnp.eye(len(cosines), dtype=cosines.dtype)

    # Of lengths over the largest scale, whose ratio may be beyond the range.
    largest = nonzero(products.scales.max())
    exponents = (jnp.frexp(products.scales)[1] - jnp.frexp(largest)[1]).astype(cosines.dtype)
    r = jnp.where(takes_part, jnp.exp2(power * exponents) * products.unit_norms**power, 1)

    def step(carry):
        number, z, _ = carry
        roots = z ** ((p + 1) / 2)
        excess = jnp.where(takes_part, roots * (cosines @ (r * z)) - r * z ** ((1 - p) / 2), 0)
        turn = jnp.linalg.solve(p * identity + roots[:, None] * cosines * roots[None, :], excess)
        turn = jnp.where(takes_part, turn * roots / (r * z), 0)
        largest_turn = jnp.abs(turn).max()
        return number + 1, z * (1 - turn / jnp.maximum(1, (2 * p + 2) * largest_turn)), largest_turn

    def goes_on(carry):
        number, _, largest_turn = carry
        return (number < _MOST_STEPS) & (largest_turn > 8 * eps)

    start = (jnp.zeros((), jnp.int32), jnp.ones_like(r), jnp.ones_like(r[0]))
    _, z, largest_turn = lax.while_loop(goes_on, step, start)
    y = jnp.where(takes_part, r * z, 0)
    noise = eps * (jnp.abs(cosines) @ y) * z**p / r  # of a gain, over it
    is_found = (largest_turn < 0.25) & (jnp.where(takes_part, noise, 0) < 0.25).all()
    is_found &= (takes_part == products.counted).all()
    weights = jnp.where(is_found, largest**power * y * products.directions, 0)
    return products.nan_unless_finite(weights)
