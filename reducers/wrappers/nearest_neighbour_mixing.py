"""Nearest-neighbour mixing: each gradient gives way to the mean of those nearest to it."""

import jax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products
from reducers.gram.scales import apart
from reducers.mesh import ShardedOver
from reducers.options import Natural, check_options
from reducers.reducer import Combine, Reducer
from reducers.wrappers.mixing import mixing


def nearest_neighbour_mixing(
    axis_name: AxisName,
    *,
    num_byzantine: Natural = 1,
    combine: Combine = None,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Replaces each gradient by the mean of the n - f nearest to it, before another reducer combines them.

    .. math:: R'(g_1, \dots, g_n) = R(y_1, \dots, y_n), \qquad y_i = \frac{1}{n - f} \sum_{j \in N_i} g_j

    where N_i are the n - f workers nearest to i, itself among them, f is ``num_byzantine``, and n counts the workers
    that are counted. Honest gradients that differ much become alike, and rules that choose among them do better.

    Args:
      axis_name: the worker axis or axes, lanes last.
      num_byzantine: f, how many workers may send anything; one gradient at least is averaged.
      combine: a robust reducer; None is ``mean``.
      sharded_over: the other manual axes of the mesh over which leaves are cut, see ``from_gram``.

    Returns:
      A reducer with the facts of ``combine``. It sends what an all-reduce does if ``combine`` is ``mean`` or weighs
      whole gradients by their dot products, without telemetry and with the same ``sharded_over``; else twice that. The
      distances are those of whole gradients. Its update takes ``contributes`` if that of ``combine`` does. A gradient
      that is not finite is infinitely far away: it is in no mean, and that in its place is of the first workers. Its
      report says whether a mean that ``combine`` counts has this worker's gradient in it.

    Raises:
      ValueError: for a negative ``num_byzantine``.

    >>> from reducers.gram.robust.krum import krum
    >>> reducer = nearest_neighbour_mixing("worker", num_byzantine=1, combine=krum("worker"))
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 2.0, 3.0, 90.0]))
    Array([2., 2., 2., 2.], dtype=float32)

    Reference: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by Mixing: A Recipe for Optimal
    Byzantine ML under Heterogeneity", arXiv 2302.01772; known through the code of ByzFL. Differs from the code in:
    gradients that are not finite are in no mean.
    """
    check_options(nearest_neighbour_mixing, num_byzantine=num_byzantine)

    def shares(products, counted, num_updates):
        del counted, num_updates
        return nearest(products(), num_byzantine=num_byzantine)

    return mixing(axis_name, shares, combine=combine, fewer=False, drawn=False, sharded_over=sharded_over)


def nearest(products: Products, *, num_byzantine: int) -> jax.Array:
    """Returns equal shares of the gradients nearest to each, [n, n]; of equally near ones, the first workers'."""
    candidates = products.only_finite().counted
    larger, of_units = products.distances_apart
    exponents, mantissas = apart(of_units)
    is_none = jnp.broadcast_to(~candidates[None, :], of_units.shape)
    order = jnp.lexsort((mantissas, exponents + apart(larger)[0], is_none), axis=1)
    count = jnp.clip(products.counted.sum() - num_byzantine, 1, jnp.maximum(candidates.sum(), 1))
    is_near = (jnp.argsort(order, axis=1) < count) & candidates[None, :] & products.counted[:, None]
    return is_near.astype(products.gram.dtype) / count.astype(products.gram.dtype)
