"""Adasum of two gradients."""

from typing import Any

import jax
from jax import numpy as jnp

from reducers.gram.scales import nonzero, unit, without_noise


def pair(a: jax.Array, b: jax.Array) -> jax.Array:
    r"""Adasum of two gradients.

    .. math:: \left(1 - \frac{a \cdot b}{2 |a|^2}\right) a + \left(1 - \frac{a \cdot b}{2 |b|^2}\right) b

    Written with a = s_a u and b = s_b v, largest elements of u and v being about 1, so that no product leaves the range
    of float32, whatever the scales. A zero gradient is neutral: Adasum(a, 0) = a. Elements in which a and b cancel out
    to rounding noise are 0, since the direction of this noise would take its projection away from the next gradient.

    Args:
      a: gradient of one worker, of any shape.
      b: gradient of another, of the same shape.

    Returns:
      Their combination: a + b if orthogonal, (a + b) / 2 if parallel.

    >>> pair(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))  # orthogonal: the sum
    Array([1., 1.], dtype=float32)
    >>> pair(jnp.array([1.0, 1.0]), jnp.array([3.0, 3.0]))  # parallel: the mean
    Array([2., 2.], dtype=float32)

    Reference: Maleki et al., arXiv 2006.02924, the definition of Adasum; zero as in Horovod's adasum.h.
    """
    (s_a, u), (s_b, v) = unit(a), unit(b)
    alpha, beta = coefficients(s_a, s_b, uv=jnp.vdot(u, v), uu=jnp.vdot(u, u), vv=jnp.vdot(v, v))
    of_a, of_b = alpha * u, beta * v
    return without_noise(of_a + of_b, jnp.abs(of_a) + jnp.abs(of_b))


def coefficients(s_a: jax.Array, s_b: jax.Array, *, uv: jax.Array, uu: jax.Array, vv: jax.Array) -> tuple[Any, Any]:
    """Returns alpha and beta of alpha u + beta v, the Adasum of s_a u and s_b v, from the dot products of u and v."""
    # s_a u - (a.b / 2 |a|^2) a  =  (s_a - s_b (u.v) / (2 u.u)) u
    return s_a - s_b * _half_ratio(uv, uu), s_b - s_a * _half_ratio(uv, vv)


def _half_ratio(dot: jax.Array, square: jax.Array) -> jax.Array:
    """Returns dot / (2 square), or 0 where the square is 0: nothing is projected onto a zero vector."""
    return jnp.where(square == 0, 0, 0.5 * dot / nonzero(square))
