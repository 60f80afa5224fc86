"""Adasum of the lanes of one device, which are folded before devices exchange anything."""

import math
from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.gather import fold_vectors
from reducers.adasum.tree import Tree
from reducers.backend import sum_neighbours
from reducers.collectives import by_size
from reducers.gram.engine import combine_rows
from reducers.gram.scales import wide

# How many lanes are folded at once, a power of two. With all pairs of n lanes, each lane takes part in n dot products;
# eight at a time, each lane costs the same whatever their number.
TOGETHER = 8


def whole_subtrees(num_lanes: int, tree: Tree) -> tuple[list[Tree], Tree]:
    """Finds the subtrees that every device holds whole: groups, parts of sums, and powers of two of neighbours.

    Args:
      num_lanes: of each device.
      tree: over all workers.

    Returns:
      Subtrees to be combined one after the other, and the tree that is left, over all devices' nodes.

    >>> whole_subtrees(12, Tree(24))  # each device has three subtrees of four
    ([Tree(num_nodes=4, group_size=1, within='adasum')], Tree(num_nodes=6, group_size=1, within='adasum'))
    >>> [subtree.num_nodes for subtree in whole_subtrees(64, Tree(128))[0]]
    [8, 8]
    >>> whole_subtrees(4, Tree(16, 8, "sum"))  # half a group
    ([Tree(num_nodes=4, group_size=4, within='sum')], Tree(num_nodes=4, group_size=2, within='sum'))
    """
    found: list[Tree] = []
    while True:
        size = math.gcd(num_lanes, tree.group_size) if tree.group_size > 1 else num_lanes
        adds = tree.group_size > 1 and tree.within == "sum"
        if not adds and (size != tree.group_size or size == 1):
            size = min(size & -size, TOGETHER)  # a power of two
        if size == 1:
            return found, tree
        found.append(Tree(size, size if adds else 1, tree.within))
        num_lanes //= size
        tree = Tree(tree.num_nodes // size, max(1, tree.group_size // size), tree.within)


def fold_lanes(layers: Sequence[jax.Array], subtree: Tree, *, present: jax.Array) -> list[jax.Array]:
    """Combines a device's neighbouring nodes along copies of a subtree.

    Args:
      layers: [lanes, m] each.
      subtree: one that ``whole_subtrees`` finds.
      present: [lanes], which of them may be anything but zero.

    Returns:
      The nodes of each layer, [lanes / subtree.num_nodes, m], in float32 at least.

    >>> fold_lanes([jnp.eye(2)], Tree(2), present=jnp.ones(2, bool))  # orthogonal: the sum
    [Array([[1., 1.]], dtype=float32)]
    """
    size = subtree.num_nodes
    if subtree.group_size > 1:
        return [sum_neighbours(wide(nodes), size) for nodes in layers]
    blocks = [wide(nodes).reshape(-1, size, nodes.shape[1]) for nodes in layers]

    def fold_products(large: list[jax.Array]) -> list[jax.Array]:
        present_in = jnp.tile(present.reshape(-1, size), (len(large), 1))
        return combine_rows(large, (), weigh=weigher(subtree), present=present_in)[0]

    return by_size(blocks, num_gradients=size, small=lambda xs: fold_vectors(xs, subtree), large=fold_products)
