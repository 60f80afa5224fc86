"""Adasum without a tree of messages: the tree is folded in the space of coefficients.

Every result of the tree is a linear combination of the workers' gradients, and every dot product in it follows from
their Gram matrix. So each device takes a slice of every gradient, one small all-reduce sums the slices' Gram matrices,
every device folds the same W x W numbers, and the weighted sum of the slices is gathered: the bytes of an all-reduce,
one round instead of log2(W), for any number of workers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.axes import gather_workers
from reducers.pairs import fold, half_ratio, unit

Group = tuple[int, ...]  # indices of leaves that are one vector

# Leaves are exchanged together up to so many bytes; larger ones go alone, uncopied.
_BUCKET_BYTES = 1 << 20
# A node whose squared norm is below so many ulps of the terms it is summed from is rounding noise: the zero vector.
_NOISE_ULPS = 8


class Node(NamedTuple):
    """A vector in the span of the workers' unit gradients: scale * sum_i row[i] unit_i, largest |row[i]| = 1.

    Scale and row apart, because a row times its scale underflows, and the direction of a tiny gradient still matters:
    it takes away the projection of a huge one.
    """

    scale: jax.Array  # []
    row: jax.Array  # [W]


def pair_nodes(a: Node, b: Node, gram: jax.Array) -> Node:
    """``pair`` in coefficient space: every dot product follows from the Gram matrix of the unit gradients.

    Args:
      a: one vector.
      b: another.
      gram: [W, W], dot products of the unit gradients.
    """
    ga, gb = gram @ a.row, gram @ b.row
    aa, bb, ab = a.row @ ga, b.row @ gb, a.row @ gb
    aa, bb = _denoised(aa, a.row, gram), _denoised(bb, b.row, gram)
    alpha, beta = a.scale - b.scale * half_ratio(ab, aa), b.scale - a.scale * half_ratio(ab, bb)
    scale, (alpha, beta) = unit(jnp.stack([alpha, beta]))
    size, row = unit(alpha * a.row + beta * b.row)
    return Node(scale * size, row)


def _denoised(square: jax.Array, row: jax.Array, gram: jax.Array) -> jax.Array:
    """A squared norm read off the Gram matrix, or 0 where it is the rounding noise of a vector that cancels out.

    The direction of such a vector is noise too, and Adasum, discontinuous at 0, would take its projection away from
    whatever it meets; as a zero vector it is only added. So of two gradients that cancel to a residue r (relative to
    them), the Gram form knows the direction to about eps / r^2, the vectors themselves to eps / r.
    """
    terms = jnp.abs(row) @ jnp.abs(gram) @ jnp.abs(row)
    return jnp.where(square < _NOISE_ULPS * jnp.finfo(gram.dtype).eps * terms, 0, square)


def fold_coefficients(leaves: list[jax.Array], groups: list[Group], *, axes: Sequence[str]) -> dict[int, jax.Array]:
    """Exchanges slices, folds in coefficient space, and gathers the weighted sums of the slices."""
    if not groups:
        return {}
    num_slices = lax.axis_size(axes[0])
    # Own scale of each group; where it is 0 the gradient is too.
    scale = jnp.stack([jnp.stack([jnp.max(jnp.abs(leaves[i]), initial=0.0) for i in g]).max() for g in groups])  # (G,)
    scales = gather_workers(scale, axes)  # (W, G)
    divisor = jnp.where(scale == 0, 1, scale)

    rows: dict[int, jax.Array] = {}  # (W, slice of the leaf)
    buckets = _buckets([i for group in groups for i in group], leaves)
    of_group = {i: g for g, group in enumerate(groups) for i in group}
    for bucket in buckets:
        parts = [_slices(leaves[i] / divisor[of_group[i]], num_slices) for i in bucket]
        block = jnp.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]  # (num_slices, m)
        for axis in reversed(axes[1:]):
            block = lax.all_gather(block, axis)
        block = block.reshape(-1, *block.shape[-2:])  # (inner workers, num_slices, m)
        block = lax.all_to_all(block, axes[0], split_axis=1, concat_axis=0)  # (outer workers, inner workers, m)
        block = block.reshape(-1, block.shape[-1])  # (W, m)
        ends = np.cumsum([part.shape[1] for part in parts])
        rows |= {i: block[:, e - p.shape[1] : e] for i, p, e in zip(bucket, parts, ends, strict=True)}

    gram = jnp.stack([sum(jnp.matmul(rows[i], rows[i].T, precision="highest") for i in group) for group in groups])
    gram = lax.psum(gram, axes[0])  # (G, W, W)

    def fold_group(scales, gram):
        leaves_of_tree = Node(scales, jnp.eye(len(scales), dtype=gram.dtype))
        return fold(lambda a, b: pair_nodes(a, b, gram), leaves_of_tree, num_nodes=len(scales))

    root = jax.vmap(fold_group)(scales.T, gram)  # (G,), (G, W)

    reduced = {}
    for bucket in buckets:
        sums = [
            root.scale[of_group[i]] * jnp.matmul(root.row[of_group[i]], rows[i], precision="highest") for i in bucket
        ]
        whole = lax.all_gather(jnp.concatenate(sums), axes[0])  # (num_slices, m)
        ends = np.cumsum([part.size for part in sums])
        for i, part, end in zip(bucket, sums, ends, strict=True):
            reduced[i] = whole[:, end - part.size : end].reshape(-1)[: leaves[i].size]
    return reduced


def _buckets(indices: list[int], leaves: list[jax.Array]) -> list[list[int]]:
    """Puts leaves together up to ``_BUCKET_BYTES``, so that the number of collectives follows the bytes."""
    buckets: list[list[int]] = []
    free = 0
    for i in sorted(indices, key=lambda i: leaves[i].nbytes):
        if not buckets or leaves[i].nbytes > free or leaves[i].dtype != leaves[buckets[-1][0]].dtype:
            buckets.append([])
            free = _BUCKET_BYTES
        buckets[-1].append(i)
        free -= leaves[i].nbytes
    return buckets


def _slices(leaf: jax.Array, num_slices: int) -> jax.Array:
    flat = leaf.ravel()
    return jnp.pad(flat, (0, -flat.size % num_slices)).reshape(num_slices, -1)
