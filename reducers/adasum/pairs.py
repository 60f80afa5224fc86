"""Adasum of two gradients, and the tree along which many are combined."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp


def pair(a: jax.Array, b: jax.Array) -> jax.Array:
    r"""Adasum of two gradients.

    .. math:: \left(1 - \frac{a \cdot b}{2 |a|^2}\right) a + \left(1 - \frac{a \cdot b}{2 |b|^2}\right) b

    Written with a = s_a u and b = s_b v, largest elements of u and v being about 1, so that no product leaves the range
    of float32, whatever the scales. A zero gradient is neutral: Adasum(a, 0) = a.

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
    alpha, beta = coefficients(s_a, s_b, uv=jnp.vdot(u, v), uu=jnp.vdot(u, u), vv=jnp.vdot(v, v))
    return alpha * u + beta * v


def coefficients(s_a: jax.Array, s_b: jax.Array, *, uv: jax.Array, uu: jax.Array, vv: jax.Array) -> tuple[Any, Any]:
    """Returns alpha and beta of alpha u + beta v, the Adasum of s_a u and s_b v, from the dot products of u and v."""
    # s_a u - (a.b / 2 |a|^2) a  =  (s_a - s_b (u.v) / (2 u.u)) u
    return s_a - s_b * half_ratio(uv, uu), s_b - s_a * half_ratio(uv, vv)


def unit(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns scale and unit, x = scale * unit, the largest element of unit being about 1; (0, x) for zero."""
    scale = power_of_two(jnp.max(jnp.abs(x), initial=0.0))
    return scale, x / nonzero(scale)


def power_of_two(x: jax.Array) -> jax.Array:
    """Returns the power of two nearest to x >= 0, a scale that rounds nothing; 0 for 0.

    At most an eighth of the largest number: XLA multiplies by the inverse of a scale, and takes that of a larger one,
    which is subnormal, for 0.

    >>> power_of_two(jnp.array([0.0, 1.0, 5.0, 6.0]))
    Array([0., 1., 4., 8.], dtype=float32)
    """
    info = jnp.finfo(x.dtype)
    return lax.reduce_precision(jnp.minimum(x, info.max / 8), info.nexp, 0)


def nonzero(x: jax.Array) -> jax.Array:
    """Returns x, or 1 where x is 0, as a divisor."""
    return jnp.where(x == 0, 1, x)


def half_ratio(dot: jax.Array, square: jax.Array) -> jax.Array:
    """Returns dot / (2 square), or 0 where the square is 0: nothing is projected onto a zero vector."""
    return jnp.where(square == 0, 0, 0.5 * dot / nonzero(square))


class Tree(NamedTuple):
    """The shape of a tree over nodes in worker order.

    Attributes:
      num_nodes: leaves of the tree, a multiple of group_size.
      group_size: so many neighbours are combined first, each group by itself; 1 for no groups.
      within: how a group is combined: added up, or by a tree of its own.
    """

    num_nodes: int
    group_size: int = 1
    within: Literal["sum", "adasum"] = "adasum"

    @classmethod
    def of(cls, num_workers: int, *, group_size: int, within: str) -> "Tree":
        """Returns the tree over workers, in which the mean of a group is the sum of the workers' shares.

        Raises:
          ValueError: if the groups do not divide the workers.
        """
        if num_workers % group_size:
            raise ValueError(f"group_size={group_size}: must divide the {num_workers} workers")
        return cls(num_workers, group_size, "adasum" if within == "adasum" else "sum")

    def after_groups(self) -> "Tree":
        """Returns the tree over the groups."""
        return Tree(self.num_nodes // self.group_size)

    def places(self) -> np.ndarray:
        """Returns the same tree as a perfect one: the node at each of its 2^k leaves, or num_nodes where a zero is.

        >>> Tree(3).places().tolist()  # ((0, 1), 2)
        [0, 1, 2, 3]
        >>> Tree(6, group_size=3).places().tolist()  # (((0, 1), 2), ((3, 4), 5))
        [0, 1, 2, 6, 3, 4, 5, 6]
        """
        places = np.full((_next_power(self.num_nodes // self.group_size), _next_power(self.group_size)), self.num_nodes)
        nodes = np.arange(self.num_nodes).reshape(-1, self.group_size)
        places[: len(nodes), : self.group_size] = nodes
        return places.ravel()


def _next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def fold(combine: Callable[[Any, Any], Any], nodes: Any, tree: Tree) -> Any:
    """Folds along the first axis, neighbours first: ((0, 1), (2, 3)), ...

    Where a level has an odd node out, its last, it goes up unpaired: 5 nodes fold as (((0, 1), (2, 3)), 4), 6 as
    (((0, 1), (2, 3)), (4, 5)). For powers of two this is Horovod's tree. Groups are folded first, each by itself.

    Args:
      combine: of two nodes.
      nodes: tree of arrays with a leading axis of ``tree.num_nodes``.
      tree: its shape; groups that are added up have been, before this.

    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 6), Tree(5))  # (((1, 2), (3, 4)), 5)
    Array(1545, dtype=int32)
    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 7), Tree(6, group_size=3))  # (((1, 2), 3), ((4, 5), 6))
    Array(1686, dtype=int32)
    """
    n = tree.num_nodes
    if tree.group_size > 1:
        grouped = jax.tree.map(lambda x: x.reshape(-1, tree.group_size, *x.shape[1:]), nodes)
        nodes = jax.vmap(lambda group: fold(combine, group, Tree(tree.group_size)))(grouped)
        return fold(combine, nodes, tree.after_groups())
    while n > 1:
        num_pairs = n // 2
        left = jax.tree.map(lambda x, n=num_pairs: x[0 : 2 * n : 2], nodes)
        right = jax.tree.map(lambda x, n=num_pairs: x[1 : 2 * n : 2], nodes)
        paired = jax.vmap(combine)(left, right)
        if n % 2:
            paired = jax.tree.map(lambda new, old: jnp.concatenate([new, old[-1:]]), paired, nodes)
        nodes, n = paired, num_pairs + n % 2
    return jax.tree.map(lambda x: x[0], nodes)
