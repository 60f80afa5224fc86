"""The exchange by which devices combine gradients with weights that follow from dot products.

Each device takes a slice of every gradient, one small all-reduce sums the slices' Gram matrices, every device computes
the same weights from the same n x n numbers, and the weighted sum of the slices is gathered: the bytes of an
all-reduce, one round, for any number of gradients.

A *vector* is a group of leaves as one array; all vectors of a call have one dtype. A device has k gradients of each,
those of its lanes, [k, m].
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.backend import dot_products
from reducers.collectives import cut, from_slices, gather_workers, join, slice_size, to_slices
from reducers.gram.products import Products
from reducers.gram.scales import nonzero, power_of_two, wide

# Squared norms between these leave float32 room enough for all dot products of the vectors as they are.
_PLAIN_SQUARES = (1e-24, 1e24)

# (products, state) -> (weights of the units, state), all with a leading axis of vectors.
Weigh = Callable[[Products, Any], tuple[jax.Array, Any]]


class Weighed(NamedTuple):
    """How vectors were combined; each field with a leading axis of vectors, which ``of`` takes away."""

    products: Products
    weights: jax.Array  # [vectors, n], of the units
    state: Any

    def of(self, index: int) -> "Weighed":
        """Returns what belongs to one vector."""
        return jax.tree.map(lambda x: x[index], self)


Combined = list[tuple[jax.Array, Weighed]]  # of each vector the weighted sum, [m], and how it was made


def exchange_slices(
    vectors: Sequence[jax.Array], state: Any, *, weigh: Weigh, axes: tuple[str, ...], present: jax.Array
) -> Combined:
    """Combines vectors of which each device then has a slice of all gradients: 2 (n - 1) / n of the bytes.

    Args:
      vectors: this device's gradients of every vector, [k, m].
      state: of the rule, with a leading axis of vectors.
      weigh: the rule.
      axes: the devices, outer first; empty if this device has all gradients.
      present: [n] bool, which of the gradients may be anything but zero, in device order.

    Returns:
      For every vector the result, [m], of the dtype that came in, and how it was made.
    """
    if not axes:
        sums, weighed = combine_rows([wide(x)[None] for x in vectors], state, weigh=weigh, present=present)
        return [(result[0], weighed.of(i)) for i, result in enumerate(sums)]
    sizes = [x.shape[1] for x in vectors]
    block = to_slices(vectors, axes)  # (n, M)
    rows = _alike(wide(block), [slice_size(size, axes) for size in sizes])
    sums, weighed = combine_rows(rows, state, weigh=weigh, axes=axes, present=present)
    whole = join([x.ravel() for x in sums]).astype(block.dtype)  # (M,)
    return [(x, weighed.of(i)) for i, x in enumerate(from_slices(whole, sizes, axes))]


def gather_rows(vectors: Sequence[jax.Array], axes: tuple[str, ...]) -> list[jax.Array]:
    """Gathers all gradients of vectors whole, [n, m] each, in float32 at least: n - 1 times the bytes."""
    block = join(vectors, axis=1)  # (k, M)
    return cut(wide(gather_workers(block, axes).reshape(-1, block.shape[1])), [x.shape[1] for x in vectors])


@functools.partial(jax.jit, static_argnames=("weigh", "axes"))  # vectors of one size are traced once
def combine_rows(
    rows: Sequence[jax.Array], state: Any, *, weigh: Weigh, axes: tuple[str, ...] = (), present: jax.Array
) -> tuple[list[jax.Array], Weighed]:
    """Combines gradients of which this device has all of each, or a slice of each.

    Args:
      rows: [vectors, n, m] each.
      state: of the rule, with a leading axis of vectors.
      weigh: the rule.
      axes: the devices that have the other slices.
      present: [n], or [vectors, n], which of the gradients may be anything but zero.

    Returns:
      The weighted sums of the rows, [vectors, m] each, and how all of them were made.
    """
    # The vectors are multiplied as they are, which in float32 loses nothing as long as their norms are not extreme.
    gram = _over_devices(lax.psum, _gram(rows), axes)  # (vectors, n, n)
    present = jnp.broadcast_to(present, gram.shape[:2])
    plain = _can_multiply(gram, present)
    scales, gram = lax.cond(plain, _normalised, lambda rows, _: _rescaled(rows, axes), rows, gram)
    products = Products(gram, scales, present)
    weights, state = weigh(products, state)
    weights = jnp.where(present, weights, 0)
    return lax.cond(plain, _sums, _sums_rescaled, rows, weights, scales), Weighed(products, weights, state)


def _can_multiply(gram: jax.Array, present: jax.Array) -> jax.Array:
    """Returns whether the dot products of vectors as they are lost nothing; the same on all devices."""
    squares = jnp.diagonal(gram, axis1=1, axis2=2)
    low, high = _PLAIN_SQUARES
    return (((low < squares) & (squares < high)) | ~present).all()


def _normalised(rows: list[jax.Array], gram: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns scales [vectors, n] and dot products over them [vectors, n, n], from those of the vectors as they are."""
    del rows
    scales = power_of_two(jnp.sqrt(jnp.diagonal(gram, axis1=1, axis2=2)))
    inverse = 1 / nonzero(scales)
    return scales, gram * inverse[:, :, None] * inverse[:, None, :]


def _rescaled(rows: list[jax.Array], axes: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns the same for vectors of any scale, whose largest elements are divided out first."""
    largest = jnp.concatenate([jnp.max(jnp.abs(r), axis=2) for r in rows])
    scales = power_of_two(_over_devices(lax.pmax, largest, axes))
    return scales, _over_devices(lax.psum, _gram(_over(rows, scales)), axes)


def _over_devices(reduce: Callable[..., jax.Array], x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return reduce(x, axes) if axes else x


def _sums(rows: list[jax.Array], weights: jax.Array, scales: jax.Array) -> list[jax.Array]:
    of_rows = _per(rows, weights / nonzero(scales))
    return [jnp.einsum("ln,lnm->lm", w, r, precision="highest") for w, r in zip(of_rows, rows, strict=True)]


def _sums_rescaled(rows: list[jax.Array], weights: jax.Array, scales: jax.Array) -> list[jax.Array]:
    """Returns the weighted sums of vectors of any scale, of which NaN and Inf do not pass a weight of 0."""
    of_units = zip(_per(rows, weights), _over(rows, scales), strict=True)
    known = [jnp.where(w[..., None] == 0, 0, units) for w, units in of_units]
    return _sums(known, weights, jnp.ones_like(scales))


def _over(rows: list[jax.Array], scales: jax.Array) -> list[jax.Array]:
    return [r / s[..., None] for r, s in zip(rows, _per(rows, nonzero(scales)), strict=True)]


def _per(rows: list[jax.Array], of_vectors: jax.Array) -> list[jax.Array]:
    """Splits [vectors, ...] as the vectors of ``rows`` are."""
    return jnp.split(of_vectors, np.cumsum([len(r) for r in rows])[:-1])


def _alike(block: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
    """Cuts [n, M] into vectors, consecutive ones of one width together: [vectors, n, width]."""
    runs = [(width, len(list(run))) for width, run in itertools.groupby(widths)]
    parts = cut(block, [count * width for width, count in runs])
    alike = [part.reshape(len(block), count, width) for part, (width, count) in zip(parts, runs, strict=True)]
    return [part.transpose(1, 0, 2) for part in alike]


def _gram(rows: Sequence[jax.Array]) -> jax.Array:
    return join([dot_products(r) for r in rows])  # (vectors, n, n)
