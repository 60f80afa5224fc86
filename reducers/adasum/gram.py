"""Adasum without a tree of messages: the tree is folded in the space of coefficients.

Every result of the tree is a linear combination of its nodes, and every dot product in it follows from their Gram
matrix. So each device takes a slice of every node, one small all-reduce sums the slices' Gram matrices, every device
folds the same n x n numbers, and the weighted sum of the slices is gathered: the bytes of an all-reduce, one round
instead of log2(n), for any number of nodes.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.adasum.layers import wide
from reducers.adasum.pairs import Tree, coefficients, nonzero, power_of_two
from reducers.adasum.telemetry import Products
from reducers.backend import dot_products, sum_neighbours
from reducers.collectives import cut, gather_workers, join, num_workers

# Layers of fewer elements, and of fewer elements a node, are folded as they are.
_MIN_ELEMENTS, _MIN_ELEMENTS_PER_NODE = 64, 8
# A node whose squared norm is below so many ulps of the terms it is summed from is rounding noise: the zero vector.
_NOISE_ULPS = 8
# Squared norms between these leave float32 room enough for all dot products of the vectors as they are.
_PLAIN_SQUARES = (1e-24, 1e24)


class Spanned(NamedTuple):
    """Layers' results as combinations of the leaves of their tree: sum_i scale * weights[i] * (leaf i / scales[i])."""

    scale: jax.Array  # [layers], of the result
    square: jax.Array  # [layers], its squared norm over scale**2
    weights: jax.Array  # [layers, n]
    scales: jax.Array  # [layers, n], of the leaves; a zero leaf's is 0
    gram: jax.Array  # [layers, n, n], dot products of the leaves over their scales


def too_small(num_elements: int, *, num_nodes: int) -> bool:
    """Returns whether a layer is too small for a Gram matrix, which then loses digits: 7e-6 for 8 workers in 2 D."""
    return num_elements < max(_MIN_ELEMENTS, _MIN_ELEMENTS_PER_NODE * num_nodes)


def fold_slices(
    vectors: Sequence[jax.Array], *, axes: tuple[str, ...], tree: Tree, present: jax.Array | None = None
) -> list[tuple[jax.Array, Callable[[], Products]]]:
    """Exchanges slices, folds in coefficient space, and gathers the weighted sums of the slices.

    Args:
      vectors: this device's nodes of every layer, [k, m]; those of all devices, in device order, are the leaves of the
        tree.
      axes: the devices, outer first; empty if this device has all nodes.
      tree: over num_devices * k nodes.
      present: [num_devices * k], which of the nodes may be anything but zero; None for all.

    Returns:
      For every layer the result, [m], of the dtype that came in, and a function that returns its products.
    """
    present = None if present is None else present[None]
    if not axes:
        sums, spanned = fold_rows([wide(nodes)[None] for nodes in vectors], tree=tree, present=present)
        return [(result[0], functools.partial(_products, spanned, i)) for i, result in enumerate(sums)]
    parts = [_slices(nodes, num_workers(axes)) for nodes in vectors]  # (k, num_devices, m / num_devices) each
    block = join(parts, axis=2)
    block = lax.all_to_all(block, axes, split_axis=1, concat_axis=0)  # (num_devices, k, M)
    rows = _alike(wide(block.reshape(-1, block.shape[-1])), [part.shape[2] for part in parts])
    sums, spanned = fold_rows(rows, tree=tree, axes=axes, present=present)
    whole = join([s.ravel() for s in sums]).astype(block.dtype)  # (M,)
    whole = gather_workers(whole, axes)  # (num_devices, M)
    padded = cut(whole, [part.shape[2] for part in parts])
    results = [x.reshape(-1)[: nodes.shape[1]] for x, nodes in zip(padded, vectors, strict=True)]
    return [(result, functools.partial(_products, spanned, i)) for i, result in enumerate(results)]


@functools.partial(jax.jit, static_argnames=("tree", "axes"))  # layers of one size are traced once
def fold_rows(
    rows: Sequence[jax.Array], *, tree: Tree, axes: tuple[str, ...] = (), present: jax.Array | None = None
) -> tuple[list[jax.Array], Spanned]:
    """Folds layers of which this device has all nodes, or a slice of each node.

    Args:
      rows: [layers, n, m] each.
      tree: over n nodes.
      axes: the devices that have the other slices.
      present: [layers or 1, n], which of the nodes may be anything but zero; None for all.

    Returns:
      The weighted sums of the rows, [layers, m] each, and how all layers are spanned.
    """
    if tree.within == "sum" and tree.group_size > 1:
        rows = [sum_neighbours(r, tree.group_size) for r in rows]
        present = None if present is None else present.reshape(len(present), -1, tree.group_size).any(2)
        tree = tree.after_groups()
    # The vectors are multiplied as they are, which in float32 loses nothing as long as their norms are not extreme.
    gram = lax.psum(_gram(rows), axes)  # (layers, n, n)
    in_range = can_multiply(gram, present)
    scales, gram = lax.cond(in_range, _normalised, lambda rows, _: _rescaled(rows, axes), rows, gram)
    spanned = fold_coefficients(scales, gram, tree=tree)
    return lax.cond(in_range, _sums, _sums_rescaled, rows, spanned), spanned


def fold_coefficients(scales: jax.Array, gram: jax.Array, *, tree: Tree) -> Spanned:
    """Folds the trees of layers, given the dot products of their leaves alone.

    A node is a scale times a unit, whose dot products with those of other nodes make the Gram matrix of each level.
    Scales are kept apart, because dot products with them would leave the range of float32, and the direction of a tiny
    gradient still matters: it takes away the projection of a huge one.

    Args:
      scales: [layers, n], of the leaves.
      gram: [layers, n, n], dot products of the leaves over their scales.
      tree: over n leaves, in groups or not.
    """
    places = tree.places()
    num_layers, num_nodes = len(scales), len(places)
    scale, square = scales, gram
    if num_nodes != tree.num_nodes or tree.group_size > 1:
        scale = jnp.pad(scales, ((0, 0), (0, 1)))[:, places]
        square = jnp.pad(gram, ((0, 0), (0, 1), (0, 1)))[:, places[:, None], places]
    noise = jnp.sqrt(_NOISE_ULPS * jnp.finfo(gram.dtype).eps)
    weights = jnp.ones_like(scale)
    terms = jnp.sqrt(jnp.diagonal(square, axis1=1, axis2=2))  # the length that a node would have if nothing cancelled
    while num_nodes > 1:
        num_nodes //= 2
        left, right = 2 * np.arange(num_nodes), 2 * np.arange(num_nodes) + 1
        uu, vv, uv = square[:, left, left], square[:, right, right], square[:, left, right]
        # A squared norm that is the rounding noise of a vector that cancels out is that of the zero vector: the
        # direction of such a vector is noise too, and Adasum, discontinuous at 0, would take its projection away from
        # whatever it meets; as zero it is only added. So of two gradients that cancel to a residue r (relative to
        # them), the Gram form knows the direction to about eps / r^2, the vectors themselves to eps / r.
        uu = jnp.where(uu < (noise * terms[:, left]) ** 2, 0, uu)
        vv = jnp.where(vv < (noise * terms[:, right]) ** 2, 0, vv)
        alpha, beta = coefficients(scale[:, left], scale[:, right], uv=uv, uu=uu, vv=vv)
        scale = power_of_two(jnp.maximum(jnp.abs(alpha), jnp.abs(beta)))  # (layers, num_nodes)
        shares = jnp.stack([alpha, beta], axis=-1) / nonzero(scale)[..., None]  # (layers, num_nodes, 2)
        blocks = square.reshape(num_layers, num_nodes, 2, num_nodes, 2)
        blocks = (shares[..., None, None] * blocks).sum(2)
        square = (shares[:, None] * blocks).sum(-1)  # (layers, num_nodes, num_nodes)
        terms = (jnp.abs(shares) * terms.reshape(shares.shape)).sum(-1)
        weights = (weights.reshape(*shares.shape, -1) * shares[..., None]).reshape(weights.shape)
    if num_nodes != tree.num_nodes:
        weights = weights[:, np.argsort(places, kind="stable")[: tree.num_nodes]]
    return Spanned(scale[:, 0], square[:, 0, 0], weights, scales, gram)


def _products(spanned: Spanned, layer: int) -> Products:
    length = spanned.scale[layer] * jnp.sqrt(jnp.maximum(spanned.square[layer], 0))
    return Products(spanned.scales[layer], spanned.gram[layer], length)


def _normalised(rows: list[jax.Array], gram: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns scales [layers, n] and dot products over them [layers, n, n], from those of the vectors as they are."""
    del rows
    scales = power_of_two(jnp.sqrt(jnp.diagonal(gram, axis1=1, axis2=2)))
    inverse = 1 / nonzero(scales)
    return scales, gram * inverse[:, :, None] * inverse[:, None, :]


def _rescaled(rows: list[jax.Array], axes: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns the same for vectors of any scale, whose largest elements are divided out first."""
    largest = jnp.concatenate([jnp.max(jnp.abs(r), axis=2) for r in rows])
    scales = power_of_two(lax.pmax(largest, axes))
    return scales, lax.psum(_gram(_over(rows, scales)), axes)


def _sums(rows: list[jax.Array], spanned: Spanned) -> list[jax.Array]:
    weights = spanned.scale[:, None] * spanned.weights / nonzero(spanned.scales)
    return [jnp.einsum("ln,lnm->lm", w, r, precision="highest") for w, r in zip(_per(rows, weights), rows, strict=True)]


def _sums_rescaled(rows: list[jax.Array], spanned: Spanned) -> list[jax.Array]:
    return _sums(_over(rows, spanned.scales), spanned._replace(scales=jnp.ones_like(spanned.scales)))


def _over(rows: list[jax.Array], scales: jax.Array) -> list[jax.Array]:
    return [r / s[..., None] for r, s in zip(rows, _per(rows, nonzero(scales)), strict=True)]


def _per(rows: list[jax.Array], of_layers: jax.Array) -> list[jax.Array]:
    """Splits [layers, ...] as the layers of ``rows`` are."""
    return jnp.split(of_layers, np.cumsum([len(r) for r in rows])[:-1])


def can_multiply(gram: jax.Array, present: jax.Array | None) -> jax.Array:
    """Returns whether the dot products of vectors as they are lost nothing; the same on all devices.

    Args:
      gram: [layers, n, n].
      present: [layers or 1, n], which of the vectors may be anything but zero; None for all.
    """
    squares = jnp.diagonal(gram, axis1=1, axis2=2)
    low, high = _PLAIN_SQUARES
    fine = (low < squares) & (squares < high)
    return (fine if present is None else fine | ~present).all()


def _alike(block: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
    """Cuts [n, M] into layers, consecutive ones of one width together: [layers, n, width]."""
    runs = [(width, len(list(run))) for width, run in itertools.groupby(widths)]
    parts = cut(block, [count * width for width, count in runs])
    alike = [part.reshape(len(block), count, width) for part, (width, count) in zip(parts, runs, strict=True)]
    return [part.transpose(1, 0, 2) for part in alike]


def _gram(rows: Sequence[jax.Array]) -> jax.Array:
    return join([dot_products(r) for r in rows])  # (layers, n, n)


def _slices(nodes: jax.Array, num_slices: int) -> jax.Array:
    padded = jnp.pad(nodes, ((0, 0), (0, -nodes.shape[1] % num_slices)))
    return padded.reshape(len(nodes), num_slices, -1)
