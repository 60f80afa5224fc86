"""The axes of a mesh other than the worker axes, over which leaves may be cut."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, agreed, as_own, axes_of, tracked_axes
from reducers.dtypes import as_real
from reducers.leaves import leaf_names

# The axes over which leaves are cut, other than the worker axes: () for none; axes that cut all leaves, or those that
# JAX knows to differ along them; or regular expression of a leaf's path -> the axes that cut it, where the first match
# counts. None where that is not known. A name stands for a tuple of it.
ShardedOver: TypeAlias = AxisName | Mapping[str, AxisName] | None


def needs_whole_leaves(sharded_over: ShardedOver, *, sums_parts: bool = True) -> bool:
    """Returns whether a reducer must refuse leaves that may be cut, given its option ``sharded_over``.

    Args:
      sharded_over: the manual axes of the mesh over which leaves are cut.
      sums_parts: whether the reducer can sum over the parts of a leaf.

    Raises:
      ValueError: if it names no axes, has a pattern that is not a regular expression, or names axes over which the
        reducer cannot sum.

    >>> needs_whole_leaves(None), needs_whole_leaves("model"), needs_whole_leaves({"kernel": ("model",), "": ()})
    (True, False, False)
    """
    if sharded_over is None:
        return True
    if axes_that_cut(sharded_over) and not sums_parts:
        raise ValueError(
            f"sharded_over={sharded_over!r}: must be () for leaves that are whole, or None; what takes blocks, norms "
            "or the largest numbers of leaves cannot be summed over their parts"
        )
    return False


def _of_patterns(sharded_over: ShardedOver) -> dict[str, tuple[str, ...]]:
    """Checks the axes that cut leaves, and returns them by pattern; a tuple of axes is for all leaves."""
    if sharded_over is None:
        return {}
    of_patterns = sharded_over if isinstance(sharded_over, Mapping) else {"": sharded_over}
    for pattern, axes in of_patterns.items():
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"sharded_over[{pattern!r}]: must be a regular expression: {error}") from None
        if not isinstance(axes, tuple | str) or not all(isinstance(axis, str) for axis in axes):
            raise ValueError(
                f"sharded_over={sharded_over!r}: must be () for leaves that are whole, the axis or a tuple of the axes "
                'that cut leaves, patterns with such axes, as {"kernel": "model", "": ()}, or None'
            )
    return {pattern: axes_of(axes) for pattern, axes in of_patterns.items()}


def axes_that_cut(sharded_over: ShardedOver) -> tuple[str, ...]:
    """Returns all axes over which leaves may be cut; raises ValueError as ``needs_whole_leaves``.

    >>> axes_that_cut({"kernel": ("row", "column"), "bias": "column"}), axes_that_cut("model"), axes_that_cut(None)
    (('row', 'column'), ('model',), ())
    """
    return tuple(dict.fromkeys(axis for axes in _of_patterns(sharded_over).values() for axis in axes))


def cuts_of(tree: Any, sharded_over: ShardedOver, *, axis_name: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns the axes over which each leaf is cut; the axes must be bound.

    A tuple of axes cuts all leaves. Where JAX keeps track of what differs over an axis, it cuts those that differ.

    Args:
      tree: this device's leaves.
      sharded_over: see ``needs_whole_leaves``.
      axis_name: the worker axes; none of them may cut leaves.

    Raises:
      ValueError: if an axis is a worker axis or is not bound, or if no pattern matches a leaf.
    """
    axes = axes_that_cut(sharded_over)
    for axis in axes:
        if axis in axis_name:
            raise ValueError(f"sharded_over: {axis!r} is a worker axis, over which each worker has leaves of its own")
        try:
            lax.axis_size(axis)
        except NameError:
            raise ValueError(
                f"sharded_over: {axis!r} is no manual axis here; leave out axes that are left to the compiler"
            ) from None
    if isinstance(sharded_over, Mapping):
        names = leaf_names(tree)
        of_patterns = _of_patterns(sharded_over)
        found = [next((of_patterns[key] for key in of_patterns if re.search(key, name)), None) for name in names]
        for name, of_leaf in zip(names, found, strict=True):
            if of_leaf is None:
                raise ValueError(f"sharded_over: {name!r} matches none of {', '.join(map(repr, sharded_over))}")
        return [tuple(axis for axis in axes if axis in (of_leaf or ())) for of_leaf in found]
    tracked = tracked_axes().intersection(axes)
    same = [
        tracked - jax.typeof(leaf).manual_axis_type.varying if tracked else frozenset()
        for leaf in jax.tree.leaves(tree)
    ]
    return [tuple(axis for axis in axes if axis not in of_leaf) for of_leaf in same]


def counts_here(cuts: Sequence[tuple[str, ...]], axes: tuple[str, ...]) -> jax.Array:
    """Returns which leaves this device counts in a sum over the axes, [leaves] bool: the first of several copies alone.

    Args:
      cuts: the axes that cut each leaf; along the others all devices have a copy.
      axes: those that the sum is over.
    """
    first = {axis: lax.axis_index(axis) == 0 for axis in axes}
    counts = [[first[axis] for axis in axes if axis not in cut] for cut in cuts]
    return jnp.stack([jnp.stack([jnp.array(True), *of_leaf]).all() for of_leaf in counts])


def sum_of_parts(numbers: Sequence[jax.Array], cuts: Sequence[tuple[str, ...]], axes: tuple[str, ...]) -> jax.Array:
    """Sums a number of each leaf, over all leaves and over the devices that have parts of them.

    Args:
      numbers: one for each of this device's parts, such as its squared norm; one of several copies counts.
      cuts: the axes that cut each leaf.
      axes: all axes that cut any leaf; () adds up the numbers alone.
    """
    if not axes:
        return sum(numbers, jnp.zeros((), jnp.float32))
    counted = jnp.where(counts_here(cuts, axes), jnp.stack(numbers), 0)
    return lax.psum(as_own(counted.sum(), axes), axes)


def with_copies_alike(results: Any, updates: Any, axes: tuple[str, ...]) -> Any:
    """Shows JAX that the copies of a leaf's result are the same, if it knew that of its update.

    After leaves were joined, JAX takes each result to differ over all axes that cut any of them. The maximum over a
    leaf's copies shows that they are the same; elsewhere nothing is sent.
    """
    tracked = tracked_axes().intersection(axes)

    def alike(result, update):
        same = tuple(axis for axis in axes if axis in tracked - jax.typeof(update).manual_axis_type.varying)
        if not same:
            return result
        shown = agreed(as_real(result), same)
        return lax.complex(*shown) if jnp.iscomplexobj(result) else shown

    return jax.tree.map(alike, results, updates) if tracked else results


def all_agree(flag: jax.Array, axis_name: Any) -> jax.Array:
    """Returns whether a flag is set on all devices along some axes, [] bool."""
    axes = axes_of(axis_name)
    return lax.pmin(as_own(flag.astype(jnp.int32), axes), axes) > 0 if axes else flag


def check_whole_leaves(updates: Any, axes: tuple[str, ...]) -> None:
    """Raises ValueError if leaves may be cut over a manual axis of the mesh that is not a worker axis.

    Axes of one device cut nothing, nor do vmapped ones, or those that are left to the compiler. Where JAX keeps track
    of what differs between devices, only leaves that differ along an axis can be cut over it.

    Args:
      updates: this worker's.
      axes: the worker axes.
    """
    manual = jax.sharding.get_abstract_mesh().manual_axes
    others = {axis for axis in manual if axis not in axes and lax.axis_size(axis) > 1}
    tracked = tracked_axes() if others else frozenset()
    for path, leaf in jax.tree.leaves_with_path(updates) if others else ():
        if cut := sorted(others - (tracked - jax.typeof(leaf).manual_axis_type.varying)):
            raise ValueError(
                f"axis_name={axes[0] if len(axes) == 1 else axes!r}: updates{jax.tree_util.keystr(path)} may be cut "
                f"over the mesh axis {cut[0]!r}, where dot products, norms and scales would be those of a part; leave "
                "this axis to the compiler (axis_names of jax.shard_map), or pass sharded_over to the reducer: the "
                "axes that cut leaves, or sharded_over=() if all leaves are whole"
            )


def on_automatic_axes(update: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """Returns the update function; on an explicit mesh, one that leaves the mesh's axes to the compiler.

    Leaves that are cut over an explicit axis cannot be joined to vectors; over an automatic axis the compiler finds a
    layout for these. The updates and the state come back cut as they were.
    """
    explicit = jax.sharding.get_abstract_mesh().explicit_axes
    if not explicit:
        return update

    def update_fn(updates, state, params, **extra_args):
        leaves, treedef = jax.tree.flatten((updates, state, params, extra_args))
        places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

        def update_arrays(*arrays):  # ``auto_axes`` takes arrays alone
            filled = list(leaves)
            for i, x in zip(places, arrays, strict=True):
                filled[i] = x
            updates, state, params, extra_args = jax.tree.unflatten(treedef, filled)
            return update(updates, state, params, **extra_args)

        specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, (updates, state))
        return jax.sharding.auto_axes(update_arrays, axes=explicit, out_sharding=specs)(*(leaves[i] for i in places))

    return update_fn
