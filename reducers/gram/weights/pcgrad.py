"""PCGrad: each gradient loses what points against another, and the mean of the rest is taken."""

from typing import Literal, Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.gram.weights.orders import orders_of
from reducers.options import Seed, check_options, check_static
from reducers.reducer import Reducer


@takes_gram_options
def pcgrad(
    axis_name: AxisName,
    *,
    order: Literal["random", "workers"] = "random",
    seed: Seed = 0,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Projects each gradient away from those that it conflicts with, and averages.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_i p_i, \qquad
        p_i \leftarrow p_i - \min\Big(0, \frac{p_i \cdot g_j}{|g_j|^2}\Big) g_j

    where p_i starts as g_i and meets the other gradients one after the other, as they were before any projection.

    Args:
      axis_name: the worker axis or axes, lanes last.
      order: in which a gradient meets the others: "random" draws an order for each gradient and step, "workers" is the
        order of the workers.
      seed: the seed of the random orders, which are the same on all workers.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``; the number of steps is in it if orders are drawn. Its update takes ``contributes``,
      optional: a bool of each worker, whether it is counted. NaN or Inf of a worker that counts makes its group NaN.

    Raises:
      ValueError: for an unknown order.

    >>> reducer = pcgrad("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))[0].round(4)
    Array([0.2924, 1.9006, 1.9006], dtype=float32)

    Reference: Yu, Kumar, Gupta, Levine, Hausman, Finn, "Gradient Surgery for Multi-Task Learning", arXiv 2001.06782;
    known through its authors' code and TorchJD's, which agree. Differs from the paper in: the mean, not the sum, so
    that a learning rate means what it does with ``mean``.
    """
    check_options(pcgrad, order=order, seed=seed)
    check_static(seed=seed)
    is_random = order == "random"

    def rule(products, step):
        num_workers = len(products.scales)
        orders = orders_of(order, seed, step, num_workers)
        surgery = jax.vmap(projected, in_axes=(None, 0, 0))(products, jnp.arange(num_workers), orders)
        weights = (products.scales[:, None] * surgery).sum(0) / products.num_counted
        return weights, step + 1 if is_random else step

    initial = (lambda dtype: jnp.zeros((), jnp.int32)) if is_random else (lambda dtype: ())
    return from_gram(axis_name, rule, init=initial, **options)


def projected(products: Products, worker: jax.Array, order: jax.Array) -> jax.Array:
    """Returns the weights of the units in one worker's unit after all projections, [n]."""
    squares = jnp.diagonal(products.gram)

    def meet(place, weights):
        other = order[place]
        along = jnp.minimum(0, products.gram[other] @ weights) / nonzero(squares[other])
        return weights.at[other].add(jnp.where(other == worker, 0, -along))

    start = jnp.where((jnp.arange(len(order)) == worker) & (products.scales != 0), 1, 0).astype(squares.dtype)
    return lax.fori_loop(0, len(order), meet, start)
