"""``optax.apply_if_finite`` for several workers, all of which decide alike."""

from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from reducers.collectives import AxisName, agreed, axes_of
from reducers.dynamic_scale import all_finite
from reducers.mask import as_weight
from reducers.mesh import ShardedOver, all_agree, axes_that_cut, needs_whole_leaves
from reducers.options import Natural, check_options
from reducers.reducer import Reducer, as_inner
from reducers.report import Report, report, who_counts


class ApplyIfFiniteState(NamedTuple):
    """State of ``apply_if_finite``: the fields of ``optax.ApplyIfFiniteState``, and the report of ``inner``."""

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: Any
    report: Report


def apply_if_finite(
    inner: optax.GradientTransformation,
    axis_name: AxisName,
    max_consecutive_errors: Natural,
    *,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Drops an update on all workers if that of any worker has a NaN, an Inf, or an invalid weight.

    .. math:: R'(g_1, \dots, g_n) = \begin{cases} R(g_1, \dots, g_n) & \text{if all } g_i \text{ are finite} \\
        0 & \text{else} \end{cases}

    ``optax.apply_if_finite`` lets each worker decide by its own update. Around a reducer that is a deadlock: the worker
    with a NaN does not communicate, and the others wait for it. Here the workers agree first, by a minimum of one
    integer. Where an update is dropped, the state of ``inner`` stays as it was; the report still says whom a reducer
    waited for.

    Args:
      inner: a reducer, or a chain with one in it.
      axis_name: the worker axis or axes.
      max_consecutive_errors: the most updates in a row that are dropped; the next one is applied as it is.
      sharded_over: the other manual axes of the mesh over which leaves are cut, see ``from_gram``: devices with parts
        of one worker's update agree, too. None leaves it open; updates that may be cut over such an axis are then
        refused.

    Returns:
      A reducer with the facts of ``inner``, except that it is not homogeneous. Its state is ``ApplyIfFiniteState``, the
      same on all workers except for the state and the report of ``inner``. If ``inner`` takes a mask, or weights,
      workers that ``contributes`` leaves out, or whose weight is 0, do not count: in ``backup_workers(...,
      combine=apply_if_finite(mean(axis), axis, 5))`` a NaN of a late worker drops nothing.

    Raises:
      ValueError: if ``inner`` is not a transformation, or for a number outside its range.

    >>> from reducers.sums.mean import mean
    >>> reducer = apply_if_finite(mean("worker"), "worker", max_consecutive_errors=5)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, jnp.nan]))
    Array([0., 0.], dtype=float32)

    Reference: ``optax.apply_if_finite``.
    """
    check_options(apply_if_finite, max_consecutive_errors=max_consecutive_errors)
    axes = axes_of(axis_name)
    inner = as_inner(inner, key="inner")
    must_be_whole = needs_whole_leaves(sharded_over)
    agreeing = *axes, *axes_that_cut(sharded_over)

    def init_fn(params):
        zero = jnp.zeros((), jnp.int32)
        inner_state = inner.init(params)
        return ApplyIfFiniteState(zero, jnp.array(True), zero, inner_state, report(inner_state))

    def update_fn(updates, state, params=None, **extra_args):
        num_bad, num_bad_in_all = (agreed(x, agreeing) for x in (state.notfinite_count, state.total_notfinite))
        mask = extra_args.get("contributes") if inner.takes_mask else None
        weights = extra_args.get("weights")
        is_finite = all_finite((updates, None if weights is None else as_weight(weights)))
        if (counted := who_counts(contributes=mask, weights=weights)) is not None:
            is_finite |= ~counted
        is_finite = all_agree(is_finite, agreeing)
        in_a_row = jnp.where(is_finite, 0, optax.safe_increment(num_bad))
        total = jnp.where(is_finite, num_bad_in_all, optax.safe_increment(num_bad_in_all))
        is_kept = is_finite | (in_a_row > max_consecutive_errors)
        # All workers call the inner reducer in any case: its result has the same type, kept or not.
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra_args)
        updates = jax.tree.map(lambda u: jnp.where(is_kept, u, 0).astype(u.dtype), updates)
        own = report(inner_state).dropped_unless(is_kept, state.report)
        inner_state = optax.tree.where(is_kept, inner_state, state.inner_state)
        return updates, ApplyIfFiniteState(in_a_row, is_finite, total, inner_state, own)

    return inner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=inner.takes_mask,
        takes_weights=inner.takes_weights,
        homogeneous=False,
        needs_whole_leaves=must_be_whole,
    )
