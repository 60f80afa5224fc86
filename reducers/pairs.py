"""Adasum of two gradients, and the tree along which many are combined."""

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp


def pair(a: jax.Array, b: jax.Array) -> jax.Array:
    r"""Adasum of two gradients.

    .. math:: \left(1 - \frac{a \cdot b}{2 |a|^2}\right) a + \left(1 - \frac{a \cdot b}{2 |b|^2}\right) b

    Written with a = s_a u and b = s_b v, largest elements of u and v being 1, so that no product leaves the range of
    float32, whatever the scales. A zero gradient is neutral: Adasum(a, 0) = a.

    Args:
      a: gradient of one worker, of any shape.
      b: gradient of another, of the same shape.

    Returns:
      Their combination: a + b if orthogonal, (a + b) / 2 if parallel.

    >>> pair(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))  # orthogonal: the sum
    Array([1., 1.], dtype=float32)
    >>> pair(jnp.array([1.0, 1.0]), jnp.array([3.0, 3.0]))  # parallel: the mean
    Array([2., 2.], dtype=float32)

    Reference: Maleki et al., arXiv 2006.02924, the definition of Adasum; zero as in Horovod's adasum.h.
    """
    (s_a, u), (s_b, v) = unit(a), unit(b)
    uu, vv, uv = jnp.vdot(u, u), jnp.vdot(v, v), jnp.vdot(u, v)
    # s_a u - (a.b / 2 |a|^2) a  =  (s_a - s_b (u.v) / (2 u.u)) u
    return (s_a - s_b * half_ratio(uv, uu)) * u + (s_b - s_a * half_ratio(uv, vv)) * v


def unit(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scale and unit: x = scale * unit, the largest element of unit being 1; (0, x) for zero."""
    scale = jnp.max(jnp.abs(x), initial=0.0)
    return scale, x / jnp.where(scale == 0, 1, scale)


def half_ratio(dot: jax.Array, square: jax.Array) -> jax.Array:
    """dot / (2 square), and 0 for a square of 0: what vanishes has no projection."""
    return jnp.where(square == 0, 0, 0.5 * dot / jnp.where(square == 0, 1, square))


def fold(combine: Callable[[Any, Any], Any], nodes: Any, *, num_nodes: int) -> Any:
    """Folds along the first axis, neighbours first: ((0, 1), (2, 3)), ...

    Where a level has an odd node out, its last, it goes up unpaired: 5 nodes fold as (((0, 1), (2, 3)), 4), 6 as
    (((0, 1), (2, 3)), (4, 5)). For powers of two this is Horovod's tree.

    Args:
      combine: of two nodes.
      nodes: tree of arrays with a leading axis of ``num_nodes``.
      num_nodes: at least 1.

    >>> fold(lambda a, b: (a, b), jnp.arange(1), num_nodes=1)
    Array(0, dtype=int32)
    """
    while num_nodes > 1:
        num_pairs = num_nodes // 2
        left = jax.tree.map(lambda x, n=num_pairs: x[0 : 2 * n : 2], nodes)
        right = jax.tree.map(lambda x, n=num_pairs: x[1 : 2 * n : 2], nodes)
        paired = jax.vmap(combine)(left, right)
        if num_nodes % 2:
            paired = jax.tree.map(lambda new, old: jnp.concatenate([new, old[-1:]]), paired, nodes)
        nodes, num_nodes = paired, num_pairs + num_nodes % 2
    return jax.tree.map(lambda x: x[0], nodes)
