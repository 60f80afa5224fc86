"""Adasum in the space of coefficients: the tree is folded over dot products alone."""

import functools

import jax
import numpy as np
from jax import numpy as jnp

from reducers.adasum.pair import coefficients
from reducers.adasum.tree import Tree
from reducers.gram.products import Products, Rule
from reducers.gram.scales import NOISE_ULPS, nonzero, power_of_two


def adasum_weights(products: Products, *, tree: Tree) -> jax.Array:
    r"""Returns the weights of Adasum along a tree, from the dot products of the nodes at its leaves.

    .. math:: R = \sum_i w_i \frac{g_i}{s_i}

    A result of the tree is a combination of its leaves, and so is every node on the way; the dot products of two nodes
    follow from those of the leaves. So each level is a list of scales, units and the Gram matrix of these units. A unit
    keeps its scale apart, because dot products with it would leave the range of float32, and the direction of a tiny
    gradient still matters: it takes away the projection of a huge one.

    Args:
      products: of the leaves of the tree, n of them.
      tree: over the n leaves, in groups or not.

    Returns:
      [n], weights of the units.

    >>> adasum_weights(Products(jnp.eye(2), jnp.array([2.0, 4.0]), jnp.ones(2, bool)), tree=Tree(2))
    Array([2., 4.], dtype=float32)
    """
    terms = products.unit_norms  # the length that a node would have if nothing cancelled
    if tree.adds:
        groups, shares = _sums_of_groups(products, tree.group_size)
        terms = (shares * terms.reshape(shares.shape)).sum(1)
        return (_fold(groups, terms, tree=tree.above(tree.group_size))[:, None] * shares).ravel()
    return _fold(products, terms, tree=tree)


def _fold(products: Products, terms: jax.Array, *, tree: Tree) -> jax.Array:
    """Returns the weights along a tree whose groups are added up already, or folded.

    Args:
      products: of its leaves.
      terms: [n], the norms that their units would have if nothing cancelled in the sums that they are.
      tree: over the n leaves.
    """
    scale, gram = products.scales, products.gram
    places = tree.places()
    if is_padded := len(places) > tree.num_nodes:
        # Leaves of a perfect tree, with zero vectors where a node goes up unpaired.
        scale, terms = (jnp.pad(x, (0, 1))[places] for x in (scale, terms))
        gram = jnp.pad(gram, (0, 1))[places[:, None], places]
    weights = jnp.ones_like(scale)  # of each leaf in the unit of its node
    noise = jnp.sqrt(NOISE_ULPS * jnp.finfo(gram.dtype).eps)
    while (num_pairs := len(scale) // 2) > 0:
        blocks = gram.reshape(num_pairs, 2, num_pairs, 2)
        own = jnp.where(jnp.eye(num_pairs, dtype=bool)[:, None, :, None], blocks, 0).sum(2)  # [pairs, 2, 2]
        uu, vv, uv = own[:, 0, 0], own[:, 1, 1], own[:, 0, 1]
        of_pairs = terms.reshape(num_pairs, 2)
        # A squared norm that is the rounding noise of a vector that cancels out is that of the zero vector: the
        # direction of such a vector is noise too, and Adasum, discontinuous at 0, would take its projection away from
        # whatever it meets; as zero it is only added. So of two gradients that cancel to a residue r (relative to
        # them), the Gram form knows the direction to about eps / r^2, the vectors themselves to eps / r.
        uu = jnp.where(uu < (noise * of_pairs[:, 0]) ** 2, 0, uu)
        vv = jnp.where(vv < (noise * of_pairs[:, 1]) ** 2, 0, vv)
        s_a, s_b = scale.reshape(num_pairs, 2).T
        alpha, beta = coefficients(s_a, s_b, uv=uv, uu=uu, vv=vv)
        scale = power_of_two(jnp.maximum(jnp.abs(alpha), jnp.abs(beta)))  # [pairs]
        shares = jnp.stack([alpha, beta], axis=-1) / nonzero(scale)[:, None]  # [pairs, 2]
        gram = (shares[None] * (shares[..., None, None] * blocks).sum(1)).sum(-1)  # [pairs, pairs]
        terms = (jnp.abs(shares) * of_pairs).sum(-1)
        weights = (weights.reshape(num_pairs, 2, -1) * shares[..., None]).ravel()
    weights = scale[0] * weights
    return weights[np.argsort(places, kind="stable")[: tree.num_nodes]] if is_padded else weights


@functools.cache
def adasum_rule(tree: Tree) -> Rule:
    """Returns ``adasum_weights`` as a rule without a state; for the same tree always the same function."""
    return lambda products, state: (adasum_weights(products, tree=tree), state)


def _sums_of_groups(products: Products, size: int) -> tuple[Products, jax.Array]:
    """Returns the products of the sums of groups, and the weight of each unit in its sum's unit, [groups, size]."""
    scales = products.scales.reshape(-1, size)
    largest = scales.max(1)
    shares = scales / nonzero(largest)[:, None]
    blocks = products.gram.reshape(*shares.shape, *shares.shape)
    gram = jnp.einsum("ai,aibj,bj->ab", shares, blocks, shares, precision="highest")
    return Products(gram, largest, products.counted.reshape(-1, size).any(1)), shares
