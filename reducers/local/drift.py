"""The state of reducers whose workers have parameters and a clock of their own."""

from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.arrivals.clock import latest
from reducers.collectives import as_own
from reducers.report import Report
from reducers.state import zeros_like


class DriftState(NamedTuple):
    """State of ``elastic_averaging`` and of ``gossip``.

    Attributes:
      num_updates: [] int32, so far.
      seconds: [] float32, this worker's clock.
      report: how far this worker is from the shared parameters, and whether these have changed; "communications", 1 in
        an update in which workers have met, else 0; "step_seconds", by how much the latest worker's clock advanced.
    """

    num_updates: jax.Array
    seconds: jax.Array
    report: Report


def before_updates(params: Any, axes: tuple[str, ...]) -> DriftState:
    """Returns the state of a worker that has the shared parameters, like all others."""
    zero = jnp.zeros((), jnp.float32)
    metrics = {"communications": zero, "step_seconds": zero}
    report = Report(emitted=jnp.array(False), drift=as_own(zeros_like(params, axes), axes), metrics=metrics)
    return DriftState(jnp.zeros((), jnp.int32), as_own(zero, axes), report)


def after_update(
    state: DriftState, drift: Any, clock: jax.Array, *, emitted: jax.Array, met: jax.Array, given: bool, axes: Any
) -> DriftState:
    """Returns the state after an update.

    Args:
      state: the one before it.
      drift: like params, the worker's parameters minus the shared ones.
      clock: [] float32, this worker's, since the time that the run had reached before.
      emitted: [] bool, whether the shared parameters change.
      met: [] bool, whether workers have met.
      given: whether arrival times are given.
      axes: the worker axes.
    """
    reached = latest(clock, axes, given=given)
    metrics = {"communications": met.astype(jnp.float32), "step_seconds": reached}
    report = Report(emitted=emitted, drift=drift, metrics=metrics)
    return DriftState(state.num_updates + 1, clock - reached, report)
