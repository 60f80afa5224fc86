"""Bucketing: means of a few workers each, drawn at random, before another reducer combines them."""

import jax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.mesh import ShardedOver
from reducers.options import Count, Seed, check_options, check_static
from reducers.reducer import Combine, Reducer
from reducers.wrappers.mixing import mixing


def bucketing(
    axis_name: AxisName,
    *,
    bucket_size: Count = 2,
    seed: Seed = 0,
    combine: Combine = None,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Averages s workers at a time, drawn anew for each update, before another reducer combines the means.

    .. math:: R'(g_1, \dots, g_n) = R(y_1, \dots, y_{\lceil n / s \rceil}), \qquad
        y_i = \frac{1}{|B_i|} \sum_{j \in B_i} g_{\pi(j)}, \qquad B_i = \{(i - 1) s + 1, \dots, \min(i s, n)\}

    where s is ``bucket_size``, pi is a random order of the n workers that are counted, and the first workers have the
    means. Means differ less than gradients do; but as many of them may be Byzantine as workers are, so that ``combine``
    must tolerate f of n / s.

    Args:
      axis_name: the worker axis or axes, lanes last.
      bucket_size: s, the number of workers whose gradients share a mean.
      seed: the seed of the random orders, which are the same on all workers.
      combine: a robust reducer that takes a mask; its mask leaves out the workers that have no mean. None is ``mean``.
      sharded_over: the other manual axes of the mesh over which leaves are cut, see ``from_gram``.

    Returns:
      A reducer with the facts of ``combine``, which sends as much as ``nearest_neighbour_mixing`` does. Its update
      takes ``contributes``, optional: a bool of each worker, whether it is counted. Its report says whether ``combine``
      counts the mean that has this worker's gradient in it.

    Raises:
      ValueError: for a number outside its range, or if ``combine`` takes no mask.

    >>> from reducers.coordinatewise.coordinate_median import coordinate_median
    >>> reducer = bucketing("worker", bucket_size=2, combine=coordinate_median("worker"))
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 2.0, 1.0, 2.0, 1.0, 90.0]))[0]
    Array(2., dtype=float32)

    Reference: Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
    arXiv 2006.09365; known through the code of ByzFL, which agrees with the equation. Differs from it in: the random
    numbers.
    """
    check_options(bucketing, bucket_size=bucket_size, seed=seed)
    check_static(bucket_size=bucket_size, seed=seed)

    def shares(products, counted, num_updates):
        del products
        key = jax.random.fold_in(jax.random.key(seed), num_updates)
        drawn = jnp.where(counted, jax.random.uniform(key, counted.shape), 2)
        buckets = jnp.argsort(jnp.argsort(drawn)) // bucket_size
        is_in = (buckets[None, :] == jnp.arange(len(counted))[:, None]) & counted[None, :]
        return is_in.astype(drawn.dtype) / jnp.maximum(is_in.sum(1, keepdims=True), 1).astype(drawn.dtype)

    return mixing(axis_name, shares, combine=combine, fewer=True, drawn=True, sharded_over=sharded_over)
