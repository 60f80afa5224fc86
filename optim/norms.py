"""Norms of the leaves of a tree, and optimizers that need them: LAMB, LARS and others with a trust ratio a layer.

optax computes the norm of one leaf after another, and each of a trust ratio twice. On an accelerator each is a kernel,
or two: 400 leaves of BERT-Large are 1,600. Here rows are summed leaf by leaf, and leaves with as many rows together.
"""

import functools
from typing import Any

import jax
import optax
from jax import numpy as jnp

from reducers.dtypes import as_real, common_dtype, wide


def squares(tree: Any) -> jax.Array:
    """Returns the squared norm of each leaf, [L] in float32 at least.

    >>> squares({"a": jnp.array([3.0, 4.0]), "b": jnp.ones(())})
    Array([25.,  1.], dtype=float32)
    """
    rows = [_row_squares(leaf) for leaf in jax.tree.leaves(tree)]
    dtype = common_dtype(jnp.float32, *(row.dtype for row in rows))
    alike: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(row.size, []).append(i)
    sums = {
        i: x for group in alike.values() for i, x in zip(group, _sums([rows[i] for i in group], dtype), strict=True)
    }
    return jnp.stack([sums[i] for i in range(len(rows))]) if rows else jnp.zeros(0)


def norm(of_leaves: jax.Array) -> jax.Array:
    """Returns the norm of a tree from the ``squares`` of its leaves."""
    return jnp.sqrt(of_leaves.sum())


def _row_squares(leaf: jax.Array) -> jax.Array:
    x = as_real(wide(jnp.asarray(leaf)))
    return jnp.square(x).sum(-1).reshape(-1) if x.ndim > 1 else jnp.square(x).reshape(-1)


def _sums(rows, dtype):
    return jnp.stack([row.astype(dtype) for row in rows]).sum(-1)


# ---- trust ratios ------------------------------------------------------------------------------------------------


def scale_by_trust_ratio(
    min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0
) -> optax.GradientTransformation:
    """Returns ``optax.scale_by_trust_ratio``, with the norms of all leaves at once.

    Args:
        min_norm: the least norm of a leaf and of its update.
        trust_coefficient: the factor of the ratio.
        eps: added to the update's norm.

    Returns:
        The transformation.
    """

    def update_fn(updates, state, params):
        if params is None:
            raise ValueError("scale_by_trust_ratio: needs the parameters")
        of_params, of_updates = (jnp.maximum(jnp.sqrt(squares(tree)), min_norm) for tree in (params, updates))
        ratios = jnp.where((of_params == 0) | (of_updates == 0), 1, trust_coefficient * of_params / (of_updates + eps))
        leaves, structure = jax.tree.flatten(updates)
        scaled = [leaf * ratio.astype(leaf.dtype) for leaf, ratio in zip(leaves, ratios, strict=True)]
        return jax.tree.unflatten(structure, scaled), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


@functools.wraps(optax.lamb)
def lamb(learning_rate, b1=0.9, b2=0.999, eps=1e-6, eps_root=0.0, weight_decay=0.0, mask=None):  # noqa: D103 - optax's docstring
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps, eps_root=eps_root),
        optax.add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        optax.scale_by_learning_rate(learning_rate),
    )


@functools.wraps(optax.lars)
def lars(  # noqa: D103 - optax's docstring
    learning_rate,
    weight_decay=0.0,
    weight_decay_mask=True,
    trust_coefficient=0.001,
    eps=0.0,
    trust_ratio_mask=True,
    momentum=0.9,
    nesterov=False,
):
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask=weight_decay_mask),
        optax.masked(scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps), mask=trust_ratio_mask),
        optax.scale_by_learning_rate(learning_rate),
        optax.trace(decay=momentum, nesterov=nesterov),
    )
