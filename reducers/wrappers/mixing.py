"""Mixing: means of gradients, of nearest neighbours or of random buckets, before another reducer combines them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import (
    AxisName,
    Devices,
    agreed,
    as_own,
    axes_of,
    gather_workers,
    join,
    num_workers,
    own_from_slices,
    split_axes,
    to_slices,
    whole_mask,
)
from reducers.dtypes import wide
from reducers.gram import Products, from_gram, groups
from reducers.gram.engine import products_of
from reducers.gram.parts import Parts
from reducers.gram.reducer import Weighing
from reducers.gram.rows import Rows, arrange, slices_of
from reducers.gram.scales import apart
from reducers.mask import Mask, own_part
from reducers.mesh import ShardedOver, axes_that_cut, cuts_of, needs_whole_leaves
from reducers.options import Count, Natural, Seed, check_options, check_static
from reducers.reducer import Combine, Reducer
from reducers.report import Report, report
from reducers.sums.mean import combiner_of

# (finds the dot products, who is counted [n], number of updates if drawn) -> the share of each worker (column) in each
# mean.
Shares = Callable[[Callable[[], Products], jax.Array, Any], jax.Array]


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


class MixingState(NamedTuple):
    """State of a reducer of means: the number of updates, the state of the reducer inside it, and a report.

    The report says whether a mean that the reducer inside counts has this worker's gradient in it.
    """

    num_updates: jax.Array
    combine: Any
    report: Report


def mixing(
    axis_name: AxisName,
    shares: Shares,
    *,
    combine: Combine,
    fewer: bool,
    drawn: bool,
    sharded_over: ShardedOver = None,
) -> Reducer:
    """Returns the reducer ``combine`` of means of the workers' gradients.

    The devices exchange slices of the gradients, mix them, and send the slices of the means back, so that each worker
    has one: that sends as much again as an all-reduce does. If ``combine`` is ``mean``, or weighs whole gradients by
    their dot products, nothing is sent back: those of the means follow, and so do the weights of the gradients.

    Args:
      axis_name: the worker axis or axes, lanes last.
      shares: finds the means, one for each worker; a row of zeros says that there is none. A gradient that has no share
        in any is left out, NaN included.
      combine: a reducer; None is ``mean``.
      fewer: whether there may be fewer means than workers that are counted; ``combine`` then has to take a mask.
      drawn: whether the means depend on the number of updates.
      sharded_over: the other manual axes of the mesh over which leaves are cut, see ``from_gram``.

    Raises:
      ValueError: if ``combine`` takes no mask and needs one.
    """
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)
    if fewer and not combiner.takes_mask:
        raise ValueError("combine: must be a reducer that takes a mask, to leave workers out (Reducer.takes_mask)")
    weighing = Weighing(_mean, lambda dtype: (), sharded_over) if combiner.is_mean else combiner.weighs
    if weighing is not None and weighing.sharded_over == sharded_over:
        return _in_one_exchange(axes, shares, weighing, drawn=drawn, homogeneous=combiner.homogeneous)

    def init_fn(params):
        combined = combiner.init(params)
        own = report(combined)._replace(counted=as_own(jnp.array(True), axes))
        return MixingState(jnp.zeros((), jnp.int32), combined, own)

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        worker = lax.axis_index(axes)
        counted = jnp.ones(num_workers(axes), bool)
        if contributes is not None:
            updates = jax.tree.map(lambda g: jnp.where(own_part(contributes), g, 0), updates)
            counted = whole_mask(contributes, axes)
        number = agreed(state.num_updates, axes)
        find = lambda products: shares(products, counted, number)  # noqa: E731
        means, of_means = _means(updates, find, axes, counted=counted, sharded_over=sharded_over)
        present = (of_means != 0).any(1)
        if fewer or contributes is not None:
            mask = Mask(present[worker], present)
            extra_args["contributes"] = mask if combiner.takes_mask == "whole" else mask.own
        result, combined = combiner.update(means, state.combine, params, **extra_args)
        inside = report(combined)
        used = present if inside.counted is None else gather_workers(inside.counted, axes) & present
        is_used = (used & (of_means[:, worker] != 0)).any()
        return result, MixingState(state.num_updates + 1, combined, inside._replace(counted=is_used))

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask="whole" if combiner.takes_mask else False,
        num_counted=None,
        numbers="floating" if combiner.numbers == "floating" else "inexact",
        needs_whole_leaves=combiner.needs_whole_leaves or needs_whole_leaves(sharded_over),
    )


def _in_one_exchange(
    axes: tuple[str, ...], shares: Shares, weighing: Weighing, *, drawn: bool, homogeneous: bool
) -> Reducer:
    """Returns the reducer that finds the weights of the gradients from those of their means."""

    def init(dtype):
        return weighing.init(dtype), jnp.zeros((), jnp.int32) if drawn else ()

    def rule(products, state):
        of_rule, numbers = state  # of all workers
        number = numbers[0] if drawn else ()
        means, units = products.mixed(shares(lambda: products, products.counted, number))
        weights, of_rule = weighing.rule(means, (of_rule, jnp.ones_like(means.scales)))
        of_gradients = jnp.matmul(weights, units, precision="highest")
        return of_gradients, (of_rule, numbers + 1 if drawn else ())

    return from_gram(axes, rule, init=init, homogeneous=homogeneous, sharded_over=weighing.sharded_over)


def _mean(products: Products, given: Any) -> tuple[jax.Array, Any]:
    """The rule of ``mean``."""
    state, _ = given
    return products.of_units(products.counted.astype(products.gram.dtype) / products.num_counted), state


def _means(
    updates: Any,
    find: Callable[[Callable[[], Products]], jax.Array],
    axes: tuple[str, ...],
    *,
    counted: jax.Array,
    sharded_over: ShardedOver,
) -> tuple[Any, jax.Array]:
    """Returns this worker's mean, a tree like its updates, and the shares of all means, [n, n]."""
    cutting = axes_that_cut(sharded_over)
    cuts = cuts_of(updates, sharded_over, axis_name=axes) if cutting else []
    vectors, of_vectors, restore = groups.split(updates, "model", cuts=cuts)
    if not vectors:
        return updates, jnp.diag(counted.astype(float))
    names, lanes = split_axes(axes)
    devices = Devices(names)
    own = [[gather_workers(x, lanes) for x in parts] for parts in vectors.values()]
    arrays, places, of_parts = arrange(own, num_slices=devices.count, apart=bool(cutting))
    blocks = to_slices(arrays, devices) if names else arrays  # (n, M) each
    rows = Rows([x[None] for x in blocks], slices_of(places, devices))
    given: dict[str, Any] = {"devices": devices, "counted": counted[None], "parts": Parts(cutting, of_vectors)}
    shares = find(lambda: jax.tree.map(lambda x: x[0], products_of(rows, **given)))
    has_share = (shares != 0).any(0)

    def mix(x):
        kept = jnp.where(has_share.reshape(-1, *[1] * (x.ndim - 1)), wide(x), 0)
        return jnp.einsum("ij,j...->i...", shares.astype(kept.dtype), kept, precision="highest").astype(x.dtype)

    mixed = [mix(x) for x in blocks]
    if names:
        mixed = own_from_slices(join(mixed, axis=1), [x.shape[1] for x in arrays], devices)
    lane = lax.axis_index(lanes) if lanes else 0
    own_rows = [lax.dynamic_slice_in_dim(x, lane, 1) for x in mixed]
    return as_own(restore([[x[0] for x in of_parts(own_rows)]]), axes), shares
