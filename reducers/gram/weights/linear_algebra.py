"""Small programs of Gram matrices, and their eigenvalues."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.gram.products import Products
from reducers.gram.scales import nonzero

# Added to the diagonal of the table that is pivoted: more than the rounding of dot products; refinement removes it.
_RIDGE_ULPS = 4


def nonnegative(gram: jax.Array, linear: jax.Array) -> jax.Array:
    r"""Solves a small quadratic program by an active-set method, which ends exactly.

    .. math:: \arg\min_{x \ge 0} \tfrac12 x^\top G x + b^\top x

    One weight after the other becomes free, along the path on which the slopes of all free ones stay 0; where a free
    weight gets to 0 on it, that one is bound again. Each such step is a pivot of one table, in O(n^2), and no set of
    free weights comes twice, since each is better than the one before.

    Args:
      gram: G, [n, n], positive semidefinite; its diagonal is about 1.
      linear: b, [n].

    Returns:
      x, [n]. There are at most 8 n steps, where a few more than the number of weights other than 0 suffice.

    >>> nonnegative(jnp.array([[1.0, 0.5], [0.5, 1.0]]), jnp.array([-1.0, 0.25])).round(6)
    Array([1., 0.], dtype=float32)

    Reference: the algorithm of Lawson, Hanson, "Solving Least Squares Problems", 1974, with principal pivots in place
    of a factorisation, as in Keller, "The general quadratic optimization problem", 1973 (both from memory).
    """
    n = len(linear)
    eps = jnp.finfo(gram.dtype).eps
    places = jnp.arange(n)
    ridge = _RIDGE_ULPS * eps

    def step(carry):
        number, table, x, free, entering, _ = carry
        slopes = gram @ x + linear
        noise = 4 * eps * (jnp.abs(gram) @ x + jnp.abs(linear))
        x = jnp.where(free, jnp.maximum(x + jnp.where(free, table, 0) @ jnp.where(free, slopes, 0), 0), x)  # refined
        falls = ~free & (slopes < -noise)
        at = jnp.where(entering < 0, jnp.where(falls, slopes, jnp.inf).argmin(), entering)
        is_done = (entering < 0) & ~falls.any()
        path = jnp.where(places == at, 1, jnp.where(free, -table[at], 0))
        to_flat = jnp.maximum(-slopes[at], 0) / jnp.maximum(table[at, at], ridge)
        lengths = jnp.where(free & (path < 0), x / jnp.where(path < 0, -path, 1), jnp.inf)
        leaves = lengths.min() < to_flat
        place = jnp.where(leaves, lengths.argmin(), at)
        after = jnp.maximum(x + jnp.minimum(to_flat, lengths.min()) * path, 0)
        return (
            number + 1,
            _pivoted(table, place, free[place]),
            jnp.where(is_done, x, jnp.where(leaves & (places == place), 0, after)),
            jnp.where(places == place, ~leaves, free),
            jnp.where(leaves, at, -1),
            is_done,
        )

    def goes_on(carry):
        return (carry[0] < 8 * n) & ~carry[-1]

    zero = jnp.zeros_like(linear)
    nobody = zero > 0
    table = gram + ridge * jnp.eye(n, dtype=gram.dtype)
    start = (places[0], table, zero, nobody, places[0] - 1, nobody.any())
    return lax.while_loop(goes_on, step, start)[2]


def _pivoted(table: jax.Array, at: jax.Array, is_free: jax.Array) -> jax.Array:
    """Returns a symmetric table, pivoted: the negative inverse of the free part, and the rest's Schur complement."""
    row, pivot = table[at], table[at, at]
    edge = jnp.where(is_free, -row, row) / pivot
    here = jnp.arange(len(row)) == at
    table = table - row[:, None] * (row / pivot)[None, :]
    table = jnp.where(here[:, None] | here[None, :], jnp.where(here[:, None], edge[None, :], edge[:, None]), table)
    return jnp.where(here[:, None] & here[None, :], -1 / pivot, table)


def shortest(products: Products) -> jax.Array:
    """Returns the weights of the units in the shortest convex combination of the gradients, [n].

    With unit vectors u_i = g_i / |g_i| and a_i = 1 / |g_i|, they are up to a factor the x >= 0 that minimise
    |sum x_i u_i|^2 + (sum a_i x_i - 1)^2. For a given direction of x its least value grows with the length of the
    combination, |sum x_i u_i| / sum a_i x_i. So lengths may differ by any factor.
    """
    not_zero = products.counted & (products.scales > 0)
    scales = products.scales
    shortest = nonzero(jnp.where(not_zero, scales, jnp.inf).min())
    of_units = jnp.where(not_zero, jnp.where(jnp.isfinite(shortest), shortest, 1) / nonzero(scales), 0)
    inverse = of_units * products.directions  # of lengths, over that of the shortest scale
    largest = nonzero(inverse.max())
    a = inverse / largest
    x = nonnegative(products.cosines + a[:, None] * a[None, :], -a)
    weights = jnp.where(not_zero, x / nonzero(a @ x) * (shortest / largest) * products.directions, 0)
    weights = jnp.where((products.counted & ~not_zero).any(), 0, weights)  # a zero gradient is the shortest
    return products.nan_unless_finite(weights)


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of the Gram matrix of the gradients over the largest of their scales.

    Attributes:
      values: [n], ascending; 1 in the place of those that are not kept.
      vectors: [n, n], in columns.
      kept: [n] bool, which eigenvalues are larger than the rounding of the largest; always the last ones.
    """

    values: jax.Array
    vectors: jax.Array
    kept: jax.Array

    @classmethod
    def of(cls, products: Products) -> "Spectrum":
        """Decomposes the Gram matrix: eigenvalues up to n eps of the largest are taken for 0, as in a pseudo-inverse.

        >>> products = Products(jnp.ones((2, 2)), jnp.ones(2), jnp.array([True, True]))
        >>> Spectrum.of(products).kept
        Array([False,  True], dtype=bool)
        """
        known = jnp.where(jnp.isfinite(products.gram).all(), products.at_one_scale, 0)
        values, vectors = jnp.linalg.eigh(known)
        kept = values > values.max() * products.num_counted * jnp.finfo(values.dtype).eps
        return cls(jnp.where(kept, values, 1), vectors, kept)

    @property
    def rank(self) -> jax.Array:
        """The number of eigenvalues that are kept."""
        return self.kept.sum()

    def apply(self, function: Callable[[jax.Array], jax.Array], vector: jax.Array) -> jax.Array:
        """Applies a function to the kept eigenvalues of the matrix, and multiplies the result by a vector, [n]."""
        shares = self.vectors.T @ vector
        return self.vectors @ jnp.where(self.kept, function(self.values) * shares, 0)
