"""Collectives over the worker axes, whose names are given outer first, such as ("device", "lane").

Axes of devices send; axes of lanes (vmapped ones) send nothing, since all their workers are on one device. Small arrays
share a collective, a *bucket*, and large ones have one each.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers import backend

AxisName: TypeAlias = str | tuple[str, ...]

# The results of a reduction, for each vector an array or several; and how it made them: a tree of arrays with a leading
# axis of vectors, or None.
Combined: TypeAlias = tuple[list[Any], Any]

# A bucket begins when the one so many before it has ended: one is sent while another is computed with.
IN_FLIGHT = 2
# Vectors of fewer elements, and of fewer elements a gradient, are gathered as they are.
_MIN_ELEMENTS, _MIN_ELEMENTS_PER_GRADIENT = 64, 8


# ---- axes ----------------------------------------------------------------------------------------------------------


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

    There the gradient by parameters that are the same on all workers is the sum of the workers' gradients, and JAX
    knows that it is the same on all workers, too. Of vmapped axes JAX cannot keep track.
    """
    tracked, (devices, lanes) = tracked_axes(), devices_and_lanes(axis_name)
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
                f"jax.lax.pcast(params, {axes}, to='varying'), or pass check_vma=False to jax.shard_map"
            )


def _one_or_all(axes: Sequence[str]) -> str:
    return repr(axes[0] if len(axes) == 1 else tuple(axes))


def devices_and_lanes(axis_name: AxisName) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the axes of a mesh's devices, and those that are vmapped, along which gathering sends nothing."""
    axes, of_mesh = axes_of(axis_name), jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in axes if axis in of_mesh), tuple(axis for axis in axes if axis not in of_mesh)


def split_axes(axis_name: AxisName) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the axes of devices, none if there is one device alone, and those of lanes.

    Raises:
      ValueError: if lanes do not come last.
    """
    axes = axes_of(axis_name)
    devices, lanes = devices_and_lanes(axes)
    if (*devices, *lanes) != axes:
        raise ValueError(f"axis_name={axes!r}: vmapped axes ({', '.join(lanes)}) must come after those of devices")
    return devices if num_workers(devices) > 1 else (), lanes


# ---- one array -----------------------------------------------------------------------------------------------------


def gather_workers(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns all workers' x, [W, ...], in worker order: one axis at a time, innermost first.

    Where JAX keeps track of what differs between devices, it knows that the result does not.

    >>> jax.vmap(lambda x: gather_workers(x, "worker"), axis_name="worker")(jnp.arange(2.0))[0]
    Array([0., 1.], dtype=float32)
    """
    axes, shape, tracked = axes_of(axis_name), x.shape, tracked_axes()
    for axis in reversed(axes):
        x = lax.all_gather(x, axis, to="invarying" if axis in tracked else "varying")
    return x.reshape(num_workers(axes), *shape)


def same_on_all(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns x, which is the same on all workers, in a form that JAX knows to be the same on all lanes; sends nothing.

    >>> jax.vmap(lambda x: same_on_all(x, "worker"), axis_name="worker", out_axes=None)(jnp.ones(3))
    Array(1., dtype=float32)
    """
    _, lanes = devices_and_lanes(axis_name)
    return gather_workers(x, lanes)[0] if lanes else x


def agreed(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns x, which is the same on all workers, in a form that JAX knows to be the same on all of them.

    ``same_on_all`` is enough for lanes. Where JAX keeps track of what differs between devices, too, their maximum of x
    shows it; elsewhere nothing is sent.

    >>> jax.vmap(lambda x: agreed(x, "worker"), axis_name="worker", out_axes=None)(jnp.ones(3))
    Array(1., dtype=float32)
    """
    x = same_on_all(x, axis_name)
    differs = [axis for axis in axes_of(axis_name) if axis in tracked_axes() & jax.typeof(x).manual_axis_type.varying]
    return lax.pmax(x, tuple(differs)) if differs else x


def as_own(tree: Any, axis_name: AxisName) -> Any:
    """Returns a tree as values of this worker's own, which may differ between workers; nothing is computed.

    Both branches of a condition must agree on that, where JAX keeps track of what differs between devices.
    """
    tracked = tracked_axes().intersection(axes_of(axis_name))

    def mark(x):
        same = sorted(tracked - jax.typeof(x).manual_axis_type.varying)
        return lax.pcast(x, tuple(same), to="varying") if same else x

    return jax.tree.map(mark, tree) if tracked else tree


def shift_workers(x: jax.Array, distance: int, axis_name: AxisName) -> jax.Array:
    """Returns the x of the worker that is so far before this one along the circle of all workers.

    Every worker sends its x once, to at most two devices; between the workers of one device nothing is sent.

    Args:
      x: this worker's.
      distance: in workers, where the last one is followed by the first.
      axis_name: the worker axis, or a tuple of axes, outer first, of which lanes are the inner ones.

    >>> jax.vmap(lambda x: shift_workers(x, 1, "worker"), axis_name="worker")(jnp.arange(3.0))
    Array([2., 0., 1.], dtype=float32)
    """
    devices, lanes = devices_and_lanes(axis_name)
    num_devices, num_lanes = num_workers(devices), num_workers(lanes)
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


# ---- slices of arrays ----------------------------------------------------------------------------------------------


def too_small(num_elements: int, *, num_gradients: int) -> bool:
    """Returns whether slices of a vector are too small to be worth an exchange.

    Dot products of so few elements lose digits, too, where many gradients nearly cancel.
    """
    return num_elements < max(_MIN_ELEMENTS, _MIN_ELEMENTS_PER_GRADIENT * num_gradients)


def by_size(
    vectors: Sequence[jax.Array],
    *,
    num_gradients: int,
    small: Callable[[list[jax.Array]], Combined],
    large: Callable[[list[jax.Array]], Combined],
) -> Combined:
    """Combines vectors, [..., m], that are ``too_small`` in one way and the others in another; keeps their order.

    >>> small, large = (lambda xs, word=word: ([word for _ in xs], None) for word in ("small", "large"))
    >>> by_size([jnp.ones(100), jnp.ones(2)], num_gradients=2, small=small, large=large)
    (['large', 'small'], None)
    """
    parts = []
    for combine, is_small in ((small, True), (large, False)):
        places = [i for i, x in enumerate(vectors) if too_small(x.shape[-1], num_gradients=num_gradients) == is_small]
        if places:
            parts.append((places, combine([vectors[i] for i in places])))
    return _in_order(parts)


def _in_order(parts: Sequence[tuple[list[int], Combined]]) -> Combined:
    """Puts together what was combined apart, by the places of the vectors."""
    back = np.argsort([i for places, _ in parts for i in places])
    results = [x for _, (xs, _) in parts for x in xs]
    how = jax.tree.map(lambda *x: jnp.concatenate(x)[back], *(how for _, (_, how) in parts))
    return [results[i] for i in back], how


def slice_size(num_elements: int, axes: tuple[str, ...]) -> int:
    """Returns the number of elements in a device's slice of a vector, padding included."""
    return -(-num_elements // num_workers(axes))


def to_slices(vectors: Sequence[jax.Array], axes: tuple[str, ...]) -> jax.Array:
    """Exchanges all devices' vectors, so that each device has a slice of every one: (n - 1) / n of the bytes.

    Args:
      vectors: this device's, [k, m] each: k gradients, those of its lanes.
      axes: the devices, outer first.

    Returns:
      This device's slices of all gradients, [devices * k, M], one vector after the other, padded with zeros to
      ``slice_size`` each. Types are kept.
    """
    num_rows = len(vectors[0]) * num_workers(axes)
    padded = [jnp.pad(x, ((0, 0), (0, -x.shape[1] % num_workers(axes)))) for x in vectors]
    slices = [x.reshape(len(x), num_workers(axes), -1).swapaxes(0, 1) for x in padded]  # (devices, k, width)
    block = join([x.reshape(num_rows, -1) for x in slices], axis=1)
    # Tiled, the result comes in the shape in which it is used. Through another one XLA on CPU would join it once for
    # each use.
    return lax.all_to_all(block, axes, split_axis=0, concat_axis=0, tiled=True)


def from_slices(slices: jax.Array, sizes: Sequence[int], axes: tuple[str, ...]) -> list[jax.Array]:
    """Gathers all devices' slices of some vectors, one after the other, [M], and returns the vectors without padding.

    >>> mesh = jax.make_mesh((1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> there_and_back = lambda x: from_slices(to_slices([x], ("device",))[0], [3], ("device",))[0]
    >>> spec = jax.sharding.PartitionSpec()
    >>> jax.shard_map(there_and_back, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(jnp.ones((1, 3)))
    Array([1., 1., 1.], dtype=float32)
    """
    padded = cut(gather_workers(slices, axes), [slice_size(size, axes) for size in sizes])  # (devices, width) each
    return [x.reshape(-1)[:size] for x, size in zip(padded, sizes, strict=True)]


# ---- many arrays ---------------------------------------------------------------------------------------------------


def sum_workers(tree: Any, axis_name: AxisName, *, where: jax.Array | None = None) -> Any:
    """Sums every array of a tree over all workers: lanes on their device, then ``lax.psum`` over devices.

    Sums over lanes accumulate in float32 at least, those of integers in their own type.

    Args:
      tree: of this worker's arrays.
      axis_name: the worker axis, or a tuple of axes, outer first.
      where: a bool of each worker, whether its arrays are added; None adds those of all.

    >>> jax.vmap(lambda x: sum_workers({"w": x}, "worker"), axis_name="worker")(jnp.arange(3.0))
    {'w': Array([3., 3., 3.], dtype=float32)}
    """
    devices, lanes = devices_and_lanes(axis_name)
    if where is not None:
        tree = jax.tree.map(lambda x: jnp.where(where, x, 0), tree)
    if lanes:
        tree = jax.tree.map(lambda x: backend.sum_rows(gather_workers(x, lanes)), tree)
    return map_together(functools.partial(lax.psum, axis_name=devices), tree, axis_name=devices) if devices else tree


def map_together(reduce: Callable[[jax.Array], jax.Array], tree: Any, *, axis_name: AxisName) -> Any:
    """Applies an elementwise reduction to every array of a tree, bucket by bucket; on one device array by array.

    Args:
      reduce: along ``axis_name``; an element of its result depends on the workers' values of that element alone.
      tree: of arrays.
      axis_name: the worker axis, or a tuple of axes, outer first.

    >>> double = lambda x: 2 * x
    >>> jax.vmap(lambda x: map_together(double, {"w": x}, axis_name="worker"), axis_name="worker")(jnp.ones(2))
    {'w': Array([2., 2.], dtype=float32)}
    """
    devices, _ = devices_and_lanes(axis_name)
    # Where nothing is sent, XLA would join the arrays of a bucket anew in every operation that reads one of them.
    if not devices or num_workers(devices) == 1:
        return jax.tree.map(reduce, tree)
    leaves, treedef = jax.tree.flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    results: list[Any] = [None] * len(arrays)
    for bucket in buckets(arrays):
        if len(bucket) == 1:
            results[bucket[0]] = reduce(arrays[bucket[0]])
            continue
        reduced = reduce(join([arrays[i].ravel() for i in bucket]))
        for i, part in zip(bucket, cut(reduced, [arrays[i].size for i in bucket]), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return jax.tree.unflatten(treedef, results)


def in_buckets(
    reduce: Callable[[list[int], list[jax.Array]], Combined],
    vectors: Sequence[jax.Array],
    *,
    axis_name: tuple[str, ...],
) -> Combined:
    """Applies ``reduce`` to buckets of vectors; the number of calls follows the bytes, not the number of vectors.

    Where nothing is sent, all vectors are one bucket.

    Args:
      reduce: takes the places of vectors and the vectors.
      vectors: arrays of the same dtype in any number of dimensions.
      axis_name: the devices that they are reduced over; empty for one device.

    >>> double = lambda places, bucket: ([2 * x for x in bucket], jnp.array(places))
    >>> in_buckets(double, [jnp.ones(2), jnp.ones(1)], axis_name=("device",))
    ([Array([2., 2.], dtype=float32), Array([2.], dtype=float32)], Array([0, 1], dtype=int32))
    """
    if not vectors:
        return [], None
    if not axis_name:
        return reduce(list(range(len(vectors))), list(vectors))
    parts: list[tuple[list[int], Combined]] = []
    for bucket in buckets(vectors):
        chosen = [vectors[i] for i in bucket]
        if len(parts) >= IN_FLIGHT:
            _, (earlier, _) = parts[-IN_FLIGHT]
            end = jax.tree.leaves(earlier[0])[0].ravel()[0]
            chosen = [backend.wait_for(end, vector) for vector in chosen]
        parts.append((bucket, reduce(bucket, chosen)))
    return _in_order(parts)


def buckets(arrays: Sequence[jax.Array]) -> list[list[int]]:
    """Returns which arrays share a collective, by their places: arrays of one dtype, the small ones first.

    >>> buckets([jnp.zeros(300_000), jnp.zeros(2), jnp.zeros(3), jnp.zeros(1, jnp.int8)])
    [[1, 2], [0], [3]]
    """
    found: list[list[int]] = []
    free = 0
    for i in sorted(range(len(arrays)), key=lambda i: (arrays[i].dtype.name, arrays[i].nbytes)):
        if not found or arrays[i].nbytes > free or arrays[i].dtype != arrays[found[-1][0]].dtype:
            found.append([])
            free = backend.bucket_bytes()
        found[-1].append(i)
        free -= arrays[i].nbytes
    return found


def join(parts: Sequence[jax.Array], *, axis: int = 0) -> jax.Array:
    """Returns the parts one after the other; a single one as it is, uncopied."""
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]


def cut(joined: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
    """Takes joined parts apart again, along the last axis.

    >>> cut(jnp.arange(3), [1, 2])
    [Array([0], dtype=int32), Array([1, 2], dtype=int32)]
    """
    ends = itertools.accumulate(widths)
    return [joined[..., end - width : end] for width, end in zip(widths, ends, strict=True)]
