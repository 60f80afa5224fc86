"""Adasum by gathering all gradients and folding them: the readable reference, and best for small layers."""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, fold
from reducers.gram.engine import Combined, combine_rows, gather_rows

# Layers of fewer elements are folded together, padded to one length; larger ones one by one.
_TOGETHER_ELEMENTS = 8192


def gather_and_fold(vectors: Sequence[jax.Array], *, axes: tuple[str, ...], tree: Tree, present: jax.Array) -> Combined:
    """Every device gathers all nodes and folds the vectors themselves: the definition of Adasum.

    Args:
      vectors: this device's nodes of every layer, [k, m]; those of all devices, in device order, are the leaves of the
        tree.
      axes: the devices, outer first; empty if this device has all nodes.
      tree: over num_devices * k nodes.
      present: [num_devices * k], which of the nodes may be anything but zero.

    Returns:
      For every layer the result, [m], and how it is a combination of the nodes, as their dot products tell it.
    """
    nodes = gather_rows(vectors, axes)  # (n, m) each
    _, weighed = combine_rows([x[None] for x in nodes], (), weigh=weigher(tree), present=present)  # dropped if unread
    return [(result, weighed.of(i)) for i, result in enumerate(fold_vectors(nodes, tree))]


def fold_vectors(layers: Sequence[jax.Array], tree: Tree) -> list[jax.Array]:
    """Folds the nodes of each layer along a tree, [..., n, m] -> [..., m].

    >>> fold_vectors([jnp.eye(2), jnp.ones((2, 1))], Tree(2))  # orthogonal: the sum; parallel: the mean
    [Array([1., 1.], dtype=float32), Array([1.], dtype=float32)]
    """
    sizes = [x.shape[-1] for x in layers]
    together = [i for i, size in enumerate(sizes) if size < _TOGETHER_ELEMENTS]
    alone = [[i] for i, size in enumerate(sizes) if size >= _TOGETHER_ELEMENTS]
    results: dict[int, jax.Array] = {}
    for batch in [together, *alone] if together else alone:
        longest = max(sizes[i] for i in batch)
        padding = [(0, 0)] * (layers[0].ndim - 1)
        padded = jnp.stack([jnp.pad(layers[i], [*padding, (0, longest - sizes[i])]) for i in batch])
        folded = fold(jnp.vectorize(pair, signature="(m),(m)->(m)"), jnp.moveaxis(padded, -2, 0), tree)
        results |= {i: x[..., : sizes[i]] for i, x in zip(batch, folded, strict=True)}
    return [results[i] for i in range(len(layers))]
