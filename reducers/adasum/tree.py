"""The tree along which Adasum combines many gradients, neighbours first."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from jax import numpy as jnp

# How many lanes of a device are folded at once, a power of two. With all pairs of n lanes, each lane takes part in n
# dot products; eight at a time, each lane costs the same whatever their number.
LANES_TOGETHER = 8


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

    def on_one_device(self, num_lanes: int) -> tuple[list["Tree"], "Tree"]:
        """Finds the subtrees that every device holds whole: parts of groups, and powers of two of neighbours.

        Args:
          num_lanes: of each device.

        Returns:
          Subtrees to be folded one after the other, and the tree that is left, over all devices' nodes.

        >>> Tree(24).on_one_device(12)  # each device has three subtrees of four
        ([Tree(num_nodes=4, group_size=1, within='adasum')], Tree(num_nodes=6, group_size=1, within='adasum'))
        >>> [subtree.num_nodes for subtree in Tree(128).on_one_device(64)[0]]
        [8, 8]
        >>> Tree(16, 8, "sum").on_one_device(4)  # half a group
        ([Tree(num_nodes=4, group_size=4, within='sum')], Tree(num_nodes=4, group_size=2, within='sum'))
        """
        size, adds = num_lanes, self.group_size > 1 and self.within == "sum"
        if self.group_size > 1:
            size = math.gcd(num_lanes, self.group_size)
        if not adds:
            size = min(size & -size, LANES_TOGETHER)  # a power of two
        if size == 1:
            return [], self
        rest = Tree(self.num_nodes // size, max(1, self.group_size // size), self.within)
        subtrees, rest = rest.on_one_device(num_lanes // size)
        return [Tree(size, size if adds else 1, self.within), *subtrees], rest


def fold(
    combine: Callable[[Any, Any], Any], nodes: Any, tree: Tree, *, add: Callable[[Any, Any], Any] = jnp.add
) -> Any:
    """Folds along the first axis, neighbours first: ((0, 1), (2, 3)), ...

    Where a level has an odd node out, its last, it goes up unpaired: 5 nodes fold as (((0, 1), (2, 3)), 4), 6 as
    (((0, 1), (2, 3)), (4, 5)). For powers of two this is Horovod's tree. Groups are folded or added up first, each by
    itself.

    Args:
      combine: of two nodes.
      nodes: an array, or a tree of arrays, with a leading axis of ``tree.num_nodes``.
      tree: its shape.
      add: the sum of two nodes, of a group that is added up.

    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 6), Tree(5))  # (((1, 2), (3, 4)), 5)
    Array(1545, dtype=int32)
    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 7), Tree(6, group_size=3))  # (((1, 2), 3), ((4, 5), 6))
    Array(1686, dtype=int32)
    """
    num_nodes, group_size, within = tree
    if group_size > 1:
        grouped = jax.tree.map(lambda x: x.reshape(-1, group_size, *x.shape[1:]), nodes)
        inside = functools.partial(fold, combine if within == "adasum" else add, tree=Tree(group_size))
        return fold(combine, jax.vmap(inside)(grouped), Tree(num_nodes // group_size))
    if num_nodes == 1:
        return jax.tree.map(lambda x: x[0], nodes)
    even = num_nodes // 2 * 2
    left, right = (jax.tree.map(operator.itemgetter(slice(side, even, 2)), nodes) for side in (0, 1))
    paired = jax.vmap(combine)(left, right)
    level = jax.tree.map(lambda new, old: jnp.concatenate([new, old[even:]]), paired, nodes)
    return fold(combine, level, Tree((num_nodes + 1) // 2))
