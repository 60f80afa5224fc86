"""The parameters of local workers, and their mean, at which a run with local workers is evaluated."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

import asynchronous
import reducers
from parallel import DeviceMapping, Layout, map_devices
from reducers.report import drift_from
from training.train_state import TrainState


def evaluates_mean(state: TrainState) -> bool:
    """Returns whether a run is evaluated at the mean of the workers' own parameters; a moving average comes first."""
    return _drift_report(state).drift is not None and state.ema is None


def make_evaluated_params(layout: Layout, *, mapping: DeviceMapping) -> Callable[[TrainState], Any]:
    r"""Returns ``state -> parameters`` at which a state is evaluated, shared by all devices.

    They are the moving average if the run has one, or else the mean of the workers' own parameters:

    .. math:: z + \frac{1}{n} \sum_i u_i
    """

    def mean(params, report):
        mean = jax.tree.map(lambda u: lax.pmean(jnp.mean(u, 0), layout.device_axes), _drift_of_lanes(params, report))
        return reducers.own_params(params, reducers.Report(drift=mean))

    compiled = map_devices(mean, layout=layout, mapping=mapping)

    def evaluated(state: TrainState) -> Any:
        if evaluates_mean(state):
            return compiled(state.params, _drift_report(state))
        return state.params if state.ema is None else state.ema

    return evaluated


def make_consensus_distance(layout: Layout, *, mapping: DeviceMapping) -> Callable[[TrainState], float | None]:
    r"""Returns ``state -> distance``, the mean of the workers' squared distances from their mean; None if all agree.

    .. math:: \frac{1}{n} \sum_i |x_i - \bar{x}|^2
    """

    def distance(params, report):
        own = _drift_of_lanes(params, report)
        mean = jax.tree.map(lambda x: lax.pmean(jnp.mean(x, 0), layout.device_axes), own)
        each = jax.vmap(asynchronous.squared_distance, in_axes=(0, None))(own, mean)
        return lax.pmean(each.mean(), layout.device_axes)

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
