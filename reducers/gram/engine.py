"""The exchange by which devices combine gradients with weights that follow from dot products.

Each device takes a slice of every gradient, one small all-reduce sums the slices' Gram matrices, every device computes
the same weights from the same n x n numbers, and the weighted sum of the slices is gathered: the bytes of an
all-reduce, in three rounds, for any number of gradients.

A *vector* is a group of leaves, in one part or several; all vectors of a call have one dtype. A device has k gradients
of each, those of its lanes, parts of [k, m].
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import Devices, from_slices, join, to_slices
from reducers.gram.parts import WHOLE, Parts, like
from reducers.gram.products import Products, Rule, Weighed, norms_of
from reducers.gram.rows import Rows, arrange, slices_of
from reducers.gram.scales import nonzero, power_of_two

# Where no norm is beyond 2^40 or below 2^-40, float32 has room for all dot products of the vectors as they are. Others
# have room for them when they are divided by 2^80 or by 2^-80. In shares of the largest exponent of a dtype, 128.
_PLAIN, _FAR = 5 / 16, 5 / 8


# Traced once for all buckets of the same shapes.
@functools.partial(jax.jit, static_argnames=("rule", "devices", "parts", "goes_on"))
def exchange_slices(
    vectors: Sequence[Sequence[jax.Array]],
    state: Any = (),
    *,
    rule: Rule,
    devices: Devices,
    counted: jax.Array,
    parts: Parts = WHOLE,
    goes_on: bool = False,
) -> tuple[list[list[jax.Array]], Weighed]:
    """Combines vectors after an exchange that gives each device a slice of all gradients: 2 (n - 1) / n of the bytes.

    Args:
      vectors: this device's gradients of every vector, parts of [blocks, k, m]: as many vectors of one size as there
        are blocks, one where there are several devices.
      state: the state of the rule, with a leading axis of vectors.
      rule: finds the weights of one vector.
      devices: all that have gradients.
      counted: [blocks, n] bool, which of the gradients may be anything but zero, in device order.
      parts: what cuts the parts; there is one block if other axes of the mesh do.
      goes_on: whether the results enter further dot products. Rounding noise of gradients that cancel out would count
        as a direction in these, and becomes 0.

    Returns:
      For every vector the results, parts of [blocks, m], of the dtype that came in, or wide on one device; and how all
      of them were made.
    """
    arrays, places, restore = arrange(vectors, num_slices=devices.count, apart=bool(parts.axes))
    given: dict[str, Any] = {"rule": rule, "devices": devices, "counted": counted, "parts": parts, "goes_on": goes_on}
    if not devices.axes:
        results, weighed = combine_rows(Rows(arrays, places), state, **given)
        return like(vectors, restore(results)), weighed
    blocks = [x[None] for x in to_slices([x[0] for x in arrays], devices)]  # (1, n, M) each
    results, weighed = combine_rows(Rows(blocks, slices_of(places, devices)), state, **given)
    slices = join([x[0] for x in results]).astype(blocks[0].dtype)  # (M of all blocks,)
    whole = from_slices(slices, [x.shape[2] for x in arrays], devices)
    return like(vectors, restore([x[None] for x in whole])), weighed


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
      rows: the gradients.
      state: the state of the rule, with a leading axis of vectors.
      rule: finds the weights of one vector.
      devices: those that have the slices.
      counted: [blocks, n], see ``exchange_slices``.
      parts: what cuts the parts of vectors; if axes do, rows are those of all parts.
      goes_on: see ``exchange_slices``.

    Returns:
      The results, in the form of the rows' blocks; and how all of them were made.
    """
    products = products_of(rows, devices=devices, counted=counted, parts=parts)
    weights, state = jax.vmap(rule)(products, state)
    weights = jnp.where(products.counted, weights, 0)
    results = weighted_sums(rows, *parts.spread((weights, products)), goes_on=goes_on)
    return results, Weighed(products, weights, state)


def products_of(rows: Rows, *, devices: Devices, counted: jax.Array, parts: Parts = WHOLE) -> Products:
    """Returns the dot products of gradients, with a leading axis of vectors.

    They are multiplied as they are, which in float32 loses nothing as long as no norm is extreme. Otherwise a power of
    two is divided out of the gradients whose norms are, and they are multiplied once more.

    Args:
      rows: the gradients.
      devices: those that have the slices.
      counted: [blocks, n], which of the gradients may be anything but zero; repeated for all vectors.
      parts: what cuts the parts of vectors; if axes do, rows are those of all parts.
    """
    gram = _sum_symmetric(rows.gram(), devices, parts)
    counted = jnp.tile(counted, (len(gram) // len(counted), 1))
    norms = norms_of(gram)
    is_large, is_small = ~(norms < _limit(gram, _PLAIN)), norms < _limit(gram, -_PLAIN)  # NaN may be what overflowed
    divisors = jnp.where(is_large, _limit(gram, _FAR), jnp.where(is_small, _limit(gram, -_FAR), 1)).astype(gram.dtype)
    gram, divisors = lax.cond(
        (_is_plain(norms) | ~counted).all(),  # the same on all devices
        lambda: (gram, jnp.ones_like(divisors)),
        lambda: (_sum_symmetric(rows.gram(parts.spread(divisors)), devices, parts), divisors),
    )
    largest = power_of_two(jnp.full((), jnp.inf, gram.dtype)) / divisors
    norms = norms_of(gram)
    scales = jnp.where(jnp.isfinite(norms), jnp.minimum(power_of_two(norms), largest), largest)
    inverse = 1 / nonzero(scales)
    return Products(gram * inverse[:, :, None] * inverse[:, None, :], scales * divisors, counted)


def weighted_sums(rows: Rows, weights: jax.Array, products: Products, *, goes_on: bool = False) -> list[jax.Array]:
    """Returns weighted sums of units, in the form of the rows' blocks; NaN and Inf do not pass a weight of 0.

    Args:
      rows: the gradients.
      weights: of the units, [vectors, n].
      products: of the gradients.
      goes_on: see ``exchange_slices``.
    """
    plain = (_is_plain(products.norms) | (products.scales == 0)).all()
    return lax.cond(
        plain,
        lambda: rows.weighted_sums(weights / nonzero(products.scales), noiseless=goes_on),
        lambda: rows.weighted_sums(weights, products.scales, noiseless=goes_on),
    )


def _is_plain(norms: jax.Array) -> jax.Array:
    return (_limit(norms, -_PLAIN) < norms) & (norms < _limit(norms, _PLAIN))


def _limit(x: jax.Array, share: float) -> float:
    """Returns a power of two whose exponent is a share of the largest of x's dtype."""
    return 2.0 ** (share * jnp.finfo(x.dtype).maxexp)


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
