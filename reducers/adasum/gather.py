"""Adasum by gathering all gradients and folding them: the readable reference, and best for small layers."""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.adasum.fold import adasum_rule
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, fold
from reducers.collectives import Combined, Devices, cut, join
from reducers.dtypes import wide
from reducers.gram.engine import products_of
from reducers.gram.products import Weighed

# Layers of fewer elements are folded together, padded to one length; larger ones one by one.
_TOGETHER_ELEMENTS = 8192


def gather_and_fold(vectors: Sequence[jax.Array], *, tree: Tree, devices: Devices, counted: jax.Array) -> Combined:
    """Every device gathers all nodes and folds the vectors themselves: the definition of Adasum.

    Args:
      vectors: this device's nodes of every layer, [blocks, k, m]; those of all devices, in device order, are the leaves
        of the tree.
      tree: over num_devices * k nodes.
      devices: those that have the nodes.
      counted: [blocks, num_devices * k], which of the nodes may be anything but zero.

    Returns:
      For every layer the results, [blocks, m]; and how they are combinations of the nodes, as their dot products tell.

    >>> two = jnp.ones((1, 2), bool)
    >>> gather_and_fold([jnp.eye(2)[None]], tree=Tree(2), devices=Devices(()), counted=two)[0]  # orthogonal: the sum
    [Array([[1., 1.]], dtype=float32)]
    """
    block = devices.gather(join(vectors, axis=2))  # (devices, blocks, k, M)
    nodes = jnp.moveaxis(wide(block), 0, 1).reshape(*counted.shape, -1)  # (blocks, n, M)
    layers = cut(nodes, [x.shape[2] for x in vectors])
    products = products_of(lambda: layers, counted=counted)  # dropped if unread
    weights, _ = jax.vmap(adasum_rule(tree))(products, ())
    return _fold_layers(layers, tree), Weighed(products, weights, ())


def _fold_layers(layers: Sequence[jax.Array], tree: Tree) -> list[jax.Array]:
    """Folds the nodes of each layer along a tree, [blocks, n, m] -> [blocks, m]; small ones padded to one length."""
    sizes = [x.shape[2] for x in layers]
    together = [i for i, size in enumerate(sizes) if size < _TOGETHER_ELEMENTS]
    alone = [[i] for i, size in enumerate(sizes) if size >= _TOGETHER_ELEMENTS]
    results: dict[int, jax.Array] = {}
    for batch in filter(None, [together, *alone]):
        longest = max(sizes[i] for i in batch)
        padded = jnp.stack([jnp.pad(layers[i], ((0, 0), (0, 0), (0, longest - sizes[i]))) for i in batch])
        folded = fold(jnp.vectorize(pair, signature="(m),(m)->(m)"), jnp.moveaxis(padded, 2, 0), tree)
        results |= dict(zip(batch, folded, strict=True))
    return [results[i][:, :size] for i, size in enumerate(sizes)]
