"""Adasum as the paper runs it, AdasumRVH: pairs of devices exchange halves, then quarters, ... of their vectors."""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.fold import adasum_rule
from reducers.adasum.tree import Tree
from reducers.collectives import Combined, cut, gather_workers, join, num_workers
from reducers.dtypes import wide
from reducers.gram.engine import products_of, weighted_sums
from reducers.gram.products import Products


def halving(vectors: Sequence[jax.Array], *, tree: Tree, axes: tuple[str, ...], counted: jax.Array) -> Combined:
    """Vector halving, distance doubling: each of a pair keeps half of both vectors; in the end all gather the slices.

    A layer is then spread over the devices whose gradients it holds, so its dot products are summed over those.

    Args:
      vectors: this device's one node of every layer, [1, 1, m].
      tree: over the devices, whose number is a power of two, without groups.
      axes: the devices, outer first.
      counted: not needed, since nodes that are absent are zero.

    Returns:
      For every layer the result, [1, m], and None, since this algorithm measures no telemetry.

    Raises:
      ValueError: for another tree.

    Reference: Maleki et al., arXiv 2006.02924, AdasumRVH. Differs from the paper in: slices are gathered by one
    all-gather, not by the mirrored exchanges; dot products carry scales of their own, so that none leaves its range.
    """
    del counted
    num_devices, index = num_workers(axes), lax.axis_index(axes)
    if tree.num_nodes > num_devices or tree.group_size > 1 or num_devices & (num_devices - 1):
        groups = f" in groups of {tree.group_size}" if tree.group_size > 1 else ""
        raise ValueError(
            f"algorithm='halving': must be 'gram' or 'gather' for {num_devices} devices that hold "
            f"{tree.num_nodes // num_devices} subtrees each{groups}; it takes a power of two of devices, and of lanes"
        )
    padded = [jnp.pad(wide(nodes.ravel()), (0, -nodes.size % num_devices)) for nodes in vectors]
    held = [vector.reshape(num_devices, -1) for vector in padded]  # chunks; those kept end as chunk ``index``
    widths = [chunks.shape[1] for chunks in held]
    distance = 1
    while distance < num_devices:
        side = (index // distance) % 2  # of the pair, in the order of the tree
        halves = [jnp.moveaxis(chunks.reshape(-1, 2, chunks.shape[1]), 1, 0) for chunks in held]
        sent = join([lax.dynamic_index_in_dim(both, 1 - side, keepdims=False) for both in halves], axis=1)
        received = cut(_from_partner(sent, axes, distance), widths)  # one message for all layers
        kept = [lax.dynamic_index_in_dim(both, side, keepdims=False) for both in halves]
        rows = [jnp.stack(pair).reshape(1, 2, -1) for pair in zip(kept, received, strict=True)]
        sums = _combine_spread(rows, order=side ^ jnp.arange(2, dtype=side.dtype), axes=axes, distance=distance)
        held = [x.reshape(-1, width) for x, width in zip(sums, widths, strict=True)]
        distance *= 2
    results = cut(gather_workers(join([chunk[0] for chunk in held]), axes), widths)  # (num_devices, width) each
    return [result.reshape(1, -1)[:, : nodes.size] for result, nodes in zip(results, vectors, strict=True)], None


def _combine_spread(
    rows: list[jax.Array], *, order: jax.Array, axes: tuple[str, ...], distance: int
) -> list[jax.Array]:
    """Returns Adasum of pairs that are spread over 2 * distance devices, all of which find the same weights.

    Args:
      rows: this device's slices, [1, 2, m] each; its own node of each pair comes first.
      order: [2], of the pair in the tree; its own inverse.
      axes: the devices, outer first.
      distance: between the devices of a pair.
    """
    gram, scales, counted = products_of(lambda: rows, counted=jnp.ones((1, 2), bool))
    numbers = jnp.concatenate([gram[:, order], scales[:, None]], axis=1)[:, :, order]  # (layers, 3, 2), in tree order
    step = 1
    while step <= distance:
        parts = jnp.stack([numbers, _from_partner(numbers, axes, step)])
        gram, scales, _ = Products.joined(Products(parts[:, :, :2], parts[:, :, 2], counted[None]))
        numbers = jnp.concatenate([gram, scales[:, None]], axis=1)
        step *= 2
    products = Products(gram[:, order][:, :, order], scales[:, order], counted)
    weights, _ = jax.vmap(adasum_rule(Tree(2)))(products, ())
    return weighted_sums(lambda: rows, weights, products)


def _from_partner(x: jax.Array, axes: tuple[str, ...], distance: int) -> jax.Array:
    """Returns the x of the device at index XOR distance."""
    for axis in reversed(axes):
        size = lax.axis_size(axis)
        if distance < size:
            return lax.ppermute(x, axis, [(i, i ^ distance) for i in range(size)])
        distance //= size
    raise AssertionError("distance is less than the number of devices")
