"""The state of a run: what the step reads and writes, how it begins, and the form in which checkpoints hold it."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from parallel import Layout, processes

if TYPE_CHECKING:
    from training.setup import TrainSetup


class WorkerState(NamedTuple):
    """Each worker's own state that a worker keeps unchanged when the step leaves it out.

    Attributes:
      model_state: BatchNorm statistics.
      opt_state: state of the transformations before the reducer: clipping, the loss scale, a worker's own optimizer.
    """

    model_state: Any
    opt_state: Any


class TrainState(NamedTuple):
    """All that a step reads and writes. The last three fields are each worker's own; the others are shared.

    Attributes:
      step: [] int32, server updates so far; bitwise-negated after a non-finite step, which freezes the state.
      key: [2] uint32, the random key of dropout and augmentation.
      params: the parameters.
      opt_state: state of the optimizer after the reducer.
      ema: moving average of the parameters, or None.
      server: further state of an asynchronous server, or None.
      worker: what a left-out worker keeps.
      reducer_state: state of the reducer.
      snapshot: the parameters that an asynchronous worker has read, or None.
    """

    step: Any
    key: Any
    params: Any
    opt_state: Any
    ema: Any
    server: Any
    worker: Any
    reducer_state: Any
    snapshot: Any


# The axis of each field over lanes: None for shared fields, 0 for each worker's own.
STATE_AXES = TrainState(
    step=None, key=None, params=None, opt_state=None, ema=None, server=None, worker=0, reducer_state=0, snapshot=0
)


def evaluation_params(state: TrainState) -> Any:
    """Returns the parameters at which a worker computes: the shared ones, or its own snapshot of them."""
    return state.params if state.snapshot is None else state.snapshot


def init_state(setup: "TrainSetup", layout: Layout, *, params: Any = None) -> TrainState:
    """Returns the initial state on the devices.

    Args:
      setup: of the run.
      layout: where the workers are.
      params: initial parameters; None for those that follow from the seed.
    """
    state = jax.device_get(jax.jit(lambda params: setup.init_worker(params=params))(params))
    state = processes.same_on_all(state)

    def for_all_workers(tree):
        return jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), tree)

    own = {name: for_all_workers(getattr(state, name)) for name in ("worker", "reducer_state", "snapshot")}
    return layout.put(state._replace(**own), STATE_AXES)


def to_host(state: TrainState, layout: Layout) -> TrainState:
    """Returns the state in canonical form, as checkpoints hold it: per-worker leaves are [W, ...].

    The step counts the updates that were made, also of a state that a non-finite step has frozen.
    """
    state = layout.get(state, STATE_AXES)
    return state._replace(step=np.maximum(state.step, ~state.step))


def abstract_state(setup: "TrainSetup", *, layout: Layout | None = None) -> TrainState:
    """Returns the shapes of ``to_host``; with the sharding of per-worker leaves in multi-process runs."""
    state = jax.eval_shape(setup.init_worker)
    saved = layout.saved if layout else None

    def of_all_workers(tree):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((setup.config.num_workers, *x.shape), x.dtype, sharding=saved), tree
        )

    own = {name: of_all_workers(getattr(state, name)) for name in ("worker", "reducer_state", "snapshot")}
    return state._replace(**own)


def shared_bytes(state: TrainState) -> int:
    """Returns the bytes of the shared fields of a state, or of its shapes."""
    shared = [field for field, axis in zip(state, STATE_AXES, strict=True) if axis is None]
    return sum(x.size * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shared))
