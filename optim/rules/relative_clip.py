"""Relative global clipping: SGD with decay for scale-invariant networks, whose gradients are bounded by their norm.

The function that such a network computes depends on the direction of its parameters alone. Gradients then shrink as the
parameters grow, decay and gradients hold the norm in balance, and a gradient that is large beside that balance is cut.

Reference: Li, Bhojanapalli, Zaheer, Reddi, Kumar, "Robust Training of Neural Networks Using Scale Invariant
Architectures", arXiv 2202.00980 (READ: the formula from its prose).
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import optax
from jax import numpy as jnp

from optim.frozen import matching
from optim.precision import in_full_precision
from optim.schedules import rate_at
from reducers.gram.scales import common_scale, nonzero, norm_over
from reducers.leaves import leaf_names
from reducers.options import Positive


@in_full_precision
def relative_clip(
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: Positive = 0.01,
    sqrt_c: Annotated[float, "[1, inf)"] = 2.0,
    mask: str = "",
    rest: Literal["sgd", "lamb"] = "sgd",
) -> optax.GradientTransformationExtraArgs:
    r"""Returns SGD with decay whose gradient is at most sqrt(C) times as long as in equilibrium.

    .. math:: x \leftarrow (1 - \eta \lambda) x
        - \eta g \min\left(1, \sqrt{2 C \lambda / \eta} \, \lVert x \rVert / \lVert g \rVert\right)

    Args:
      learning_rate: :math:`\eta`, rate or schedule.
      weight_decay: :math:`\lambda`, which the rate multiplies.
      sqrt_c: :math:`\sqrt C`; ``math.inf``, or 1e30 in a config, is SGD with decay.
      mask: a regular expression that is found in the names of the scale-invariant leaves, such as "Dense_0/kernel"; ""
        is all leaves. Norms are over all of them together. A scale-invariant model has it as ``invariant_leaves``.
      rest: what updates the other leaves: "sgd" with the same rate and decay, or "lamb" with the same rate.

    Returns:
      The transformation. Behind a reducer all workers see one gradient, and cut it alike.

    Raises:
      ValueError: one line, if ``mask`` matches no leaf or is not a regular expression.

    >>> optimizer = relative_clip(0.5, weight_decay=0.01)
    >>> x, g = jnp.array([3.0, 4.0]), jnp.array([0.0, 100.0])
    >>> print(optimizer.update(g, optimizer.init(x), x)[0])  # the gradient is cut to 2 * sqrt(0.04) * 5 = 2
    [-0.015 -1.02 ]

    Reference: arXiv 2202.00980 (READ: the formula from its prose).
    Differs from the paper in: the other leaves may take SGD; LAMB takes the same schedule as the invariant leaves.
    """
    scaled = optax.chain(optax.add_decayed_weights(weight_decay), optax.scale_by_learning_rate(learning_rate))
    clipped = scaled
    if not math.isinf(sqrt_c):
        clipped = optax.chain(_clip(learning_rate, weight_decay=weight_decay, sqrt_c=sqrt_c), scaled)
    if not mask:
        return optax.with_extra_args_support(clipped)
    others = {"sgd": scaled, "lamb": optax.lamb(learning_rate)}[rest]
    return optax.partition({"invariant": clipped, "rest": others}, _labels(mask))


def _clip(learning_rate: optax.ScalarOrSchedule, *, weight_decay: float, sqrt_c: float) -> optax.GradientTransformation:
    def init_fn(params):
        del params
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params):
        # Gradients and parameters of any length: both norms are over powers of two, so that no square overflows.
        scale, scale_of_params = (nonzero(common_scale(jax.tree.leaves(tree))) for tree in (updates, params))
        norm = norm_over(scale, jax.tree.leaves(updates))
        norm_of_params = norm_over(scale_of_params, jax.tree.leaves(params))
        equilibrium = jnp.sqrt(2 * weight_decay / rate_at(learning_rate, state.count))
        most = sqrt_c * equilibrium * norm_of_params * scale_of_params
        is_cut = norm > most / scale
        length = most / jnp.where(is_cut, norm, 1)
        cut = jax.tree.map(lambda g: jnp.where(is_cut, g / scale * length, g).astype(g.dtype), updates)
        return cut, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init_fn, update_fn)


def _labels(pattern: str) -> Callable[[Any], Any]:
    """Returns a function from parameters to "invariant" or "rest" for each leaf."""

    def labels(params):
        try:
            found = matching(leaf_names(params), pattern)
        except ValueError as error:
            raise ValueError(f"mask={error}") from None
        labelled = ["invariant" if is_one else "rest" for is_one in found]
        return jax.tree.unflatten(jax.tree.structure(params), labelled)

    return labels
