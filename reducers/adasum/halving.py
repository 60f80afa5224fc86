"""Adasum as the paper runs it, AdasumRVH: pairs of devices exchange halves, then quarters, ... of their vectors."""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.pair import coefficients
from reducers.collectives import cut, gather_workers, join, num_workers
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
    all-gather, not by the mirrored exchanges; a partial sum carries its own scale, so that none leaves its range.
    """
    num_devices = num_workers(axes)
    index = lax.axis_index(axes)
    padded = [jnp.pad(wide(nodes[0]), (0, -nodes.size % num_devices)) for nodes in vectors]
    held = [vector.reshape(num_devices, -1) for vector in padded]  # chunks; those kept end as chunk ``index``
    distance = 1
    while distance < num_devices:
        bit = (index // distance) % 2
        split = [chunks.reshape(-1, 2, chunks.shape[1]) for chunks in held]
        kept = [lax.dynamic_index_in_dim(pairs, bit, 1, keepdims=False) for pairs in split]
        sent = [lax.dynamic_index_in_dim(pairs, 1 - bit, 1, keepdims=False) for pairs in split]
        # One message for all layers.
        received = _from_partner(join(sent, axis=1), axes, distance)
        theirs = cut(received, [s.shape[1] for s in sent])
        held = _combine_spread(kept, theirs, bit=bit, axes=axes, distance=distance)
        distance *= 2
    whole = gather_workers(join([chunk[0] for chunk in held]), axes)  # (num_devices, M)
    results = cut(whole, [chunk.shape[1] for chunk in held])
    return [(result.reshape(-1)[: nodes.size], None) for result, nodes in zip(results, vectors, strict=True)]


def _combine_spread(kept, theirs, *, bit, axes: tuple[str, ...], distance: int) -> list[jax.Array]:
    """Returns ``pair`` of vectors spread over 2 * distance devices, all of which find the same coefficients."""
    parts = []
    for own, other in zip(kept, theirs, strict=True):
        (s_own, u), (s_other, v) = unit(own), unit(other)
        dots = [jnp.vdot(u, v), jnp.vdot(u, u), jnp.vdot(v, v)]
        # In the order of the tree, not of who computes it.
        sides = [jnp.stack([s_own, s_other]), jnp.stack(dots[1:])]
        ordered = [jnp.where(bit == 0, side, side[::-1]) for side in sides]
        parts.append(jnp.concatenate([*ordered, dots[0][None]]))
    partial = jnp.stack(parts)  # (layers, 5): scales of left and right, their squares, their dot product
    step = 1
    while step <= distance:
        partial = _add_partial(partial, _from_partner(partial, axes, step))
        step *= 2
    combined = []
    for own, other, (s_a, s_b, aa, bb, ab) in zip(kept, theirs, partial, strict=True):
        alpha, beta = coefficients(s_a, s_b, uv=ab, uu=aa, vv=bb)
        left = (alpha, nonzero(s_a)), (beta, nonzero(s_b))
        (c_own, s_own), (c_other, s_other) = (
            [jnp.where(bit == 0, mine, yours) for mine, yours in zip(*sides, strict=True)]
            for sides in (left, left[::-1])
        )
        combined.append(c_own * (own / s_own) + c_other * (other / s_other))
    return combined


def _add_partial(x: jax.Array, y: jax.Array) -> jax.Array:
    """Adds dot products of unit vectors whose scales differ; the same whichever comes first."""
    scales = jnp.maximum(x[:, :2], y[:, :2])
    total = jnp.zeros_like(x[:, 2:])
    for part in (x, y):
        share = part[:, :2] / nonzero(scales)
        total += part[:, 2:] * jnp.stack([share[:, 0] ** 2, share[:, 1] ** 2, share[:, 0] * share[:, 1]], axis=1)
    return jnp.concatenate([scales, total], axis=1)


def _from_partner(x: jax.Array, axes: tuple[str, ...], distance: int) -> jax.Array:
    """Returns the x of the device at index XOR distance."""
    for axis in reversed(axes):
        size = lax.axis_size(axis)
        if distance < size:
            return lax.ppermute(x, axis, [(i, i ^ distance) for i in range(size)])
        distance //= size
    raise AssertionError("distance is less than the number of devices")
