"""Means of the workers' gradients in the place of each, before another reducer combines them."""

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
from reducers.mask import Mask, own_part
from reducers.mesh import ShardedOver, axes_that_cut, cuts_of, needs_whole_leaves
from reducers.reducer import Combine, Reducer
from reducers.report import Report, report
from reducers.sums.mean import combiner_of

# (finds the dot products, who is counted [n], number of updates if drawn) -> the share of each worker (column) in each
# mean.
Shares = Callable[[Callable[[], Products], jax.Array, Any], jax.Array]


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
