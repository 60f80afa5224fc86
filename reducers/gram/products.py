"""Dot products of the workers' gradients, apart from their scales: all that a rule is given."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
from jax import lax
from jax import numpy as jnp

from reducers.gram.scales import apart, nonzero, quotient, without_noise


def norms_of(gram: jax.Array) -> jax.Array:
    """Returns the norms of vectors, [..., n], from their Gram matrix [..., n, n]."""
    return jnp.sqrt(jnp.diagonal(gram, axis1=-2, axis2=-1))


class Products(NamedTuple):
    r"""Dot products of the workers' gradients of one group of leaves; the same on all workers.

    .. math:: G_{ij} = \frac{g_i}{s_i} \cdot \frac{g_j}{s_j}

    Scales are kept apart, since a product of two gradients soon leaves the range of float32. A worker that is absent
    has a scale of 0, as one with a zero gradient has. NaN or Inf in a gradient is one in its row and column.

    Attributes:
      gram: [n, n], of the units g_i / s_i, whose norms lie between about 1 and the root of their number of elements.
      scales: [n], powers of two.
      counted: [n] bool, which workers count.

    >>> products = Products(jnp.eye(2), jnp.array([3.0, 4.0]), jnp.array([True, True]))
    >>> products.norms, products.distances[0, 1]
    (Array([3., 4.], dtype=float32), Array(5., dtype=float32))
    """

    gram: jax.Array
    scales: jax.Array
    counted: jax.Array

    @property
    def num_counted(self) -> jax.Array:
        """How many workers are counted, 1 at least, as a divisor of weights."""
        return jnp.maximum(self.counted.sum(), 1).astype(self.gram.dtype)

    @property
    def finite(self) -> jax.Array:
        """Whether each worker is counted with a finite gradient, [n] bool."""
        return self.counted & jnp.isfinite(self.unit_norms) & jnp.isfinite(self.scales)

    @property
    def unit_norms(self) -> jax.Array:
        """Norms of the units, [n]."""
        return norms_of(self.gram)

    @property
    def norms(self) -> jax.Array:
        """Norms of the gradients, [n]."""
        return self.scales * self.unit_norms

    @property
    def directions(self) -> jax.Array:
        """Weights of the units in the gradients over their norms, [n]; 0 of a zero gradient."""
        return jnp.where(self.scales == 0, 0, 1 / nonzero(self.unit_norms))

    @property
    def cosines(self) -> jax.Array:
        """Cosines of the angles between gradients, [n, n]; 0 of a zero gradient."""
        return self.gram * self.directions[:, None] * self.directions[None, :]

    @property
    def relative_scales(self) -> jax.Array:
        """Scales over the largest of them, [n]."""
        return self.scales / nonzero(self.scales.max())

    @property
    def distances(self) -> jax.Array:
        """Distances between gradients, [n, n]; infinite to one that is absent or not finite, and 0 to itself."""
        larger, of_units = self.distances_apart
        return larger * of_units

    @property
    def distances_apart(self) -> tuple[jax.Array, jax.Array]:
        """Distances as two factors, whose product may leave the range of the dtype: powers of two, and the rest."""
        larger = nonzero(jnp.maximum(self.scales[:, None], self.scales[None, :]))
        one = self.scales[:, None] / larger
        other = self.scales[None, :] / larger
        squares = jnp.diagonal(self.gram)
        gram = (self.gram + self.gram.T) / 2  # to the last bit, so that equal distances tie
        square = one**2 * squares[:, None] + other**2 * squares[None, :] - 2 * one * other * gram
        known = self.finite[:, None] & self.finite[None, :]
        of_units = jnp.where(known, jnp.sqrt(jnp.maximum(square, 0)), jnp.inf)
        return larger, jnp.where(jnp.eye(len(squares), dtype=bool), 0, of_units)

    def nearest_distances(self, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the roots of the sums of squared distances to so many nearest others, [n], as exponent and mantissa.

        Exponents are kept apart, since squares of distances, and distances too, leave the range of float32; the order
        of the pairs is that of the numbers.
        """
        larger, of_units = self.distances_apart
        exponents, mantissas = apart(jnp.where(jnp.eye(len(larger), dtype=bool), jnp.inf, of_units))
        exponents, mantissas = lax.sort((exponents + apart(larger)[0], mantissas), dimension=1, num_keys=2)
        is_near = (jnp.arange(len(larger)) < count)[None]
        largest = jnp.where(is_near, exponents, exponents[:, :1]).max(1)
        near = jnp.where(is_near, jnp.ldexp(mantissas, exponents - largest[:, None]), 0)
        exponents, mantissas = apart(jnp.linalg.norm(near, axis=1))
        return exponents + largest, mantissas

    @property
    def at_one_scale(self) -> jax.Array:
        """The Gram matrix of the gradients over the largest of their scales, [n, n]."""
        return self.gram * self.relative_scales[:, None] * self.relative_scales[None, :]

    def mixed(self, shares: jax.Array) -> tuple["Products", jax.Array]:
        """Returns the products of sums of the gradients, and the weights of the units in the unit of each sum, [n, n].

        A sum whose square is the rounding noise of gradients that cancel out is taken for zero.

        Args:
          shares: of the gradients (columns) in the sums (rows), [n, n]; a sum without any is not counted. NaN and Inf
            do not pass a share of 0.

        >>> products = Products(jnp.eye(2), jnp.array([3.0, 4.0]), jnp.array([True, True]))
        >>> products.mixed(jnp.array([[1.0, 1.0], [0.0, 0.0]]))[0].norms
        Array([5., 0.], dtype=float32)
        """
        shares = shares.astype(self.gram.dtype)
        has_share = shares != 0
        own = self.scales[None, :]
        scales = jnp.where(has_share, own, 0).max(1)
        units = jnp.where(has_share, shares * (own / nonzero(scales)[:, None]), 0)
        is_known = jnp.isfinite(self.unit_norms)
        known = jnp.where(is_known[:, None] & is_known[None, :], self.gram, 0)

        def of_sums(units, gram):
            return jnp.einsum("ij,jk,lk->il", units, gram, units, precision="highest")

        gram = without_noise(of_sums(units, known), of_sums(jnp.abs(units), jnp.abs(known)))
        is_zero = jnp.diagonal(gram) <= 0
        gram = jnp.where(is_zero[:, None] | is_zero[None, :], 0, gram)
        is_lost = ((units != 0) & ~is_known[None, :]).any(1)
        gram = jnp.where(is_lost[:, None] | is_lost[None, :], jnp.nan, gram)
        return Products(gram, jnp.where(is_zero & ~is_lost, 0, scales), has_share.any(1)), units

    @classmethod
    def joined(cls, parts: "Products") -> "Products":
        """Returns the products of vectors from those of their parts, which have a leading axis of parts.

        >>> parts = Products(jnp.ones((2, 1, 1)), jnp.array([[3.0], [4.0]]), jnp.ones((2, 1), bool))
        >>> Products.joined(parts).norms
        Array([5.], dtype=float32)
        """
        gram, scales, counted = parts
        largest = scales.max(0)
        shares = scales / nonzero(largest)[None]
        return cls((shares[..., :, None] * gram * shares[..., None, :]).sum(0), largest, counted.any(0))

    def of_units(self, weights: jax.Array) -> jax.Array:
        """Returns the weights of the units, [n], for weights of the gradients; 0 stays 0 whatever the gradient is."""
        return jnp.where(weights == 0, 0, weights * self.scales)

    @property
    def all_finite(self) -> jax.Array:
        """Whether all gradients that count are finite, [] bool; a rule should keep nothing that follows from others."""
        return (self.finite | ~self.counted).all()

    def nan_unless_finite(self, weights: jax.Array) -> jax.Array:
        """Returns the weights, or NaN where a gradient that counts is not finite.

        >>> Products(jnp.array([[jnp.inf]]), jnp.ones(1), jnp.ones(1, bool)).nan_unless_finite(jnp.ones(1))
        Array([nan], dtype=float32)
        """
        return jnp.where(jnp.isfinite(self.gram).all(), weights, jnp.nan)

    def length_of(self, weights: jax.Array) -> jax.Array:
        """Returns the norm of the combination of units with these weights, [..., n] -> [...].

        >>> Products(jnp.eye(2), jnp.ones(2), jnp.ones(2, bool)).length_of(jnp.array([3e30, 4e30]))
        Array(5.e+30, dtype=float32)
        """
        largest = jnp.abs(weights).max(-1)
        shares = quotient(weights, largest[..., None])
        square = jnp.einsum("...i,ij,...j->...", shares, self.gram, shares, precision="highest")
        return largest * jnp.sqrt(jnp.maximum(square, 0))

    def only_finite(self) -> "Products":
        """Returns the products with gradients that are not finite taken for absent ones, unless none is finite."""
        finite = jnp.where(self.finite.any(), self.finite, self.counted)
        gram = jnp.where(finite[:, None] & finite[None, :], self.gram, 0)
        return Products(gram, jnp.where(finite, self.scales, 0), finite)


# (Products, state) -> (weights of the units [n], state), for one vector.
Rule: TypeAlias = Callable[[Products, Any], tuple[jax.Array, Any]]


class Weighed(NamedTuple):
    """How vectors were combined; each field with a leading axis of vectors."""

    products: Products
    weights: jax.Array  # [vectors, n], of the units
    state: Any
