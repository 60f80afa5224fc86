"""Norms of the leaves of a tree, which may be in parts on several devices.

optax computes the norm of one leaf after another. On an accelerator each is a kernel, or two. Here rows are summed leaf
by leaf, and then leaves with as many rows together.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reducers.dtypes import as_real, common_dtype, wide

_cut_over: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("axes that cut leaves", default=())


@contextlib.contextmanager
def cut_over(axes: tuple[str, ...]) -> Iterator[None]:
    """Says, while a function is traced, that mesh axes cut all leaves: their ``squares`` are those of whole leaves.

    Reducers have their option ``sharded_over`` for this; the functions of optax have none.
    """
    token = _cut_over.set(axes)
    try:
        yield
    finally:
        _cut_over.reset(token)


def squares(tree: Any) -> jax.Array:
    """Returns the squared norm of each leaf, [L] in float32 at least.

    Inside of ``cut_over`` it is that of the whole leaf, of which this device has a part.

    >>> squares({"a": jnp.array([3.0, 4.0]), "b": jnp.ones(())})
    Array([25.,  1.], dtype=float32)
    """
    rows = [_row_squares(leaf) for leaf in jax.tree.leaves(tree)]
    dtype = common_dtype(jnp.float32, *(row.dtype for row in rows))
    alike: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(row.size, []).append(i)
    sums: dict[int, jax.Array] = {}
    for group in alike.values():
        sums |= zip(group, jnp.stack([rows[i].astype(dtype) for i in group]).sum(-1), strict=True)
    found = jnp.stack([sums[i] for i in range(len(rows))]) if rows else jnp.zeros(0)
    return lax.psum(found, axes) if (axes := _cut_over.get()) else found


def norm(of_leaves: jax.Array) -> jax.Array:
    """Returns the norm of a tree from the ``squares`` of its leaves."""
    return jnp.sqrt(of_leaves.sum())


def _row_squares(leaf: jax.Array) -> jax.Array:
    x = as_real(wide(jnp.asarray(leaf)))
    return jnp.square(x).sum(-1).reshape(-1) if x.ndim > 1 else jnp.square(x).reshape(-1)
