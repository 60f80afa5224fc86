"""The common part of reducers that leave late workers out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.order import Arrived
from reducers.clock import check_seconds
from reducers.collectives import AxisName, axes_of, num_workers
from reducers.record import Waited, nobody_yet
from reducers.reducer import Combine, Reducer
from reducers.wrappers.combine import combiner_of


class ArrivedState(NamedTuple):
    """State of a reducer over the workers that arrived.

    Attributes:
      combine: state of the reducer that combines their gradients.
      waited: which workers the last update waited for.
    """

    combine: Any
    waited: Waited


def over_arrived(
    axis_name: AxisName,
    *,
    combine: Combine,
    choose: Callable[[jax.Array], Arrived],
    num_required: int | None = None,
) -> Reducer:
    """Returns the reducer ``combine`` over the workers that ``choose`` counts.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      combine: a reducer that takes a mask; None is ``mean``.
      choose: seconds [W] -> ``Arrived``.
      num_required: how many workers it counts, where that is known. If it is all of them, they are combined without a
        mask, in the very program of the reducer alone, and so to the same bits.

    Returns:
      A reducer whose update needs ``arrival_seconds`` [W], the same on all workers.

    Raises:
      ValueError: if ``combine`` takes no mask.
    """
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)
    if not combiner.takes_mask:
        raise ValueError("combine: must be a reducer that takes a mask, to leave workers out (Reducer.takes_mask)")

    def init_fn(params):
        return ArrivedState(combiner.init(params), nobody_yet(axes))

    def update_fn(updates, state, params=None, *, arrival_seconds, **extra_args):
        arrived = choose(check_seconds(arrival_seconds, axis_name=axes))
        waited = waited_for(arrived, axis_name=axes)
        if num_required != num_workers(axes):
            extra_args |= {"contributes": waited.contributes > 0}
        updates, combined = combiner.update(updates, state.combine, params, **extra_args)
        return updates, ArrivedState(combined, waited)

    return combiner.like(
        init_fn, update_fn, axis_name=axes, needs_arrivals=True, takes_mask=False, num_counted=num_required
    )


def waited_for(arrived: Arrived, *, axis_name: AxisName) -> Waited:
    """Returns one worker's record of who arrived."""
    contributes = arrived.contributes.astype(jnp.int32)
    contributors = jnp.sum(contributes > 0, dtype=jnp.float32)
    metrics = {"step_seconds": arrived.step_seconds.astype(jnp.float32), "contributors": contributors}
    return Waited(contributes[lax.axis_index(axis_name)], metrics)
