"""The arrays of a reducer's state: shaped like parameters, none of them twice, their types the same in each update."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import tracked_axes
from reducers.dtypes import mixing_dtypes


def zeros_like(params: Any, axes: tuple[str, ...], *, copies: int | None = None) -> Any:
    """Returns zeros of the shapes, dtypes and shardings of parameters; JAX knows that all workers have the same.

    Args:
      params: a tree of arrays, or of ``jax.ShapeDtypeStruct``.
      axes: the worker axes.
      copies: how many copies of each, along a new first axis; None for no such axis.

    >>> zeros_like({"w": jax.ShapeDtypeStruct((2,), jnp.float32)}, ("worker",), copies=2)
    {'w': Array([[0., 0.],
           [0., 0.]], dtype=float32)}
    """

    def zeros(x):
        one = jnp.zeros_like(x, dtype=jnp.result_type(x))
        if isinstance(x, jax.core.Tracer) and tracked_axes():  # there they would differ along the axes that x does
            found = jax.typeof(x)
            one = jnp.zeros(x.shape, x.dtype, out_sharding=found.sharding.spec)
            if others := found.manual_axis_type.varying.difference(axes):
                one = lax.pcast(one, tuple(sorted(others)), to="varying")
        return one if copies is None else jnp.broadcast_to(one[None], (copies, *one.shape))

    return jax.tree.map(zeros, params)


def moved(drift: Any, updates: Any) -> Any:
    """Returns a worker's drift after an update; its dtypes stay, whatever those of the update are.

    >>> moved(jnp.ones(2), jnp.ones(2, jnp.bfloat16))
    Array([2., 2.], dtype=float32)
    """
    return jax.tree.map(lambda u, d: mixing_dtypes(jnp.add)(u, d).astype(u.dtype), drift, updates)


def distinct(state: Any, params: Any) -> Any:
    """Copies arrays that a state has twice, or that are parameters, so that each array of the state can be donated.

    >>> zero = jnp.zeros(())
    >>> first, second = distinct((zero, zero), params=())
    >>> first is second
    False
    """
    seen = {id(leaf) for leaf in jax.tree.leaves(params)}

    def own(x):
        if isinstance(x, jax.Array) and id(x) in seen:
            return jnp.copy(x)
        seen.add(id(x))
        return x

    return jax.tree.map(own, state)


def carried(after: Any, before: Any) -> Any:
    """Returns the state after an update with the types of the state before it, as ``jax.lax.scan`` requires them.

    Where JAX keeps track of what may differ between devices, an array that may differ keeps this type, even if an
    update makes it the same on all of them. States of different structures stay as they are.
    """
    structures: list[Any] = [jax.tree.structure(state) for state in (after, before)]
    if structures[0] != structures[1] or not tracked_axes():
        return after

    def mark(new, old):
        same = jax.typeof(old).manual_axis_type.varying - jax.typeof(new).manual_axis_type.varying
        return lax.pcast(new, tuple(sorted(same)), to="varying") if same else new

    return jax.tree.map(mark, after, before)
