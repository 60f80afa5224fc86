"""The tree along which Adasum combines many gradients, neighbours first."""

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp


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
    (((0, 1), (2, 3)), (4, 5)). For powers of two this is Horovod's tree. Groups are folded or added up first, each by
    itself.

    Args:
      combine: of two nodes.
      nodes: tree of arrays with a leading axis of ``tree.num_nodes``.
      tree: its shape.

    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 6), Tree(5))  # (((1, 2), (3, 4)), 5)
    Array(1545, dtype=int32)
    >>> fold(lambda a, b: 10 * a + b, jnp.arange(1, 7), Tree(6, group_size=3))  # (((1, 2), 3), ((4, 5), 6))
    Array(1686, dtype=int32)
    """
    n = tree.num_nodes
    if tree.group_size > 1:
        inside = combine if tree.within == "adasum" else functools.partial(jax.tree.map, operator.add)
        grouped = jax.tree.map(lambda x: x.reshape(-1, tree.group_size, *x.shape[1:]), nodes)
        nodes = jax.vmap(lambda group: fold(inside, group, Tree(tree.group_size)))(grouped)
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
