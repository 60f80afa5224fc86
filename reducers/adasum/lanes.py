"""Adasum of the lanes of one device, which are folded before devices exchange anything."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, fold
from reducers.backend import sum_neighbours
from reducers.collectives import too_small
from reducers.gram.engine import combine_rows
from reducers.gram.scales import wide

# How many lanes are folded at once, a power of two. With all pairs of n lanes, each lane takes part in n dot products;
# eight at a time, each lane costs the same whatever their number.
TOGETHER = 8


class LanePlan(NamedTuple):
    """How far each device can follow the tree with its own lanes alone.

    Attributes:
      added: how many neighbouring lanes are first added up.
      folded: how many neighbours are then folded, in turn.
      rest: the tree that is left, over all devices' nodes.
    """

    added: int
    folded: tuple[int, ...]
    rest: Tree


def plan_lanes(num_lanes: int, tree: Tree, *, only_sums: bool = False) -> LanePlan:
    """Finds the subtrees that every device holds whole: groups, and powers of two of neighbours.

    Args:
      num_lanes: of each device.
      tree: over all workers.
      only_sums: leaves the folding to the exchange between devices.

    >>> plan_lanes(12, Tree(24))  # each device has three subtrees of four
    LanePlan(added=1, folded=(4,), rest=Tree(num_nodes=6, group_size=1, within='adasum'))
    >>> plan_lanes(64, Tree(128)).folded
    (8, 8)
    >>> plan_lanes(4, Tree(16, 8, "sum"))  # half a group
    LanePlan(added=4, folded=(), rest=Tree(num_nodes=4, group_size=2, within='sum'))
    """
    added = 1
    if tree.within == "sum" and tree.group_size > 1:
        added = math.gcd(num_lanes, tree.group_size)
        num_lanes //= added
        tree = Tree(tree.num_nodes // added, tree.group_size // added, "sum")
    if only_sums or (tree.within == "sum" and tree.group_size > 1):
        return LanePlan(added, (), tree)
    folded: tuple[int, ...] = ()
    if tree.group_size > 1 and num_lanes % tree.group_size == 0:
        folded, num_lanes, tree = (tree.group_size,), num_lanes // tree.group_size, tree.after_groups()
    together = math.gcd(num_lanes, tree.group_size) if tree.group_size > 1 else num_lanes
    together &= -together  # its largest power of two
    rest = Tree(tree.num_nodes // together, max(1, tree.group_size // together))
    while together > 1:
        folded = (*folded, min(together, TOGETHER))
        together //= folded[-1]
    return LanePlan(added, folded, rest)


def fold_lanes(layers: Sequence[jax.Array], plan: LanePlan, *, present: jax.Array) -> list[jax.Array]:
    """Combines a device's nodes as planned.

    Args:
      layers: [lanes, m] each.
      plan: of ``plan_lanes``.
      present: [lanes], which of them may be anything but zero.

    Returns:
      The nodes of each layer that are left, [k, m], in float32 at least if anything was combined.

    >>> fold_lanes([jnp.eye(2)], LanePlan(2, (), Tree(1)), present=jnp.ones(2, bool))
    [Array([[1., 1.]], dtype=float32)]
    """
    if plan.added > 1:
        layers = [sum_neighbours(wide(nodes), plan.added) for nodes in layers]
        present = present.reshape(-1, plan.added).any(1)
    for size in plan.folded:
        blocks = [wide(nodes).reshape(-1, size, nodes.shape[-1]) for nodes in layers]
        small = [too_small(nodes.shape[-1], num_gradients=size) for nodes in layers]
        blocks_present = present.reshape(len(blocks[0]), size)
        large = [block for block, is_small in zip(blocks, small, strict=True) if not is_small]
        of_large = jnp.tile(blocks_present, (len(large), 1))
        folded = iter(combine_rows(large, (), weigh=weigher(Tree(size)), present=of_large)[0] if large else ())
        present = blocks_present.any(1)
        fold_block = jax.vmap(lambda block, size=size: fold(pair, block, Tree(size)))
        layers = [fold_block(x) if is_small else next(folded) for x, is_small in zip(blocks, small, strict=True)]
    return list(layers)
