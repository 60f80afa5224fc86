"""The parameters of local workers, and the mean of them, at which such a run is evaluated."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

import asynchronous
import reducers
from parallel import DEVICE_AXIS, Layout, map_devices
from training.train_setup import TrainSetup
from training.train_state import TrainState


def drift_of(state: TrainState) -> Any:
    """Returns how far each worker is from the shared parameters; None where all workers are there."""
    return reducers.report(state.reducer_state).drift


def evaluates_mean(state: TrainState) -> bool:
    """Returns whether a run is evaluated at the mean of the workers' own parameters; a moving average comes first."""
    return drift_of(state) is not None and state.ema is None


def make_evaluated_params(setup: TrainSetup, layout: Layout) -> Callable[[TrainState], Any]:
    r"""Returns ``state -> parameters`` at which a state is evaluated, shared by all devices.

    They are the moving average where there is one, else the mean of the workers' own parameters:

    .. math:: z + \frac{1}{n} \sum_i u_i
    """

    def mean(params, drift):
        mean = jax.tree.map(lambda u: lax.pmean(jnp.mean(u, 0), DEVICE_AXIS), drift)
        return reducers.own_params(params, reducers.Report(drift=mean))

    compiled = map_devices(mean, layout=layout, mapping=setup.config.mapping)

    def evaluated(state: TrainState) -> Any:
        if evaluates_mean(state):
            return compiled(state.params, drift_of(state))
        return state.params if state.ema is None else state.ema

    return evaluated


def make_consensus_distance(setup: TrainSetup, layout: Layout) -> Callable[[TrainState], float | None]:
    r"""Returns ``state -> distance``, the mean of the workers' squared distances from their mean; None if all agree.

    .. math:: \frac{1}{n} \sum_i |x_i - \bar{x}|^2
    """

    def distance(own):
        mean = jax.tree.map(lambda x: lax.pmean(jnp.mean(x, 0), DEVICE_AXIS), own)
        each = jax.vmap(asynchronous.squared_distance, in_axes=(0, None))(own, mean)
        return lax.pmean(each.mean(), DEVICE_AXIS)

    compiled = map_devices(distance, layout=layout, mapping=setup.config.mapping)

    def consensus_distance(state: TrainState) -> float | None:
        own = drift_of(state) if state.replica is None else state.replica
        return None if own is None else float(layout.get_shared(compiled(own)))

    return consensus_distance
