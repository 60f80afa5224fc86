"""The axes of a mesh other than the worker axes, over which leaves may be cut."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from reducers.collectives import tracked_axes


def needs_whole_leaves(sharded_over: tuple[str, ...] | None) -> bool:
    """Returns whether a reducer must refuse leaves that may be cut, by what its option ``sharded_over`` says of them.

    Args:
      sharded_over: the manual axes of the mesh over which leaves are cut: () for none, None if that is not known.

    Raises:
      ValueError: for axes, which no reducer sums over yet.

    >>> needs_whole_leaves(None), needs_whole_leaves(())
    (True, False)
    """
    if sharded_over is None or (isinstance(sharded_over, tuple) and not sharded_over):
        return sharded_over is None
    raise ValueError(
        f"sharded_over={sharded_over!r}: must be () for leaves that are whole, or None; dot products and norms of "
        "leaves that are cut are not supported yet"
    )


def check_whole_leaves(updates: Any, axes: tuple[str, ...]) -> None:
    """Raises ValueError where leaves may be cut over a manual axis of the mesh that is no worker axis.

    Axes of one device cut nothing, nor do vmapped ones, or those that are left to the compiler. Where JAX keeps track
    of what differs between devices, only leaves that differ along an axis can be cut over it.

    Args:
      updates: of this worker.
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
                "this axis to the compiler (axis_names of jax.shard_map), or pass sharded_over=() to the reducer if "
                "all leaves are whole along it"
            )


def on_automatic_axes(update: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """Returns the update function, on an explicit mesh one that leaves its axes to the compiler.

    Leaves that are cut over an explicit axis cannot be joined to vectors; over an automatic axis the compiler finds a
    layout for these. The updates and the state come back cut as they were.
    """
    explicit = jax.sharding.get_abstract_mesh().explicit_axes
    if not explicit:
        return update

    def update_fn(updates, state, params, **extra_args):
        leaves, treedef = jax.tree.flatten((updates, state, params, extra_args))
        places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

        def of_arrays(*arrays):
            given = list(leaves)
            for i, x in zip(places, arrays, strict=True):
                given[i] = x
            updates, state, params, extra_args = jax.tree.unflatten(treedef, given)
            return update(updates, state, params, **extra_args)

        specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, (updates, state))
        return jax.sharding.auto_axes(of_arrays, axes=explicit, out_sharding=specs)(*(leaves[i] for i in places))

    return update_fn
