"""Nash-MTL: the update on which the workers agree as in Nash's bargaining game."""

from typing import Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.options import Positive, check_options
from reducers.reducer import Reducer

_MOST_STEPS = 100


@takes_gram_options
def nash_mtl(axis_name: AxisName, *, max_norm: Positive | None = 1.0, **options: Unpack[GramOptions]) -> Reducer:
    r"""Takes the update that gives each worker the same gain, times the worker's weight.

    .. math:: R(g_1, \dots, g_n) = \sum_i \alpha_i g_i, \qquad
        \alpha_i \sum_j G_{ij} \alpha_j = 1, \quad \alpha > 0

    The weights maximize the product of all gains over updates of a given length. They are unique, and are found by a
    damped Newton method, as the minimum of a convex function. The result does not scale with the gradients: its length
    is the root of n, or ``max_norm``, and so the learning rate alone sets the size of a step.

    Args:
      axis_name: the worker axis or axes, lanes last.
      max_norm: R is shortened to this length; None leaves it as it is.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. The result is zero where a convex combination of the gradients vanishes, or nearly (where the dot
      products' rounding would decide), since no update then helps everybody; so a zero gradient makes it zero. NaN or
      Inf of a worker that counts makes its group NaN.

    Raises:
      ValueError: for a max_norm that is not positive.

    >>> reducer = nash_mtl("worker", max_norm=None)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[3.0, 0.0], [0.0, 4.0]]))[0].round(3)
    Array([1., 1.], dtype=float32)

    Reference: Navon et al., "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017; known through TorchJD's code,
    which is adapted from the authors'. Differs from it in: the equation is solved to rounding, where the code stops
    after 20 convex programs, or at an error of 1e-3; no weights are kept from step to step; zero where there is no
    bargain.
    """
    check_options(nash_mtl, max_norm=max_norm)

    def rule(products):
        shares, is_found = bargain(products)
        # All directions with their shares add up to the length root of n.
        factor = 1.0 if max_norm is None else jnp.minimum(1, max_norm / jnp.sqrt(products.num_counted))
        weights = jnp.where(is_found, factor * shares * products.directions, 0)
        return products.nan_unless_finite(weights)

    return from_gram(axis_name, rule, homogeneous=False, **options)


def bargain(products: Products) -> tuple[jax.Array, jax.Array]:
    """Returns the x > 0 with x_i (C x)_i = 1 for the cosines C of the gradients, [n], and whether there is one.

    x_i is alpha_i |g_i|, and x the minimum of x C x / 2 - sum log x. Newton's steps are scaled by x, which leaves a
    matrix that is at least the identity, and damped as for self-concordant functions.
    """
    cosines = products.cosines
    takes_part = products.counted & (products.scales > 0)
    identity = jnp.eye(len(cosines), dtype=cosines.dtype)
    eps = jnp.finfo(cosines.dtype).eps

    def step(carry):
        number, x, _ = carry
        excess = jnp.where(takes_part, x * (cosines @ x) - 1, 0)
        turn = jnp.linalg.solve(identity + x[:, None] * cosines * x[None, :], excess)
        decrement = jnp.sqrt(jnp.maximum(excess @ turn, 0))
        return number + 1, x * (1 - turn / jnp.where(decrement > 0.25, 1 + decrement, 1)), decrement

    def goes_on(carry):
        number, _, decrement = carry
        return (number < _MOST_STEPS) & (decrement > 8 * eps)

    start = jnp.where(takes_part, 1, 0).astype(cosines.dtype)
    _, x, decrement = lax.while_loop(goes_on, step, (jnp.zeros((), jnp.int32), start, jnp.ones_like(cosines[0, 0])))
    # Rounding of the cosines changes x_i (C x)_i by so much.
    noise = eps * jnp.square(x.sum())
    is_found = (decrement < 0.25) & (noise < 0.25) & (takes_part == products.counted).all()
    return jnp.where(takes_part, x, 0), is_found
