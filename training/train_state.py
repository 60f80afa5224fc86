"""The state of a run: what the step reads and writes, and the form in which checkpoints hold it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import reducers
from optim.frozen import join
from parallel import WHOLE, Layout, Partition

# Independent random streams of one seed; the order of examples has its own generator.
INIT_STREAM = 0
STEP_STREAM = 1
ARRIVAL_STREAM = 2
LATENCY_STREAM = 3


class WorkerState(NamedTuple):
    """The state of one worker, which it keeps unchanged when the step leaves it out.

    Attributes:
      model_state: BatchNorm statistics.
      opt_state: state of the transformations before the reducer: clipping, the loss scale, a worker's own optimizer.
    """

    model_state: Any
    opt_state: Any


class TrainState(NamedTuple):
    """All that a step reads and writes. The fields worker, reducer_state, snapshot and replica are each worker's own.

    Attributes:
      step: [] int32, server updates so far.
      stopped: [] bool, whether a step was not finite, which freezes the state; None in a checkpoint.
      key: [2] uint32, the random key of dropout and augmentation.
      params: the parameters that are trained; without a server the mean of the workers' replicas.
      opt_state: state of the optimizer after the reducer.
      ema: the parameters' moving average, or the average of a schedule-free optimizer; None without either.
      server: further state of an asynchronous server; without a server the latest updates, [M, ...]; or None.
      worker: the state that a worker keeps when it is left out.
      reducer_state: state of the reducer.
      snapshot: the parameters that an asynchronous worker has read, or None.
      replica: the parameters of an asynchronous worker without a server, or None.
      free_at: [W] float32, the simulated seconds from the start of the step until each worker has finished what it
        began in an earlier one; None if late workers are interrupted, or if all are waited for.
      frozen: the parameters that stay as they are, with None for those that are trained; None if all are trained.
      averaged: [] int32, number of updates in the moving average with which the run began; None if it began anew.
    """

    step: Any
    stopped: Any
    key: Any
    params: Any
    opt_state: Any
    ema: Any
    server: Any
    worker: Any
    reducer_state: Any
    snapshot: Any
    replica: Any = None
    free_at: Any = None
    frozen: Any = None
    averaged: Any = None

    @property
    def all_params(self) -> Any:
        """The parameters that are trained, and those that are frozen."""
        return join(self.params, self.frozen)


PER_WORKER = ("worker", "reducer_state", "snapshot", "replica")

# The axis of each field over lanes: None for shared fields, 0 for each worker's own.
STATE_AXES = TrainState(**{name: 0 if name in PER_WORKER else None for name in TrainState._fields})


def map_per_worker(change: Callable[[Any], Any], state: TrainState) -> TrainState:
    """Returns the state with ``change`` applied to every leaf of its per-worker fields."""
    return state._replace(**{name: jax.tree.map(change, getattr(state, name)) for name in PER_WORKER})


def shared_part(state: TrainState) -> TrainState:
    """Returns the state with None in its per-worker fields."""
    return state._replace(**dict.fromkeys(PER_WORKER))


class Initial(NamedTuple):
    """Initial values that replace those of the seed and the transformations.

    Attributes:
      params: all parameters, with None for those that are initialised from the seed.
      opt_state: state of the optimizer after the reducer; None begins anew, as in the following fields.
      ema: the moving average of the trained parameters.
      model_state: model state of every worker.
      averaged: number of updates in the moving average.
    """

    params: Any
    opt_state: Any = None
    ema: Any = None
    model_state: Any = None
    averaged: Any = 0


def gradient_params(state: TrainState, partition: Partition = WHOLE) -> Any:
    """Returns the parameters at which a worker computes its gradient: a snapshot, or the shared ones and its drift.

    They are whole, or in parts, as the state's own parameters are.
    """
    if state.snapshot is not None:
        return state.snapshot
    if reducers.report(state.reducer_state).drift is None:
        return state.params
    own = reducers.own_params(partition.own(state.params), state.reducer_state)
    return partition.like_params(own, state.params)


def to_host(state: TrainState, layout: Layout, axes: TrainState = STATE_AXES) -> TrainState:
    """Returns the state in canonical form, as checkpoints hold it: per-worker fields are [W, ...].

    Args:
      state: on the devices.
      layout: where the workers are.
      axes: ``TrainSetup.state_axes``, by default those of whole leaves.
    """
    return layout.get(state, axes)._replace(stopped=None)


def to_devices(state: TrainState, layout: Layout, axes: TrainState = STATE_AXES) -> TrainState:
    """Returns a state in canonical form on the devices; it is not stopped."""
    return layout.put(state._replace(stopped=np.zeros((), bool)), axes)
