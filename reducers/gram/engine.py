"""The exchange by which devices combine gradients with weights that follow from dot products.

Each device takes a slice of every gradient, one small all-reduce sums the slices' Gram matrices, every device computes
the same weights from the same n x n numbers, and the weighted sum of the slices is gathered: the bytes of an
all-reduce, in three rounds, for any number of gradients.

A *vector* is a group of leaves as one array; all vectors of a call have one dtype. A device has k gradients of each,
those of its lanes, [k, m].
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import Devices, cut, from_slices, join, slice_size, to_slices
from reducers.collectives.backend import dot_products
from reducers.dtypes import wide
from reducers.gram.parts import WHOLE, Parts
from reducers.gram.products import Products, Rule, Weighed
from reducers.gram.scales import nonzero, power_of_two, without_noise

# Norms between these leave float32 room enough for all dot products of the vectors as they are.
_PLAIN_NORMS = (1e-12, 1e12)

_ALONE = Devices(())

# Returns gradients, [vectors, n, m] each, or this device's slices of them. Each branch of a condition calls it for
# itself: XLA copies the arguments of a branch, and so a branch takes the one block of all vectors, not the parts that
# are cut from it.
Rows: TypeAlias = Callable[[], list[jax.Array]]


# Traced once for all buckets of the same shapes.
@functools.partial(jax.jit, static_argnames=("rule", "devices", "parts", "goes_on"))
def exchange_slices(
    vectors: Sequence[jax.Array],
    state: Any = (),
    *,
    rule: Rule,
    devices: Devices,
    counted: jax.Array,
    parts: Parts = WHOLE,
    goes_on: bool = False,
) -> tuple[list[jax.Array], Weighed]:
    """Combines vectors after an exchange that gives each device a slice of all gradients: 2 (n - 1) / n of the bytes.

    Args:
      vectors: this device's gradients of every vector, [blocks, k, m]: as many vectors of one size as there are blocks,
        one where there are several devices.
      state: the state of the rule, with a leading axis of vectors.
      rule: finds the weights of one vector.
      devices: all that have gradients.
      counted: [blocks, n] bool, which of the gradients may be anything but zero, in device order.
      parts: the parts of the vectors, if leaves are cut over other axes of the mesh; there is one block then.
      goes_on: whether the results enter further dot products. Rounding noise of gradients that cancel out would count
        as a direction in these, and becomes 0.

    Returns:
      For every vector the results, [blocks, m], of the dtype that came in, or wide on one device; and how all of them
      were made.
    """
    vectors = parts.cut(vectors)
    combine = functools.partial(
        combine_rows, state=state, rule=rule, devices=devices, counted=counted, parts=parts, goes_on=goes_on
    )
    if not devices.axes:
        results, weighed = combine(lambda: [wide(x) for x in vectors])
        return parts.joined(results), weighed
    sizes = [x.shape[2] for x in vectors]
    widths = [slice_size(size, devices.count) for size in sizes]
    blocks = to_slices([x[0] for x in vectors], devices)  # (n, M) each
    rows = lambda: [wide(x) for x in alike(blocks, widths)]  # noqa: E731
    results, weighed = combine(rows)
    whole = join([x.ravel() for x in results]).astype(blocks[0].dtype)  # (M of all blocks,)
    return parts.joined([x[None] for x in from_slices(whole, sizes, devices)]), weighed


def combine_rows(
    rows: Rows,
    state: Any = (),
    *,
    rule: Rule,
    devices: Devices,
    counted: jax.Array,
    parts: Parts = WHOLE,
    goes_on: bool = False,
) -> tuple[list[jax.Array], Weighed]:
    """Combines gradients, or this device's slices of them.

    Args:
      rows: the rows, in float32 at least.
      state: the state of the rule, with a leading axis of vectors.
      rule: finds the weights of one vector.
      devices: those that have the slices.
      counted: [blocks, n], see ``exchange_slices``.
      parts: the parts of the vectors; rows are those of all parts.
      goes_on: see ``exchange_slices``.

    Returns:
      The results, [vectors, m] of each [vectors, n, m]; and how all of them were made.
    """
    products = products_of(rows, devices=devices, counted=counted, parts=parts)
    weights, state = jax.vmap(rule)(products, state)
    weights = jnp.where(products.counted, weights, 0)
    results = weighted_sums(rows, *parts.spread((weights, products)), goes_on=goes_on)
    return results, Weighed(products, weights, state)


def products_of(rows: Rows, *, devices: Devices = _ALONE, counted: jax.Array, parts: Parts = WHOLE) -> Products:
    """Returns the dot products of gradients, with a leading axis of vectors.

    They are multiplied as they are, which in float32 loses nothing as long as no norm is extreme. Otherwise the largest
    elements are divided out first.

    Args:
      rows: the rows, in float32 at least.
      devices: those that have the slices.
      counted: [blocks, n], which of the gradients may be anything but zero; repeated for all vectors.
      parts: the parts of the vectors; rows are those of all parts.
    """
    gram = _sum_symmetric(_gram(rows()), devices, parts)
    counted = jnp.tile(counted, (len(gram) // len(counted), 1))
    norms = Products(gram, jnp.ones(gram.shape[:2], gram.dtype), counted).norms

    def as_they_are():
        scales = power_of_two(norms)
        inverse = 1 / nonzero(scales)
        return Products(gram * inverse[:, :, None] * inverse[:, None, :], scales, counted)

    def rescaled():
        largest = jnp.concatenate([jnp.max(jnp.abs(r), axis=2) for r in rows()])
        scales = power_of_two(parts.largest(largest, devices))
        return Products(_sum_symmetric(_gram(_units(rows, parts.spread(scales))), devices, parts), scales, counted)

    return lax.cond((_is_plain(norms) | ~counted).all(), as_they_are, rescaled)  # the same on all devices


def weighted_sums(rows: Rows, weights: jax.Array, products: Products, *, goes_on: bool = False) -> list[jax.Array]:
    """Returns weighted sums of units, [vectors, m] each; NaN and Inf do not pass a weight of 0, of [vectors, n]."""
    add = functools.partial(jnp.einsum, "ln,lnm->lm", precision="highest")

    def add_up(vectors, weights):
        pairs = list(zip(_per(vectors, weights), vectors, strict=True))
        sums = [add(w, x) for w, x in pairs]
        if not goes_on:
            return sums
        return [without_noise(x, add(jnp.abs(w), jnp.abs(y))) for x, (w, y) in zip(sums, pairs, strict=True)]

    def rescaled():
        units = _units(rows, products.scales)
        pairs = zip(_per(units, weights), units, strict=True)
        return add_up([jnp.where(w[..., None] == 0, 0, u) for w, u in pairs], weights)

    plain = (_is_plain(products.norms) | (products.scales == 0)).all()
    return lax.cond(plain, lambda: add_up(rows(), weights / nonzero(products.scales)), rescaled)


def _is_plain(norms: jax.Array) -> jax.Array:
    low, high = _PLAIN_NORMS
    return (low < norms) & (norms < high)


def _units(rows: Rows, scales: jax.Array) -> list[jax.Array]:
    vectors = rows()
    return [x / s[..., None] for x, s in zip(vectors, _per(vectors, nonzero(scales)), strict=True)]


def _per(vectors: Sequence[jax.Array], numbers: jax.Array) -> list[jax.Array]:
    """Splits [vectors, ...] as the vectors are."""
    return jnp.split(numbers, np.cumsum([len(x) for x in vectors])[:-1])


def alike(blocks: Sequence[jax.Array], widths: Sequence[int]) -> list[jax.Array]:
    """Cuts blocks, [..., M] each, into vectors, consecutive ones of one width together: [vectors, ..., width].

    >>> [x.shape for x in alike([jnp.ones((2, 6)), jnp.ones((2, 7))], [3, 3, 3, 4])]
    [(2, 2, 3), (1, 2, 3), (1, 2, 4)]
    """
    found: list[jax.Array] = []
    ends = np.cumsum(widths)
    begin = 0
    for block in blocks:
        end = begin + block.shape[-1]
        of_block = [width for width, at in zip(widths, ends, strict=True) if begin < at <= end]
        runs = [(width, len(list(run))) for width, run in itertools.groupby(of_block)]
        parts = cut(block, [count * width for width, count in runs])
        for x, (width, _) in zip(parts, runs, strict=True):
            found.append(jnp.moveaxis(x.reshape(*x.shape[:-1], -1, width), -2, 0))
        begin = end
    return found


def _gram(rows: Sequence[jax.Array]) -> jax.Array:
    return join([dot_products(r) for r in rows])  # (vectors, n, n)


def _sum_symmetric(grams: jax.Array, devices: Devices, parts: Parts) -> jax.Array:
    """Sums symmetric matrices over all devices, [..., n, n]; each device sends one triangle: n (n + 1) / 2 numbers."""
    if not devices.axes and not parts.axes:
        return grams
    count = grams.shape[-1]
    triangle = parts.sum(grams[..., *np.triu_indices(count)], devices)
    one, other = (lax.broadcasted_iota(jnp.int32, (count, count), axis) for axis in (0, 1))
    low = jnp.minimum(one, other)
    high = jnp.maximum(one, other)
    return triangle[..., low * count - low * (low - 1) // 2 + high - low]
