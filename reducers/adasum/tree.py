"""The tree along which Adasum combines many gradients, neighbours first."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from reducers.collectives.backend import sum_neighbours
from reducers.gram.scales import without_noise


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

    @property
    def adds(self) -> bool:
        """Whether groups are added up."""
        return self.group_size > 1 and self.within == "sum"

    @classmethod
    def of(cls, num_workers: int, *, group_size: int, within: str) -> "Tree":
        """Returns the tree over workers, in which the mean of a group is the sum of the workers' shares.

        Raises:
          ValueError: if the groups do not divide the workers.
        """
        if num_workers % group_size:
            raise ValueError(f"group_size={group_size}: must divide the {num_workers} workers")
        return cls(num_workers, group_size, "adasum" if within == "adasum" else "sum")

    def neighbours(self, count: int, *, at_most: int) -> int:
        """Returns how many neighbours are folded first, as a subtree that divides so many nodes.

        It is a part of a group that is added up, a power of two up to ``at_most``, or an odd group; 1 if there is none.

        Args:
          count: such as the lanes of a device, which holds a subtree of them whole.
          at_most: of those that are not added up.

        >>> Tree(24).neighbours(12, at_most=8), Tree(128).neighbours(64, at_most=8)
        (4, 8)
        >>> Tree(16, 8, "sum").neighbours(4, at_most=8), Tree(12, 6).neighbours(6, at_most=8)
        (4, 2)
        >>> Tree(12, 6).above(2).neighbours(3, at_most=8), Tree(12, 6).neighbours(3, at_most=8)
        (3, 1)
        """
        size = math.gcd(count, self.group_size) if self.group_size > 1 else count
        power = min(size & -size, 1 << at_most.bit_length() - 1)
        return size if self.adds or (power == 1 and size == self.group_size) else power

    def inside(self, size: int) -> "Tree":
        """Returns the tree over so many neighbours, as many as ``neighbours`` says."""
        return Tree(size, size, "sum") if self.adds else Tree(size)

    def above(self, size: int) -> "Tree":
        """Returns the tree that is left when so many neighbours are one node each.

        >>> Tree(16, 8, "sum").above(4)
        Tree(num_nodes=4, group_size=2, within='sum')
        """
        return Tree(self.num_nodes // size, max(1, self.group_size // size), self.within)

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


def add_up(nodes: jax.Array, size: int) -> jax.Array:
    """Adds up every ``size`` neighbouring nodes, [..., n, m] -> [..., n / size, m].

    Where a sum cancels out, what is left is rounding noise, and becomes 0: its direction would take its projection away
    from the next node.

    >>> add_up(jnp.array([[1.0], [2.0], [0.3], [-0.30000001]]), 2)
    Array([[3.],
           [0.]], dtype=float32)
    """
    return without_noise(sum_neighbours(nodes, size), sum_neighbours(jnp.abs(nodes), size))


def fold(combine: Callable[[Any, Any], Any], nodes: Any, tree: Tree) -> Any:
    """Folds along the first axis, neighbours first: ((0, 1), (2, 3)), ...

    Where a level has an odd node out, its last, it goes up unpaired: 5 nodes fold as (((0, 1), (2, 3)), 4), 6 as
    (((0, 1), (2, 3)), (4, 5)). For powers of two this is Horovod's tree. Groups are folded first, each by itself.

    Args:
      combine: of two nodes.
      nodes: an array, or a tree of arrays, with a leading axis of ``tree.num_nodes``.
      tree: its shape; groups that are added up are so before, by ``add_up``.

    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 6), Tree(5))  # (((1, 2), (3, 4)), 5)
    Array(1545, dtype=int32)
    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 7), Tree(6, group_size=3))  # (((1, 2), 3), ((4, 5), 6))
    Array(1686, dtype=int32)
    """
    if tree.group_size > 1:
        grouped = jax.tree.map(lambda x: x.reshape(-1, tree.group_size, *x.shape[1:]), nodes)
        inside = functools.partial(fold, combine, tree=Tree(tree.group_size))
        return fold(combine, jax.vmap(inside)(grouped), tree.above(tree.group_size))
    if tree.num_nodes == 1:
        return jax.tree.map(lambda x: x[0], nodes)
    even = tree.num_nodes // 2 * 2
    left, right = (jax.tree.map(operator.itemgetter(slice(side, even, 2)), nodes) for side in (0, 1))
    paired = jax.vmap(combine)(left, right)
    level = jax.tree.map(lambda new, old: jnp.concatenate([new, old[even:]]), paired, nodes)
    return fold(combine, level, Tree((tree.num_nodes + 1) // 2))
