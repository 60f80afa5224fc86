"""Clipping by the norm of all leaves together."""

import jax
import optax
from jax import numpy as jnp

from optim.norms import norm, squares
from optim.precision import in_full_precision


@in_full_precision
def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    r"""Returns ``optax.clip_by_global_norm``, with the squared norms of all leaves at once, also of leaves in parts.

    .. math:: g \leftarrow g \min\left(1, \frac{c}{\lVert g \rVert}\right)

    Args:
        max_norm: c.

    Returns:
        The transformation.

    >>> clip = clip_by_global_norm(1.0)
    >>> print(clip.update(jnp.array([3.0, 4.0]), clip.init(None))[0])
    [0.6 0.8]
    """

    def update_fn(updates, state, params=None):
        del params
        length = norm(squares(updates))
        return jax.tree.map(lambda g: jnp.where(length < max_norm, g, g / length * max_norm), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)
