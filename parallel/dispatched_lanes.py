"""Computes lanes in separate calls of one compiled program; another program updates all of them.

So workers can be timed one by one, and the idle workers of an asynchronous wave are skipped.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax import numpy as jnp

from parallel.layout import Layout
from parallel.mapping import Compute, DeviceMapping, Step, Update, map_devices, over_lanes, stack_lanes, take_lane
from parallel.steps_in_flight import MAX_IN_FLIGHT, StepsInFlight
from parallel.worker_times import WorkerTimes


def dispatch_lanes(
    compute: Compute,
    update: Update,
    *,
    layout: Layout,
    state_axes: Any,
    mapping: DeviceMapping = "pmap",
    steps_per_call: Literal[1] = 1,
    is_idle: Callable[[Any], np.ndarray] | None = None,
    worker_times: WorkerTimes | None = None,
) -> Step:
    """Maps one worker's step to all workers, as ``map_workers`` does, but calls the devices once per lane.

    Args:
      compute: see ``map_workers``; compiled once for all lanes.
      update: see ``map_workers``.
      layout: W workers as D devices x L lanes.
      state_axes: see ``map_workers``.
      mapping: how the devices are mapped.
      steps_per_call: must be 1, since a step is several calls.
      is_idle: ``inputs -> [D, L]`` bool, on the host: workers whose work ``update`` ignores. A lane in which every
        worker is idle is not computed.
      worker_times: receives the seconds that each worker's ``compute`` takes.

    Raises:
      ValueError: if several steps per call are asked for.
    """
    if steps_per_call > 1:
        raise ValueError(f"steps_per_dispatch={steps_per_call}: must be 1 where lanes are dispatched")

    def compute_lane(state, batch, resident, lane):
        own, _ = take_lane(state, (), lane, state_axes=state_axes)
        return compute(own, batch, resident)

    # A process may skip lanes that others compute; compute has no collective.
    one_lane = map_devices(compute_lane, layout=layout, mapping=mapping, run_by="this")
    all_lanes = update_of_work(update, layout=layout, state_axes=state_axes, mapping=mapping)
    num_devices = len(layout.own_devices)
    zeros: list[Any] = []  # stands in for the work of idle lanes; made when first needed

    def work_of(lane, state, batch, resident):
        batch = jax.tree.map(lambda x: x[:, lane], batch)  # host arrays: a view
        call = functools.partial(one_lane, state, batch, resident, np.full(num_devices, lane, np.int32))
        return call() if worker_times is None else worker_times.measure(lane, call, after=state)

    def step(state, batch, resident, inputs):
        batch, inputs = jax.tree.map(lambda x: x[:, 0], (batch, inputs))
        idle = np.zeros(layout.lanes, bool) if is_idle is None else np.all(is_idle(inputs), axis=0)  # (L,)
        # Calls of several devices are limited as steps are: 16 lanes on 2 devices deadlocked.
        in_flight = StepsInFlight(limit=layout.lanes if layout.num_devices == 1 else MAX_IN_FLIGHT)
        work: list[Any] = []
        for lane in range(layout.lanes):
            work.append(None if idle[lane] else work_of(lane, state, batch, resident))
            in_flight.push(lane, work[-1])
        if layout.num_devices > 1:
            in_flight.drain()
        if idle.any() and not zeros:
            first = jax.tree.map(lambda x: x[:, 0], batch)  # for its shape: a process may have no work at all
            shapes = jax.eval_shape(one_lane, state, first, resident, np.zeros(num_devices, np.int32))
            zeros.append(jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), layout.sharding), shapes))
        return all_lanes(state, [zeros[0] if w is None else w for w in work], inputs)

    def lower(state, batch, resident, inputs):
        lane = jax.ShapeDtypeStruct((num_devices,), np.int32)
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[3:]), x.dtype), batch)
        inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype), inputs)
        work = [jax.eval_shape(one_lane, state, batch, resident, lane)] * layout.lanes
        return {
            "compute": (one_lane.lower(state, batch, resident, lane), layout.lanes),
            "update": (all_lanes.lower(state, work, inputs), 1),
        }

    return Step(step, lower=lower)


def update_of_work(update: Update, *, layout: Layout, state_axes: Any, mapping: DeviceMapping = "pmap") -> Any:
    """Returns a function that applies ``update`` for all workers to work that was computed before.

    The compiled function takes the state, a list of the lanes' work, [D, ...] each, and the inputs, [D, L], and returns
    the state and the metrics of one step, [D, 1, ...]. It donates the buffers of the state.
    """
    update_lanes = over_lanes(update, layout=layout, state_axes=state_axes)

    def update_list(state, work, inputs):
        state, metrics = update_lanes(state, stack_lanes(work), inputs)
        return state, jax.tree.map(lambda x: jnp.expand_dims(x, 0), metrics)

    return map_devices(update_list, layout=layout, mapping=mapping, donate_argnums=(0,))
