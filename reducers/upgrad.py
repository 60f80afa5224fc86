"""UPGrad: each gradient is projected so that it conflicts with none, and the mean is taken."""

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


def upgrad(
    axis_name: AxisName,
    *,
    num_sweeps: Annotated[int, "[1, inf)"] = 32,
    granularity: str = "model",
    telemetry: Telemetry = "off",
) -> Reducer:
    r"""Projects each gradient onto the cone of vectors that conflict with no gradient, and averages.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_i \pi(g_i), \qquad
        \pi(x) = \arg\min_{y : \, y \cdot g_j \ge 0 \; \forall j} |y - x|^2

    A projection is a combination of the gradients, whose weights solve a small program in n numbers,

    .. math:: \pi(g_i) = \sum_j v_j g_j, \qquad v = \arg\min_{v \ge e_i} v^\top G v

    by coordinate descent: sweeps over the workers, each of which sets one weight to its best.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first; lanes last.
      num_sweeps: sweeps over all workers; where gradients depend on each other linearly, many can be needed.
      granularity: what counts as one vector, as of ``from_gram``: the whole "model", each "layer", or a pattern.
      telemetry: as of ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. NaN or Inf of a worker that counts makes its group NaN.

    Raises:
      ValueError: for a number outside its range.

    >>> reducer = upgrad("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))[0].round(4)
    Array([0.2924, 1.9006, 1.9006], dtype=float32)

    Reference: Quinton, Rey, "Jacobian Descent for Multi-Objective Optimization", arXiv 2406.16232; known through the
    authors' code, TorchJD. Differs from the code in: the program is that of the definition, without the 1e-4 of the
    trace that is added to the Gram matrix there, and without giving the mean for small gradients.
    """
    check_options(upgrad, num_sweeps=num_sweeps)
    check_static(num_sweeps=num_sweeps)

    def rule(products, state):
        workers = jnp.arange(len(products.scales))
        cones = jax.vmap(lambda worker: in_cone(products, worker, num_sweeps=num_sweeps))(workers)
        return cones.sum(0) / jnp.maximum(products.present.sum(), 1), state

    return from_gram(axis_name, rule, granularity=granularity, telemetry=telemetry)


def in_cone(products: Products, worker: jax.Array, *, num_sweeps: int) -> jax.Array:
    """Returns the weights of the units in the projection of one worker's gradient, [n]."""
    gram, num_workers = products.gram, len(products.scales)
    least = jnp.where(jnp.arange(num_workers) == worker, products.scales, 0)
    squares = nonzero(jnp.diagonal(gram))

    def improve(place, weights):
        at = place % num_workers
        best = weights[at] - gram[at] @ weights / squares[at]
        return weights.at[at].set(jnp.maximum(least[at], best))

    return lax.fori_loop(0, num_sweeps * num_workers, improve, least)
