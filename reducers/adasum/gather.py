"""Adasum by gathering all gradients and folding them: the readable reference, and best for small layers."""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.pair import pair
from reducers.adasum.tree import Tree, fold
from reducers.backend import sum_neighbours
from reducers.collectives import cut
from reducers.gram.engine import Weighed, combine_rows, gathered

# Layers of fewer elements are folded together, padded to one length; larger ones one by one, uncopied.
_TOGETHER_ELEMENTS = 8192


def gather_and_fold(
    vectors: Sequence[jax.Array], *, axes: tuple[str, ...], tree: Tree, present: jax.Array, has_telemetry: bool
) -> list[tuple[jax.Array, Weighed | None]]:
    """Every device gathers all nodes and folds the vectors themselves: the definition of Adasum.

    Args:
      vectors: this device's nodes of every layer, [k, m]; those of all devices, in device order, are the leaves of the
        tree.
      axes: the devices, outer first; empty if this device has all nodes.
      tree: over num_devices * k nodes.
      present: [num_devices * k], which of the nodes may be anything but zero.
      has_telemetry: whether to find the weights, too, which then follow from the nodes' dot products.

    Returns:
      For every layer the result, [m], and how it is a combination of the nodes, or None.
    """
    stacks = cut(gathered(vectors, axes), [x.shape[1] for x in vectors])  # (n, m) each
    weighed: list[Weighed | None] = [None] * len(stacks)
    if has_telemetry:
        found = combine_rows([stack[None] for stack in stacks], (), weigh=weigher(tree), present=present)[1]
        weighed = [found.of(i) for i in range(len(stacks))]
    if tree.within == "sum":
        stacks = [sum_neighbours(stack, tree.group_size) for stack in stacks]
        tree = tree.after_groups()
    return list(zip(_fold_all(stacks, tree), weighed, strict=True))


def _fold_all(stacks: list[jax.Array], tree: Tree) -> list[jax.Array]:
    small = {i: stack for i, stack in enumerate(stacks) if stack.shape[1] < _TOGETHER_ELEMENTS}
    results = {i: fold(pair, stack, tree) for i, stack in enumerate(stacks) if i not in small}
    if small:
        longest = max(stack.shape[1] for stack in small.values())
        padded = [jnp.pad(stack, ((0, 0), (0, longest - stack.shape[1]))) for stack in small.values()]
        together = fold(jax.vmap(pair), jnp.stack(padded, axis=1), tree)
        results |= {i: vector[: stack.shape[1]] for (i, stack), vector in zip(small.items(), together, strict=True)}
    return [results[i] for i in range(len(stacks))]
