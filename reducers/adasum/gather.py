"""Adasum by gathering all gradients and folding them: the readable reference, and best for small layers."""

import functools
from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.adasum.fold import adasum_rule
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, fold
from reducers.collectives import Combined, gather_workers, join
from reducers.gram.engine import Weighed, alike, products_of
from reducers.gram.scales import wide


def gather_and_fold(vectors: Sequence[jax.Array], *, tree: Tree, axes: tuple[str, ...], present: jax.Array) -> Combined:
    """Every device gathers all nodes and folds the vectors themselves: the definition of Adasum.

    Args:
      vectors: this device's nodes of every layer, [blocks, k, m]; those of all devices, in device order, are the leaves
        of the tree.
      tree: over num_devices * k nodes.
      axes: the devices, outer first; empty if this device has all nodes.
      present: [blocks, num_devices * k], which of the nodes may be anything but zero.

    Returns:
      For every layer the results, [blocks, m]; and how they are combinations of the nodes, as their dot products tell.

    >>> two = jnp.ones((1, 2), bool)
    >>> gather_and_fold([jnp.eye(2)[None]], tree=Tree(2), axes=(), present=two)[0]  # orthogonal: the sum
    [Array([[1., 1.]], dtype=float32)]
    """
    block = gather_workers(join(vectors, axis=2), axes)  # (devices, blocks, k, M)
    nodes = jnp.moveaxis(wide(block), 0, 1).reshape(*present.shape, -1)  # (blocks, n, M)
    rows = alike(nodes, [x.shape[2] for x in vectors])  # (layers, blocks, n, m) each
    folded = [jnp.vectorize(functools.partial(fold, pair, tree=tree), signature="(n,m)->(m)")(r) for r in rows]
    products = products_of(lambda: [r.reshape(-1, *r.shape[2:]) for r in rows], present=present)  # dropped if unread
    weights, _ = jax.vmap(adasum_rule(tree))(products, ())
    return [result for of_layers in folded for result in of_layers], Weighed(products, weights, ())
