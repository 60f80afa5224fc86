"""Elastic averaging SGD: workers explore on their own, tied to a centre by springs."""

import functools
from typing import Annotated

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.clock import own_seconds
from reducers.collectives import AxisName, agreed, as_own, axes_of, num_workers, sum_workers
from reducers.dtypes import mixing_dtypes
from reducers.local.drift import after_update, before_updates
from reducers.options import Count, check_options, check_static
from reducers.reducer import Reducer
from reducers.state import moved, zeros_like


def elastic_averaging(
    axis_name: AxisName,
    *,
    every_steps: Count,
    strength: Annotated[float, "(0, 1]"] | None = None,
) -> Reducer:
    r"""Pulls each worker and a centre towards each other at every H-th update; the shared parameters are the centre.

    .. math::
        x_i &\leftarrow x_i - a (x_i - z) + d_i \\
        z &\leftarrow z + a \sum_i (x_i - z)

    with the centre z, a worker's parameters :math:`x_i` and the update :math:`d_i` of its own optimizer. The
    differences are those before the local step, so that they can be sent while it is computed. In all other updates
    :math:`x_i \leftarrow x_i + d_i`.

    The reducer stands after the optimizer. A worker evaluates its gradient at ``reducers.own_params(params, state)``.
    An optimizer after it would move the workers with the centre; the method has none.

    Args:
      axis_name: the worker axis or axes.
      every_steps: H, the steps from one communication to the next.
      strength: a, the share of the difference; at most 1 / n, at which the centre becomes the mean of the workers. None
        is 0.9 / n, as in the example of the authors' code.

    Returns:
      A reducer whose ``DriftState`` holds one copy of the parameters of each worker: map it over the worker axis.

    Raises:
      ValueError: when traced, for a strength above 1 / n, with which the centre would overshoot.

    >>> reducer = elastic_averaging("worker", every_steps=1, strength=0.25)
    >>> states = jax.vmap(reducer.init)(jnp.zeros(2))
    >>> reduce = jax.vmap(lambda update, state: reducer.update(update, state), axis_name="worker")
    >>> for updates in ([1.0, 3.0], [0.0, 0.0]):
    ...   result, states = reduce(jnp.array(updates), states)
    ...   print(result, states.report.drift)
    [0. 0.] [1. 3.]
    [1. 1.] [-0.25  1.25]

    Reference: Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", arXiv 1412.6651 (READ: the
    authors' code). Differs from the paper in: the synchronous form, in which all workers meet the centre at once.
    """
    check_options(elastic_averaging, every_steps=every_steps, strength=strength)
    check_static(every_steps=every_steps)
    axes = axes_of(axis_name)
    minus = mixing_dtypes(jnp.subtract)

    def update_fn(updates, state, params=None, *, arrival_seconds=None, **extra_args):
        del params, extra_args
        count = num_workers(axes)
        share = 0.9 / count if strength is None else strength
        if not isinstance(share, jax.Array) and share * count > 1 + 1e-6:
            raise ValueError(f"strength={share}: must be at most 1 / num_workers, {1 / count:g} of {count} workers")
        is_sync_step = agreed(state.num_updates, axes) % every_steps == 0

        # To hold one drift alone, ``pulled`` recovers that before the local step as the new one minus the updates.
        drift = moved(state.report.drift, updates)

        def pulled(drift):
            return jax.tree.map(lambda u, d: (share * minus(u, d)).astype(u.dtype), drift, updates)

        def meet(drift):
            return sum_workers(pulled(drift), axes), jnp.array(True)

        def go_on(drift):
            return zeros_like(drift, axes), jnp.array(False)

        def spring(drift):
            return jax.tree.map(lambda u, p, m: (u - p - m).astype(u.dtype), drift, pulled(drift), of_centre)

        of_centre, have_met = lax.cond(is_sync_step, meet, go_on, drift)
        drift = lax.cond(have_met, spring, lambda drift: drift, as_own(drift, axes))
        clock = state.seconds + own_seconds(arrival_seconds, axes)
        clock = jnp.where(is_sync_step, jnp.maximum(clock, 0), clock)  # waits for the latest of the others, at 0
        given = arrival_seconds is not None
        state = after_update(state, drift, clock, emitted=is_sync_step, met=is_sync_step, given=given, axes=axes)
        return optax.tree.cast_like(of_centre, updates), state

    return Reducer(
        functools.partial(before_updates, axes=axes),
        update_fn,
        axis_name=axes,
        reduces="updates",
        local_workers="between_rounds",
        numbers="inexact",
    )
