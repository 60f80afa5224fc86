"""Maps one worker to all: ``jax.pmap`` or ``jax.shard_map`` over the devices, ``jax.vmap`` over the lanes of each."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from parallel import processes
from parallel.lane_groups import in_groups
from parallel.layout import DEVICE_AXIS, LANE_AXIS, Layout, split_by_axes

DeviceMapping = Literal["pmap", "shard_map"]

# A worker's two functions:
#   compute(state, batch, resident) -> gradient           no collective between workers
#   update(state, gradient, inputs) -> (state, metrics)   every collective, over ("device", "lane")
Compute = Callable[[Any, Any, Any], Any]
Update = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Step:
    """All workers' step: ``step(state, batch, resident, inputs) -> (state, metrics)``.

    One call takes k steps, up to the K for which it was built. Arrays have a leading device axis: shared state and
    resident data are [D, ...], per-worker state is [D, L, ...], batches and inputs are [D, k, L, ...]. Metrics are
    [D, K, ...], of which the first k count. The buffers of ``state`` are donated: use the returned ones.

    Attributes:
      call: takes the steps.
      lower: takes the arguments' shapes, with k = K; returns each program lowered for compilation, by name, with the
        number of times that one call runs it. One program, mapped by shard_map, can be lowered for other
        ``platforms`` too.
    """

    call: Callable[..., tuple[Any, Any]]
    lower: Callable[..., dict[str, tuple[Any, int]]]

    def __call__(self, state: Any, batch: Any, resident: Any, inputs: Any) -> tuple[Any, Any]:
        return self.call(state, batch, resident, inputs)


def map_devices(
    function: Callable,
    *,
    layout: Layout,
    mapping: DeviceMapping = "pmap",
    donate_argnums: tuple[int, ...] = (),
    run_by: Literal["all", "this"] = "all",
):
    """Runs ``function`` once on each device, over the leading axis of every argument and result.

    Args:
      function: receives one device's slice of each argument, with ``layout.device_axes`` bound; by pmap with
        ``DEVICE_AXIS`` alone, over all devices.
      layout: the devices.
      mapping: "pmap", or "shard_map" inside of ``jit``; both take and return the same arrays.
      donate_argnums: arguments whose buffers the result may reuse.
      run_by: "all": every process calls the function, with its own part. "this": only this process does, on its
        devices.

    Returns:
      A compiled function of arrays with a leading axis [D, ...].
    """
    alone = run_by == "this"
    devices, mesh = (layout.own_devices, layout.own_mesh) if alone else (layout.devices, layout.mesh)
    if mapping == "pmap":
        return jax.pmap(function, axis_name=DEVICE_AXIS, devices=devices, donate_argnums=donate_argnums)

    def one_slice(*args):
        result = function(*jax.tree.map(lambda x: jnp.squeeze(x, 0), args))
        return jax.tree.map(lambda x: jnp.expand_dims(x, 0), result)

    spec = layout.spec
    # The law tests check replication for every reducer; the types of check_vma cannot follow lanes.
    mapped = jax.shard_map(one_slice, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    compiled = jax.jit(mapped, donate_argnums=donate_argnums)
    return _with_own_part(compiled, mesh=mesh, spec=spec) if processes.several() and not alone else compiled


def map_workers(
    compute: Compute,
    update: Update,
    *,
    layout: Layout,
    state_axes: Any,
    mapping: DeviceMapping = "pmap",
    steps_per_call: int = 1,
    lanes_at_once: int | None = None,
    is_idle: Callable[[Any], Any] | None = None,
) -> Step:
    """Maps one worker's step to all workers: devices by ``mapping``, the lanes of a device by ``jax.vmap``.

    Shared state is not batched over lanes, so 32 lanes hold one copy of the parameters. The result depends on neither
    the layout nor the mapping, up to the rounding of sums.

    Args:
      compute: one worker's own work, ``(state, batch, resident) -> gradient``, without collectives between workers.
      update: ``(state, gradient, inputs) -> (state, metrics)`` under the named axes ``AXES``. The shared state and the
        metrics that it returns must be equal on all workers.
      layout: W workers as D devices x L lanes.
      state_axes: prefix of the state's tree: None for shared state, 0 for state of each worker's own.
      mapping: how the devices are mapped.
      steps_per_call: K, the most steps of one call. If K > 1, one program takes any number of steps in a loop. If it is
        1, there is no loop, which would be slow on CPU.
      lanes_at_once: the most lanes of a device that ``compute`` at once; None for all. Groups of lanes go one after
        another, so that only one group's activations are in memory.
      is_idle: ``inputs -> [L]`` bool: workers whose work ``update`` ignores. A group whose workers are all idle is not
        computed.
    """
    update_lanes = over_lanes(update, layout=layout, state_axes=state_axes)

    compute_lanes = in_groups(
        compute_at_once(compute, state_axes=state_axes),
        lanes=layout.lanes,
        lanes_at_once=lanes_at_once or layout.lanes,
        state_axes=state_axes,
        is_idle=is_idle,
    )

    def step(state, batch, resident, inputs):
        return update_lanes(state, compute_lanes(state, batch, resident, inputs), inputs)

    def only_step(state, batch, resident, inputs):
        batch, inputs = jax.tree.map(lambda x: jnp.squeeze(x, 0), (batch, inputs))
        state, metrics = step(state, batch, resident, inputs)
        return state, jax.tree.map(lambda x: jnp.expand_dims(x, 0), metrics)

    if steps_per_call == 1:
        compiled = map_devices(only_step, layout=layout, mapping=mapping, donate_argnums=(0,))
        return Step(compiled, lower=functools.partial(_lower, compiled))

    compiled = map_devices(step_loop(step, length=steps_per_call), layout=layout, mapping=mapping, donate_argnums=(0,))
    num_devices = len(layout.own_devices)

    def call(state, batch, resident, inputs):
        count = jax.tree.leaves(batch)[0].shape[1]
        batch, inputs = jax.tree.map(functools.partial(_pad, length=steps_per_call), (batch, inputs))
        return compiled(state, batch, resident, inputs, np.full(num_devices, count, np.int32))

    def lower(*shapes, platforms=None):
        return _lower(compiled, *shapes, jax.ShapeDtypeStruct((num_devices,), np.int32), platforms=platforms)

    return Step(call, lower=lower)


def compute_at_once(compute: Compute, *, state_axes: Any) -> Compute:
    """Returns ``compute`` of all lanes of one device at once; batch, per-worker state and work are [L, ...]."""

    def call(state, batch, resident):
        if jax.tree.leaves(batch)[0].shape[0] == 1:  # a batch of one would give other, slower matrix products
            return stack_lanes([compute(*take_lane(state, batch, 0, state_axes=state_axes), resident)])
        return jax.vmap(compute, in_axes=(state_axes, 0, None))(state, batch, resident)

    return call


def step_loop(step: Callable, *, length: int) -> Callable:
    """Returns ``step`` of one device as a loop over the first ``count`` of a call's arrays, [length, ...] each.

    ``count`` is an argument of the program, which therefore serves every number of steps up to ``length``.
    """

    step = jax.jit(step)  # traced once, for the shapes of its metrics and for the loop

    def call(state, batch, resident, inputs, count):
        def take(i, carry):
            state, metrics = carry
            state, measured = step(state, at(batch, i), resident, at(inputs, i))
            return state, jax.tree.map(lambda k, one: lax.dynamic_update_index_in_dim(k, one, i, 0), metrics, measured)

        shapes = jax.eval_shape(step, state, at(batch, 0), resident, at(inputs, 0))[1]
        metrics = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)
        return lax.fori_loop(0, count, take, (state, metrics))

    def at(tree, i):
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), tree)

    return call


def _pad(x: np.ndarray, *, length: int) -> np.ndarray:
    """Fills [D, k, ...] up to [D, length, ...] with zeros, which the loop does not read."""
    missing = length - x.shape[1]
    return np.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)) if missing else x


def _lower(compiled: Any, *shapes: Any, platforms: Sequence[str] | None = None) -> dict[str, tuple[Any, int]]:
    lowered = compiled.trace(*shapes).lower(lowering_platforms=platforms) if platforms else compiled.lower(*shapes)
    return {"step": (lowered, 1)}


def over_lanes(update: Update, *, layout: Layout, state_axes: Any) -> Update:
    """Returns ``update`` for all lanes of one device, with the lane axis bound for its collectives."""
    return jax.vmap(
        update,
        in_axes=(state_axes, 0, 0),
        out_axes=(state_axes, None),
        axis_name=LANE_AXIS,
        axis_size=layout.lanes,
    )


def take_lane(state: Any, batch: Any, lane: Any, *, state_axes: Any) -> tuple[Any, Any]:
    """Returns one lane's view of a device's state and batch."""
    own = split_by_axes(
        state, state_axes, shared=lambda tree: tree, per_worker=lambda tree: jax.tree.map(lambda x: x[lane], tree)
    )
    return own, jax.tree.map(lambda x: x[lane], batch)


def stack_lanes(trees: list[Any]) -> Any:
    """Stacks the lanes' trees, [...] each, to [L, ...]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _with_own_part(compiled: Callable, *, mesh: Mesh, spec: PartitionSpec) -> Callable:
    """Wraps a function of the arrays of all processes: it takes and returns this process's part, as ``pmap`` does."""
    from jax.experimental import multihost_utils

    def call(*args):
        result = compiled(*multihost_utils.host_local_array_to_global_array(args, mesh, spec))
        return multihost_utils.global_array_to_host_local_array(result, mesh, spec)

    return call
