"""What a device combines of its own lanes before any other device is asked."""

import math
from typing import NamedTuple

import jax
from jax import numpy as jnp

from reducers.adasum.layers import wide
from reducers.adasum.pairs import Tree, fold, pair


class LanePlan(NamedTuple):
    """How far a tree can be followed on each device by itself.

    Attributes:
      added: so many neighbouring lanes are added up first.
      folded: then so many neighbours are folded, in turn.
      rest: the tree that is left, over all devices' nodes.
    """

    added: int
    folded: tuple[int, ...]
    rest: Tree


def plan_lanes(num_lanes: int, tree: Tree, *, only_sums: bool = False) -> LanePlan:
    """Finds what is together on a device wherever its lanes begin: whole groups, and powers of two of neighbours.

    Args:
      num_lanes: of each device.
      tree: over all workers.
      only_sums: leaves the folding to others.

    >>> plan_lanes(12, Tree(24))  # fours, of which each device has three
    LanePlan(added=1, folded=(4,), rest=Tree(num_nodes=6, group_size=1, within='adasum'))
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
    return LanePlan(added, (*folded, together) if together > 1 else folded, rest)


def fold_lanes(nodes: jax.Array, plan: LanePlan) -> jax.Array:
    """Combines a device's nodes, [lanes, m], as planned; returns those left, in float32 at least if it did anything.

    >>> fold_lanes(jnp.eye(2), LanePlan(2, (), Tree(1)))
    Array([[1., 1.]], dtype=float32)
    """
    if plan.added > 1:
        nodes = add_up(wide(nodes), plan.added)
    for size in plan.folded:
        blocks = wide(nodes).reshape(-1, size, nodes.shape[-1])
        nodes = jax.vmap(lambda block, size=size: fold(pair, block, Tree(size)))(blocks)
    return nodes


def add_up(nodes: jax.Array, size: int) -> jax.Array:
    """Sums of so many neighbours, [..., k, m] -> [..., k / size, m]; a product, as XLA sums rows slowly on CPU."""
    if size == 1:
        return nodes
    blocks = nodes.reshape(*nodes.shape[:-2], -1, size, nodes.shape[-1])
    return jnp.einsum("i,...im->...m", jnp.ones(size, nodes.dtype), blocks, precision="highest")
