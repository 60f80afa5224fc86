"""Norms of the leaves of a tree.

optax computes the norm of one leaf after another. On an accelerator each is a kernel, or two. Here rows are summed leaf
by leaf, and then leaves with as many rows together.
"""

from typing import Any

import jax
from jax import numpy as jnp

from reducers.dtypes import as_real, common_dtype, wide


def squares(tree: Any) -> jax.Array:
    """Returns the squared norm of each leaf, [L] in float32 at least.

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
    return jnp.stack([sums[i] for i in range(len(rows))]) if rows else jnp.zeros(0)


def norm(of_leaves: jax.Array) -> jax.Array:
    """Returns the norm of a tree from the ``squares`` of its leaves."""
    return jnp.sqrt(of_leaves.sum())


def _row_squares(leaf: jax.Array) -> jax.Array:
    x = as_real(wide(jnp.asarray(leaf)))
    return jnp.square(x).sum(-1).reshape(-1) if x.ndim > 1 else jnp.square(x).reshape(-1)
