"""Adasum level by level: neighbouring devices exchange slices, then their neighbours slices of these, and so on.

With 1,024 devices the dot products of all pairs are a million numbers a layer. So the tree is folded by groups of
neighbours, 16 devices at most, the last level 32: each device takes a slice of its group's gradients, and combines
these. It then has a slice of one node, which it exchanges with the devices that have the same slice of other nodes.
Each level sends a smaller part of the gradient, and 16 x 16 numbers a layer. With groups of two this is the paper's
AdasumRVH. Small layers are gathered, and folded as whole vectors.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from reducers.adasum.fold import adasum_rule
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, add_up, fold
from reducers.collectives import (
    Combined,
    Devices,
    by_size,
    cut,
    from_slices,
    join,
    num_workers,
    pad_axis,
    slice_size,
    to_slices,
    tracked_axes,
)
from reducers.dtypes import wide
from reducers.gram.engine import combine_rows, products_of
from reducers.gram.parts import like
from reducers.gram.products import Weighed
from reducers.gram.rows import Places, Rows, arrange, slices_of

# The most devices of a level, where the tree allows it. In each level a device sends the dot products of all pairs of
# its devices, for each layer; with fewer devices there are more levels, each of which is a round. The last level may
# have twice as many, where it is the whole rest of the tree.
DEVICES_TOGETHER, LAST_TOGETHER = 16, 32
# A level of at most 64 nodes multiplies all pairs of them. A larger one, such as that of a prime number of devices,
# folds four neighbours at a time.
_NODES_TOGETHER, _NEIGHBOURS_TOGETHER = 64, 4
# Layers of fewer elements are folded together, padded to one length; larger ones one by one.
_TOGETHER_ELEMENTS = 8192


class Level(NamedTuple):
    """A level of the tree, or several at once.

    Attributes:
      tree: over the nodes of a group of devices.
      exchange: groups of devices that have the same slice of different nodes.
      sums: groups of devices that have all slices of the same nodes.
    """

    tree: Tree
    exchange: Devices
    sums: Devices

    @property
    def together(self) -> int:
        """How many neighbouring nodes the level folds at once, multiplying all pairs of them."""
        is_large = self.tree.group_size == 1 and self.tree.num_nodes > _NODES_TOGETHER
        return _NEIGHBOURS_TOGETHER if is_large else self.tree.num_nodes

    def counted(self, of_all: jax.Array) -> jax.Array:
        """Returns which nodes of this device's group are counted, [1, nodes], given all nodes' mask."""
        groups = of_all.reshape(-1, self.tree.num_nodes)
        if len(groups) == 1:  # an index of this device would make it a mask that may differ between devices
            return groups
        return groups[self.sums.index // self.sums.count][None]


def levels_of(
    tree: Tree, axes: tuple[str, ...], *, at_most: int = DEVICES_TOGETHER, last: int = LAST_TOGETHER
) -> tuple[Level, ...]:
    """Returns the levels by which devices fold a tree, those of neighbours first.

    Where JAX keeps track of what differs between devices it knows nothing of groups, and there is one level.

    Args:
      tree: over as many nodes as there are devices, or a multiple.
      axes: the devices, outer first.
      at_most: devices of a level; more where the tree has no smaller subtree.
      last: devices of the last level, at most, if that many are left.
    """
    count = num_workers(axes)
    if tracked_axes().intersection(axes) or tree.num_nodes > count:
        return (Level(tree, Devices(axes), Devices(axes)),)
    found: list[Level] = []
    below = 1
    while (left := count // below) > 1 or not found:
        size = left if left <= last and tree.group_size == 1 else tree.neighbours(left, at_most=at_most)
        is_last = size in (1, left)
        size = left if is_last else size
        exchange = np.arange(count).reshape(-1, size, below).swapaxes(1, 2)
        groups = exchange.reshape(-1, size), np.arange(count).reshape(-1, below * size)
        inside = tree if is_last else tree.inside(size)
        found.append(Level(inside, *(_devices(axes, group) for group in groups)))
        tree, below = tree.above(size), below * size
    return tuple(found)


def _devices(axes: tuple[str, ...], groups: np.ndarray) -> Devices:
    return Devices(axes, tuple(map(tuple, groups.tolist())) if len(groups) > 1 else None)


@functools.partial(jax.jit, static_argnames=("levels",))  # traced once for all buckets of the same shapes
def fold_levels(vectors: Sequence[Sequence[jax.Array]], *, levels: tuple[Level, ...], counted: jax.Array) -> Combined:
    """Folds a tree over all devices, level by level; small layers as whole vectors.

    Args:
      vectors: this device's nodes of every layer, parts of [1, k, m].
      levels: of the tree.
      counted: [nodes], which of all devices' nodes may be anything but zero.

    Returns:
      The result of every layer, parts of [1, m], and None, since there is no telemetry.

    Reference: Maleki et al., arXiv 2006.02924, AdasumRVH. Differs from the paper in: more than two neighbours at once,
    whose tree is folded over their dot products; one gather of all slices at the end, not mirrored exchanges.
    """

    masks = []
    for level in levels:
        masks.append(level.counted(counted))
        counted = counted.reshape(-1, level.tree.num_nodes).any(1)

    def small(vectors: list[Sequence[jax.Array]]) -> Combined:
        results = list(vectors)
        for level, mask in zip(levels, masks, strict=True):
            results, _ = gather_and_fold(vectors, tree=level.tree, devices=level.exchange, counted=mask)
            vectors = jax.tree.map(lambda x: x[None], results)
        return results, None

    def large(vectors: list[Sequence[jax.Array]]) -> Combined:
        arrays, places, restore = arrange(vectors, num_slices=num_workers(levels[0].exchange.axes))
        nodes = [x[0] for x in arrays]  # (k, m) each
        sizes = widths = [x.shape[1] for x in nodes]
        for level, mask in zip(levels, masks, strict=True):
            blocks = to_slices(nodes, level.exchange)  # (nodes, M) each
            widths = [slice_size(width, level.exchange.count) for width in widths]
            places = slices_of(places, level.exchange)
            goes_on = level is not levels[-1]
            whole = _fold_slices(blocks, places, level=level, counted=mask, goes_on=goes_on)  # (M of all blocks,)
            nodes = cut(whole[None], widths, axis=1)
        counts = [level.exchange.count for level in levels]
        results = from_slices(whole.astype(arrays[0].dtype), sizes, Devices(levels[0].exchange.axes), counts=counts)
        return like(vectors, restore([x[None] for x in results])), None

    return by_size(vectors, num_gradients=levels[0].together, small=small, large=large)


def _fold_slices(
    blocks: Sequence[jax.Array], places: Places, *, level: Level, counted: jax.Array, goes_on: bool
) -> jax.Array:
    """Folds this device's slices of the nodes of a level: [nodes, M] each -> [M of all blocks]."""
    tree = level.tree

    def combine(groups: list[jax.Array], tree: Tree, counted: jax.Array, *, goes_on: bool) -> jax.Array:
        """Returns Adasum of each group of nodes and each layer: [groups, nodes, M] each -> [groups, M of all]."""
        rows = Rows(groups, places)
        results, _ = combine_rows(rows, rule=adasum_rule(tree), devices=level.sums, counted=counted, goes_on=goes_on)
        return join(results, axis=1)

    if tree.adds and tree.group_size == tree.num_nodes:
        flat = [wide(block).reshape(len(block), -1) for block in blocks]
        return join([add_up(x, tree.num_nodes).reshape(block.shape[1:]) for x, block in zip(flat, blocks, strict=True)])
    while tree.num_nodes > level.together:
        missing = -tree.num_nodes % level.together
        counted = jnp.pad(counted, ((0, 0), (0, missing))).reshape(-1, level.together)
        groups = [pad_axis(x, missing, axis=0).reshape(*counted.shape, *x.shape[1:]) for x in blocks]
        blocks = [combine(groups, Tree(level.together), counted, goes_on=True)]
        tree, counted = Tree(len(counted)), counted.any(1)[None]
    return combine([x[None] for x in blocks], tree, counted, goes_on=goes_on)[0]


# ---- whole vectors ---------------------------------------------------------------------------------------------------


def gather_and_fold(
    vectors: Sequence[Sequence[jax.Array]], *, tree: Tree, devices: Devices, counted: jax.Array
) -> Combined:
    """Every device gathers all nodes and folds the vectors themselves: the definition of Adasum.

    Args:
      vectors: this device's nodes of every layer, parts of [blocks, k, m]; those of all devices, in device order, are
        the leaves of the tree.
      tree: over num_devices * k nodes.
      devices: those that have the nodes.
      counted: [blocks, num_devices * k], which of the nodes may be anything but zero.

    Returns:
      The results of every layer, parts of [blocks, m]; and how they combine the nodes, from their dot products.

    >>> two = jnp.ones((1, 2), bool)
    >>> gather_and_fold([[jnp.eye(2)[None]]], tree=Tree(2), devices=Devices(()), counted=two)[0]  # orthogonal: the sum
    [[Array([[1., 1.]], dtype=float32)]]
    """
    sizes = [[x.shape[2] for x in parts] for parts in vectors]
    block = devices.gather(join([x for parts in vectors for x in parts], axis=2))  # (devices, blocks, k, M)
    nodes = jnp.moveaxis(wide(block), 0, 1).reshape(*counted.shape, -1)  # (blocks, n, M)
    layers = cut(nodes, list(map(sum, sizes)))
    rows = Rows(layers, tuple(map(sum, sizes)))
    products = products_of(rows, devices=Devices(()), counted=counted)  # dropped if unread
    weights, _ = jax.vmap(adasum_rule(tree))(products, ())
    results = [cut(x, of_parts) for x, of_parts in zip(_fold_layers(layers, tree), sizes, strict=True)]
    return results, Weighed(products, weights, ())


def _fold_layers(layers: Sequence[jax.Array], tree: Tree) -> list[jax.Array]:
    """Folds the nodes of each layer along a tree, [blocks, n, m] -> [blocks, m]; small ones padded to one length."""
    sizes = [x.shape[2] for x in layers]
    if tree.adds:
        layers, tree = [add_up(x, tree.group_size) for x in layers], tree.above(tree.group_size)
    together = [i for i, size in enumerate(sizes) if size < _TOGETHER_ELEMENTS]
    alone = [[i] for i, size in enumerate(sizes) if size >= _TOGETHER_ELEMENTS]
    results: dict[int, jax.Array] = {}
    for batch in filter(None, [together, *alone]):
        longest = max(sizes[i] for i in batch)
        padded = jnp.stack([jnp.pad(layers[i], ((0, 0), (0, 0), (0, longest - sizes[i]))) for i in batch])
        folded = fold(jnp.vectorize(pair, signature="(m),(m)->(m)"), jnp.moveaxis(padded, 2, 0), tree)
        results |= dict(zip(batch, folded, strict=True))
    return [results[i][:, :size] for i, size in enumerate(sizes)]
