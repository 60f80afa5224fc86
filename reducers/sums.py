"""Sums over all workers: an all-reduce, of which small arrays share one."""

import functools
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reducers.axes import AxisName, gather_workers, lanes_of
from reducers.batches import map_together


def sum_workers(tree: Any, axis_name: AxisName) -> Any:
    """Sums every array of a tree over all workers: ``lax.psum``, with lanes summed by a product with ones.

    XLA sums rows on CPU some 20 times slower than it multiplies by a vector of ones. Sums over lanes accumulate in
    float32 at least, those of integers in their own type.

    >>> jax.vmap(lambda x: sum_workers({"w": x}, "worker"), axis_name="worker")(jnp.arange(3.0))
    {'w': Array([3., 3., 3.], dtype=float32)}
    """
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    lanes = lanes_of(axes)
    devices = tuple(axis for axis in axes if axis not in lanes)
    if lanes:
        tree = jax.tree.map(lambda x: _sum_rows(gather_workers(x, lanes)), tree)
    return map_together(functools.partial(lax.psum, axis_name=devices), tree, axis_name=devices) if devices else tree


def _sum_rows(rows: jax.Array) -> jax.Array:
    if len(rows) == 1:
        return rows[0]
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        return jnp.sum(rows, axis=0, dtype=rows.dtype)
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    ones = jnp.ones(len(rows), rows.dtype)
    return jnp.tensordot(ones, rows, 1, precision="highest", preferred_element_type=wide).astype(rows.dtype)
