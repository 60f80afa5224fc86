"""LAMB, LARS and the trust ratio of both, whose norms are those of all leaves at once, each computed once."""

import functools

import jax
import optax
from jax import numpy as jnp

from optim.norms import squares
from optim.precision import in_full_precision


@in_full_precision
def scale_by_trust_ratio(
    min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0
) -> optax.GradientTransformation:
    """Returns ``optax.scale_by_trust_ratio``, with the norms of all leaves at once.

    A norm below 1e-19, whose square is no normal number of float32, may count as 0, for which the ratio is 1.

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


@in_full_precision
@functools.wraps(optax.lamb)
def lamb(learning_rate, b1=0.9, b2=0.999, eps=1e-6, eps_root=0.0, weight_decay=0.0, mask=None):  # noqa: D103 - optax's docstring
    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps, eps_root=eps_root),
        optax.add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        optax.scale_by_learning_rate(learning_rate),
    )


@in_full_precision
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
