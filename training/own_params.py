"""The parameters of local workers, and their mean, at which a run with local workers is evaluated."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

import asynchronous
import reducers
from parallel import DEVICE_AXIS, DeviceMapping, Layout, Partition, map_devices
from reducers.report import drift_from
from training.train_state import TrainState


def evaluates_mean(state: TrainState) -> bool:
    """Returns whether a run is evaluated at the mean of the workers' own parameters; a moving average comes first."""
    return _drift_report(state).drift is not None and state.ema is None


def make_evaluated_params(
    layout: Layout, *, mapping: DeviceMapping, partition: Partition, shapes: Any
) -> Callable[[TrainState], Any]:
    r"""Returns ``state -> parameters`` at which a state is evaluated, whole on every device.

    They are the moving average if the run has one, or else the mean of the workers' own parameters:

    .. math:: z + \frac{1}{n} \sum_i u_i

    Args:
      layout: where the workers are.
      mapping: how the devices are mapped.
      partition: what of the state lies in parts.
      shapes: those of whole parameters.
    """

    whole = functools.partial(partition.whole, shapes=shapes)

    def mean(params, report):
        own = partition.own(params)
        mean = jax.tree.map(lambda u: lax.pmean(jnp.mean(u, 0), DEVICE_AXIS), _drift_of_lanes(own, report))
        moved = reducers.own_params(own, reducers.Report(drift=mean))
        return whole(partition.like_params(moved, params))

    map_one = functools.partial(map_devices, layout=layout, mapping=mapping)
    mean_of_workers, gathered = map_one(mean), map_one(whole)

    def evaluated(state: TrainState) -> Any:
        if evaluates_mean(state):
            return mean_of_workers(state.params, _drift_report(state))
        params = state.params if state.ema is None else state.ema
        return gathered(params) if partition.what == "parameters" else params

    return evaluated


def make_consensus_distance(
    layout: Layout, *, mapping: DeviceMapping, partition: Partition
) -> Callable[[TrainState], float | None]:
    r"""Returns ``state -> distance``, the mean of the workers' squared distances from their mean; None if all agree.

    .. math:: \frac{1}{n} \sum_i |x_i - \bar{x}|^2
    """

    def distance(params, report):
        own = _drift_of_lanes(partition.own(params), report)
        mean = jax.tree.map(lambda x: lax.pmean(jnp.mean(x, 0), DEVICE_AXIS), own)
        each = jax.vmap(asynchronous.squared_distance, in_axes=(0, None))(own, mean)
        of_parts = lax.pmean(each.mean(), DEVICE_AXIS)
        return lax.psum(of_parts, partition.axes) if partition.axes else of_parts

    compiled = map_devices(distance, layout=layout, mapping=mapping)

    def consensus_distance(state: TrainState) -> float | None:
        report = _drift_report(state) if state.replica is None else reducers.Report(drift=state.replica)
        return None if report.drift is None else float(layout.get_shared(compiled(state.params, report)))

    return consensus_distance


def _drift_report(state: TrainState) -> reducers.Report:
    """Returns the part of the report that places each worker relative to the shared parameters: its drift and mix."""
    found = reducers.report(state.reducer_state)
    return reducers.Report(drift=found.drift, mix=found.mix)


def _drift_of_lanes(params: Any, report: reducers.Report) -> Any:
    """Returns the drift of each lane, [L, ...]."""
    return jax.vmap(drift_from, in_axes=(None, 0))(params, report)
