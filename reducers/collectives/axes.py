"""The worker axes, named outer first, such as ("device", "lane"), and collectives of one array.

Axes of devices send; axes of lanes (vmapped ones) send nothing, since all their workers are on one device.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax import lax
from jax import numpy as jnp

AxisName: TypeAlias = str | tuple[str, ...]


def axes_of(axis_name: AxisName | list[str]) -> tuple[str, ...]:
    """Returns the names of the worker axes as a tuple.

    Raises:
      ValueError: if it is neither a name nor a sequence of names.

    >>> axes_of("worker"), axes_of(["device", "lane"])
    (('worker',), ('device', 'lane'))
    """
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    if not isinstance(axes, tuple | list) or not all(isinstance(axis, str) for axis in axes):
        raise ValueError(f'axis_name={axis_name!r}: must be a name or a tuple of names, such as ("device", "lane")')
    return tuple(axes)


def num_workers(axis_name: AxisName) -> int:
    """Returns the number of workers along ``axis_name``, a Python int known while tracing.

    Raises:
      NameError: if one of the axes is not bound where this is called.

    >>> jax.vmap(lambda x: x * num_workers("worker"), axis_name="worker")(jnp.ones(3))
    Array([3., 3., 3.], dtype=float32)
    """
    axes = axes_of(axis_name)
    for axis in axes:
        try:
            lax.axis_size(axis)
        except NameError:
            bound = ", ".join(map(repr, jax.sharding.get_abstract_mesh().manual_axes))
            raise NameError(
                f"axis_name={axis!r}: no such axis here{f', where the mesh has {bound}' if bound else ''}; bind it by "
                f"jax.pmap(..., axis_name={axis!r}), by jax.shard_map over a mesh that has it, or by "
                f"jax.vmap(..., axis_name={axis!r})"
            ) from None
    return lax.axis_size(axes)


def tracked_axes() -> frozenset[str]:
    """Returns the axes over which JAX keeps track of what differs: those of ``jax.shard_map``, by its default."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return frozenset()
    # Traced apart, so that the question adds no operation to the program.
    indices = jax.make_jaxpr(lambda: [lax.axis_index(axis) for axis in axes])().out_avals
    return frozenset[str]().union(*(index.manual_axis_type.varying for index in indices))


def check_one_per_worker(updates: Any, axis_name: AxisName) -> None:
    """Raises ValueError where JAX keeps track of what differs, and has already summed the updates over the workers.

    There the gradient with respect to shared parameters is the sum of the workers' gradients, and JAX knows that the
    sum is the same on all workers. JAX cannot keep track of vmapped axes.
    """
    tracked = tracked_axes()
    devices, lanes = devices_and_lanes(axis_name)
    if tracked and lanes:
        raise ValueError(
            f"axis_name={_one_or_all(lanes)}: JAX cannot keep track of collectives over a vmapped axis; pass "
            "check_vma=False to jax.shard_map"
        )
    several = {axis for axis in tracked.intersection(devices) if lax.axis_size(axis) > 1}
    for path, leaf in jax.tree.leaves_with_path(updates) if several else ():
        if same := sorted(several - jax.typeof(leaf).manual_axis_type.varying):
            axes = _one_or_all(same)
            raise ValueError(
                f"axis_name={axes}: updates{jax.tree_util.keystr(path)} is the same on all workers, a gradient that "
                "jax.shard_map has already summed over them; differentiate by "
                f"reducers.per_worker(params, {axes}), or pass check_vma=False to jax.shard_map"
            )


def _one_or_all(axes: Sequence[str]) -> str:
    return repr(axes[0] if len(axes) == 1 else tuple(axes))


def devices_and_lanes(axis_name: AxisName) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the axes of a mesh's devices, and those that are vmapped, along which gathering sends nothing."""
    axes = axes_of(axis_name)
    of_mesh = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in axes if axis in of_mesh), tuple(axis for axis in axes if axis not in of_mesh)


def split_axes(axis_name: AxisName) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the axes of devices, or () for a single device, and the axes of lanes.

    Raises:
      ValueError: if lanes do not come last.
    """
    axes = axes_of(axis_name)
    devices, lanes = devices_and_lanes(axes)
    if (*devices, *lanes) != axes:
        raise ValueError(f"axis_name={axes!r}: vmapped axes ({', '.join(lanes)}) must come after those of devices")
    return devices if num_workers(devices) > 1 else (), lanes


def gather_workers(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns all workers' x, [W, ...], in worker order: one axis at a time, innermost first.

    Where JAX keeps track of what differs between devices, it knows that the result does not.

    >>> jax.vmap(lambda x: gather_workers(x, "worker"), axis_name="worker")(jnp.arange(2.0))[0]
    Array([0., 1.], dtype=float32)
    """
    axes = axes_of(axis_name)
    shape = x.shape
    tracked = tracked_axes()
    for axis in reversed(axes):
        x = lax.all_gather(x, axis, to="invarying" if axis in tracked else "varying")
    return x.reshape(num_workers(axes), *shape)


def same_on_all(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Shows JAX that x, which is the same on all workers, is the same on all lanes; sends nothing.

    >>> jax.vmap(lambda x: same_on_all(x, "worker"), axis_name="worker", out_axes=None)(jnp.ones(3))
    Array(1., dtype=float32)
    """
    _, lanes = devices_and_lanes(axis_name)
    return gather_workers(x, lanes)[0] if lanes else x


def agreed(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Shows JAX that x, which is the same on all workers, is the same.

    ``same_on_all`` is enough for lanes. Where JAX also keeps track of what differs between devices, the maximum of x
    over the devices shows it; elsewhere nothing is sent.

    >>> jax.vmap(lambda x: agreed(x, "worker"), axis_name="worker", out_axes=None)(jnp.ones(3))
    Array(1., dtype=float32)
    """
    x = same_on_all(x, axis_name)
    differs = [axis for axis in axes_of(axis_name) if axis in tracked_axes() & jax.typeof(x).manual_axis_type.varying]
    return lax.pmax(x, tuple(differs)) if differs else x


def as_own(tree: Any, axis_name: AxisName) -> Any:
    """Marks a tree as this worker's own, which may differ between workers; nothing is computed.

    Where JAX keeps track of what differs between devices, both branches of a condition must agree on it.
    """
    tracked = tracked_axes().intersection(axes_of(axis_name))

    def mark(x):
        same = sorted(tracked - jax.typeof(x).manual_axis_type.varying)
        return lax.pcast(x, tuple(same), to="varying") if same else x

    return jax.tree.map(mark, tree) if tracked else tree


def per_worker(params: Any, axis_name: AxisName) -> Any:
    """Returns the parameters as one worker's own, so that its gradient is its own under ``jax.shard_map``, too.

    ``jax.shard_map`` sums the gradient with respect to shared parameters over the workers, unless ``check_vma=False``.
    It does not sum that with respect to these. Under ``pmap`` and ``vmap``, and without the check, the parameters are
    returned as they are. Nothing is computed or sent.

    Args:
      params: a tree of arrays.
      axis_name: the worker axis or axes.

    Raises:
      NameError: if one of the axes is not bound where this is called.

    >>> def gradient(weight, slope):
    ...   return jax.grad(lambda w: jnp.sum(w * slope))(per_worker(weight, "worker"))
    >>> mesh = jax.make_mesh((2,), ("worker",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> P = jax.sharding.PartitionSpec
    >>> specs = {"in_specs": (P(), P("worker")), "out_specs": P("worker")}
    >>> jax.shard_map(gradient, mesh=mesh, **specs)(jnp.ones(1), jnp.array([3.0, 5.0]))
    Array([3., 5.], dtype=float32)
    """
    num_workers(axis_name)  # raises where an axis is not bound
    return as_own(params, axis_name)


def shift_workers(x: jax.Array, distance: int, axis_name: AxisName) -> jax.Array:
    """Returns the x of the worker that is ``distance`` before this one on the circle of all workers.

    Every worker sends its x once, to at most two devices; between the workers of one device nothing is sent.

    Args:
      x: this worker's.
      distance: a number of workers; the first one follows the last.
      axis_name: the worker axis or axes, lanes last.

    >>> jax.vmap(lambda x: shift_workers(x, 1, "worker"), axis_name="worker")(jnp.arange(3.0))
    Array([2., 0., 1.], dtype=float32)
    """
    devices, lanes = devices_and_lanes(axis_name)
    num_devices = num_workers(devices)
    num_lanes = num_workers(lanes)
    hops, rest = divmod(distance, num_lanes)
    rows = gather_workers(x, lanes)

    def send(rows, hops):
        if hops % num_devices == 0:
            return rows
        return lax.ppermute(rows, devices, [(i, (i + hops) % num_devices) for i in range(num_devices)])

    moved = send(rows[: num_lanes - rest], hops)
    if rest:  # the last lanes go on to the first ones of the device after
        moved = jnp.concatenate([send(rows[num_lanes - rest :], hops + 1), moved])
    return moved[lax.axis_index(lanes)] if lanes else moved[0]
