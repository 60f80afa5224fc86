"""The common part of reducers that leave late workers out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.clock import check_seconds
from reducers.arrivals.order import Arrived
from reducers.collectives import AxisName, agreed, as_own, axes_of, num_counted, num_workers
from reducers.mask import Mask
from reducers.reducer import Combine, Reducer
from reducers.report import TIME, Report, report, who_counts
from reducers.sums.mean import combiner_of


class ArrivedState(NamedTuple):
    """State of a reducer over the workers that arrived.

    Attributes:
      combine: state of the reducer that combines their gradients.
      report: who was counted; "step_seconds", and "contributors": how many arrived, without those of weight 0.
    """

    combine: Any
    report: Report


def over_arrived(
    axis_name: AxisName,
    *,
    combine: Combine,
    choose: Callable[[jax.Array], Arrived],
    num_required: int | None = None,
) -> Reducer:
    """Returns the reducer ``combine`` over the workers that ``choose`` counts.

    Args:
      axis_name: the worker axis or axes.
      combine: a reducer that takes a mask; None is ``mean``.
      choose: seconds [W] -> ``Arrived``.
      num_required: how many workers ``choose`` counts, if that is known. If it is all of them, ``combine`` gets no
        mask, and gives the same bits as it does alone.

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
        inner = combiner.init(params)
        return ArrivedState(inner, nobody_yet(axes, inside=report(inner)))

    def update_fn(updates, state, params=None, *, arrival_seconds, **extra_args):
        arrived = choose(agreed(check_seconds(arrival_seconds, axis_name=axes), axes))
        if num_required != num_workers(axes):
            mask = Mask(arrived.contributes[lax.axis_index(axes)], arrived.contributes)
            extra_args |= {"contributes": mask if combiner.takes_mask == "whole" else mask.own}
        updates, inner = combiner.update(updates, state.combine, params, **extra_args)
        own = arrival_report(arrived, axes, weights=extra_args.get("weights"), inside=report(inner))
        return updates, ArrivedState(inner, own)

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        needs_arrivals=True,
        takes_mask=False,
        takes_weights=combiner.takes_weights,
        num_counted=num_required,
    )


def arrival_report(arrived: Arrived, axes: tuple[str, ...], *, weights: Any = None, inside: Report) -> Report:
    """Returns one worker's report: which workers arrived, and when the step ended.

    A worker that arrived contributes unless its weight is 0; it is counted if the reducer inside has also used it.
    """
    mask: Any = Mask(arrived.contributes[lax.axis_index(axes)], arrived.contributes)
    if weights is not None:
        mask = who_counts(contributes=mask, weights=weights)
    metrics = {
        "step_seconds": arrived.step_seconds.astype(jnp.float32),
        "contributors": num_counted(mask, axes, dtype=jnp.float32),
    }
    return inside._replace(counted=who_counts(contributes=mask, inside=inside)).with_metrics(metrics)


def nobody_yet(axes: tuple[str, ...], *, inside: Report) -> Report:
    """Returns the report before the first update."""
    counted = as_own(jnp.array(False), axes)
    return inside._replace(counted=counted).with_metrics(dict.fromkeys(TIME, jnp.zeros((), jnp.float32)))
