"""Adasum by gathering all gradients and folding them: the readable reference, and best for small layers."""

from collections.abc import Sequence

import jax

from reducers.adasum.fold import weigher
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, fold
from reducers.gram.engine import Combined, combine_rows, each, gather_rows


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
    rows = gather_rows(vectors, axes)
    folded = [fold(jax.vmap(pair), nodes.swapaxes(0, 1), tree) for nodes in rows]
    _, weighed = combine_rows(rows, (), weigh=weigher(tree), present=present)  # XLA drops it where nobody reads it
    return each(folded, weighed)
