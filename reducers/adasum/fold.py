"""Adasum in the space of coefficients: the tree is folded over dot products alone."""

from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.adasum.pair import coefficients
from reducers.adasum.tree import Tree, fold
from reducers.gram.engine import Rule
from reducers.gram.products import Products
from reducers.gram.scales import nonzero, power_of_two

# A node whose squared norm is below so many ulps of the terms it is summed from is rounding noise: the zero vector.
_NOISE_ULPS = 8


class _Node(NamedTuple):
    """A node of the tree, scale times a unit that is a combination of the n leaves' units.

    The scale is apart, because dot products with it would leave the range of float32, and the direction of a tiny
    gradient still matters: it takes away the projection of a huge one.

    Attributes:
      scale: [], a power of two.
      rows: [2, n], the weights of the leaves in the unit, and its dot products with the leaves.
      length: [], that which the unit would have if nothing cancelled.
    """

    scale: jax.Array
    rows: jax.Array
    length: jax.Array


def adasum_rule(tree: Tree) -> Rule:
    r"""Returns the rule of Adasum along a tree, whose leaves are the workers, or nodes that were combined before.

    .. math:: R = \sum_i w_i \frac{g_i}{s_i}

    A result of the tree is a combination of its leaves, and so is every node on the way; the dot products of two nodes
    follow from those of the leaves. So vectors are folded that have an element for each leaf.

    >>> products = Products(jnp.eye(2), jnp.array([2.0, 4.0]), jnp.ones(2, bool))
    >>> adasum_rule(Tree(2))(products, ())[0]
    Array([2., 4.], dtype=float32)
    """

    def rule(products: Products, state: Any) -> tuple[jax.Array, Any]:
        units = jnp.eye(tree.num_nodes, dtype=products.gram.dtype)
        leaves = _Node(products.scales, jnp.stack([units, products.gram], axis=1), products.unit_norms)
        root = fold(_pair, leaves, tree, add=_add)
        return root.scale * root.rows[0], state

    return rule


def _pair(a: _Node, b: _Node) -> _Node:
    noise = jnp.sqrt(_NOISE_ULPS * jnp.finfo(a.scale.dtype).eps)
    (aw, ad), (bw, bd) = a.rows, b.rows
    uu, vv, uv = jnp.sum(aw * ad), jnp.sum(bw * bd), jnp.sum(aw * bd)
    # A squared norm that is the rounding noise of a vector that cancels out is that of the zero vector: the direction
    # of such a vector is noise too, and Adasum, discontinuous at 0, would take its projection away from whatever it
    # meets; as zero it is only added. So of two gradients that cancel to a residue r (relative to them), the Gram form
    # knows the direction to about eps / r^2, the vectors themselves to eps / r.
    uu = jnp.where(uu < (noise * a.length) ** 2, 0, uu)
    vv = jnp.where(vv < (noise * b.length) ** 2, 0, vv)
    return _combination(a, b, *coefficients(a.scale, b.scale, uv=uv, uu=uu, vv=vv))


def _add(a: _Node, b: _Node) -> _Node:
    return _combination(a, b, a.scale, b.scale)


def _combination(a: _Node, b: _Node, alpha: jax.Array, beta: jax.Array) -> _Node:
    """Returns alpha times the unit of a plus beta times that of b."""
    scale = power_of_two(jnp.maximum(jnp.abs(alpha), jnp.abs(beta)))
    x, y = alpha / nonzero(scale), beta / nonzero(scale)
    length = jnp.abs(x) * a.length + jnp.abs(y) * b.length
    return _Node(scale, x * a.rows + y * b.rows, length)
