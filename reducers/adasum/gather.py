"""Adasum by gathering all gradients and folding them: the readable reference, and best for small layers."""

import functools
from collections.abc import Callable, Sequence

import jax
from jax import numpy as jnp

from reducers.adasum.layers import wide
from reducers.adasum.pairs import Tree, fold, pair, unit
from reducers.adasum.telemetry import Products
from reducers.backend import sum_neighbours
from reducers.collectives import cut, gather_workers, join

# Layers of fewer elements are folded together, padded to one length; larger ones one by one, uncopied.
_TOGETHER_ELEMENTS = 8192


def gather_and_fold(
    vectors: Sequence[jax.Array], *, axes: tuple[str, ...], tree: Tree
) -> list[tuple[jax.Array, Callable[[], Products]]]:
    """Every device gathers all nodes and folds the vectors themselves: the definition of Adasum.

    Args:
      vectors: this device's nodes of every layer, [k, m]; those of all devices, in device order, are the leaves of the
        tree.
      axes: the devices, outer first; empty if this device has all nodes.
      tree: over num_devices * k nodes.

    Returns:
      For every layer the result, [m], and a function that returns its products.
    """
    block = join(vectors, axis=1)  # (k, M)
    block = wide(gather_workers(block, axes).reshape(-1, block.shape[1]))  # (n, M)
    if tree.within == "sum":
        block = sum_neighbours(block, tree.group_size)
        tree = tree.after_groups()
    stacks = cut(block, [x.shape[1] for x in vectors])  # (n, m) each
    return [(v, functools.partial(_products, x, v)) for x, v in zip(stacks, _fold_all(stacks, tree), strict=True)]


def _fold_all(stacks: list[jax.Array], tree: Tree) -> list[jax.Array]:
    small = {i: stack for i, stack in enumerate(stacks) if stack.shape[1] < _TOGETHER_ELEMENTS}
    results = {i: fold(pair, stack, tree) for i, stack in enumerate(stacks) if i not in small}
    if small:
        longest = max(stack.shape[1] for stack in small.values())
        padded = [jnp.pad(stack, ((0, 0), (0, longest - stack.shape[1]))) for stack in small.values()]
        together = fold(jax.vmap(pair), jnp.stack(padded, axis=1), tree)
        results |= {i: vector[: stack.shape[1]] for (i, stack), vector in zip(small.items(), together, strict=True)}
    return [results[i] for i in range(len(stacks))]


def _products(nodes: jax.Array, result: jax.Array) -> Products:
    scales, units = jax.vmap(unit)(nodes)
    scale, direction = unit(result)
    gram = jnp.matmul(units, units.T, precision="highest")
    return Products(scales, gram, scale * jnp.linalg.norm(direction))
