"""Adasum as the paper runs it, AdasumRVH: pairs of devices exchange halves, then quarters, ... of their vectors."""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.tree import Tree
from reducers.collectives import cut, gather_workers, join, num_workers
from reducers.gram.products import Products
from reducers.gram.scales import nonzero, unit, wide


def halving(vectors: Sequence[jax.Array], *, axes: tuple[str, ...]) -> list[tuple[jax.Array, None]]:
    """Vector halving, distance doubling: each of a pair keeps half of both vectors; in the end all gather the slices.

    A layer is then spread over the devices whose gradients it holds, so its dot products are summed over those.

    Args:
      vectors: this device's one node of every layer, [1, m].
      axes: the devices, outer first; their number is a power of two.

    Returns:
      For every layer the result, [m], and None, since this algorithm measures no telemetry.

    Reference: Maleki et al., arXiv 2006.02924, AdasumRVH. Differs from the paper in: slices are gathered by one
    all-gather, not by the mirrored exchanges; dot products carry scales of their own, so that none leaves its range.
    """
    num_devices, index = num_workers(axes), lax.axis_index(axes)
    padded = [jnp.pad(wide(nodes[0]), (0, -nodes.size % num_devices)) for nodes in vectors]
    held = [vector.reshape(num_devices, -1) for vector in padded]  # chunks; those kept end as chunk ``index``
    widths = [chunks.shape[1] for chunks in held]
    distance = 1
    while distance < num_devices:
        side = (index // distance) % 2  # of the pair, in the order of the tree
        split = [chunks.reshape(-1, 2, chunks.shape[1]) for chunks in held]
        kept, sent = (
            [lax.dynamic_index_in_dim(halves, which, 1, keepdims=False) for halves in split]
            for which in (side, 1 - side)
        )
        received = cut(_from_partner(join(sent, axis=1), axes, distance), widths)  # one message for all layers
        held = _combine_spread(kept, received, order=side ^ jnp.arange(2), axes=axes, distance=distance)
        distance *= 2
    results = cut(gather_workers(join([chunk[0] for chunk in held]), axes), widths)  # (num_devices, width) each
    return [(result.reshape(-1)[: nodes.size], None) for result, nodes in zip(results, vectors, strict=True)]


def _combine_spread(kept, received, *, order, axes: tuple[str, ...], distance: int) -> list[jax.Array]:
    """Returns Adasum of pairs that are spread over 2 * distance devices, all of which find the same weights."""
    parts = []  # [3, 2] of each layer: dot products, and scales
    for own, other in zip(kept, received, strict=True):
        (s_own, u), (s_other, v) = unit(own), unit(other)
        dot = jnp.vdot(u, v)
        numbers = jnp.stack([jnp.vdot(u, u), dot, dot, jnp.vdot(v, v), s_own, s_other]).reshape(3, 2)
        parts.append(numbers[jnp.append(order, 2)][:, order])
    known = jnp.stack(parts)
    join_parts = jax.vmap(lambda x: Products.joined(Products(x[:, :2], x[:, 2], jnp.ones(x[:, 2].shape, bool))))
    step = 1
    while step <= distance:
        products = join_parts(jnp.stack([known, _from_partner(known, axes, step)], axis=1))
        known = jnp.concatenate([products.gram, products.scales[:, None]], axis=1)
        step *= 2
    weights, _ = weigher(Tree(2))(products, ())
    shares = jnp.stack([weights, nonzero(products.scales)], axis=1)[:, :, order]  # own first
    return [
        w_own * (own / s_own) + w_other * (other / s_other)
        for own, other, ((w_own, w_other), (s_own, s_other)) in zip(kept, received, shares, strict=True)
    ]


def _from_partner(x: jax.Array, axes: tuple[str, ...], distance: int) -> jax.Array:
    """Returns the x of the device at index XOR distance."""
    for axis in reversed(axes):
        size = lax.axis_size(axis)
        if distance < size:
            return lax.ppermute(x, axis, [(i, i ^ distance) for i in range(size)])
        distance //= size
    raise AssertionError("distance is less than the number of devices")
