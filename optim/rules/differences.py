"""Adam whose steps are damped by how little the gradient has changed.

Their further variants, by a cosine, an exponential or random numbers, are missing: too little is known about them.

Reference: Dubey et al., "diffGrad", arXiv 1909.11015 (READ: the authors' code); Nanni, Maguolo, Lumini, "Exploiting
Adam-like optimization algorithms to improve the performance of convolutional neural networks", arXiv 2103.14689.
"""

from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp

from optim.precision import bias_correction, in_full_precision, squarable


class DiffgradState(NamedTuple):
    """State of ``diffgrad``: Adam's, and the gradient before."""

    adam: optax.ScaleByAdamState
    previous: optax.Updates


@in_full_precision
def diffgrad(
    learning_rate: optax.ScalarOrSchedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Adam with each step times a sigmoid of the gradient's change.

    .. math:: x \leftarrow x - \eta \, \frac{1}{1 + e^{-|g_{t-1} - g_t|}} \,
        \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \quad g_0 = 0

    Args:
      learning_rate: rate or schedule.
      b1, b2, eps: those of Adam.

    Returns:
      The transformation. Behind a reducer the difference is that of reduced gradients, the same on all workers.

    >>> optimizer = diffgrad(1.0)
    >>> state = optimizer.init(jnp.zeros(()))
    >>> for _ in range(2):  # of the same gradient: the second step is half of Adam's
    ...   step, state = optimizer.update(jnp.asarray(10.0), state)
    ...   print(step.round(3))
    -1.0
    -0.5

    Reference: arXiv 1909.11015 (READ: the authors' code, its second version; the first compares a gradient with itself,
    and so is Adam at half the rate).
    """

    def init_fn(params):
        return DiffgradState(_adam_init(params), optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None):
        del params
        updates = squarable(updates)
        steps, inner = _adam(updates, state.adam, b1=b1, b2=b2, eps=eps)
        friction = jax.tree.map(lambda old, g: 0.5 + 0.5 * jnp.tanh(0.5 * jnp.abs(old - g)), state.previous, updates)
        return jax.tree.map(jnp.multiply, friction, steps), DiffgradState(inner, updates)

    return optax.chain(optax.GradientTransformation(init_fn, update_fn), optax.scale_by_learning_rate(learning_rate))


@in_full_precision
def dgrad(
    learning_rate: optax.ScalarOrSchedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Adam with each step times a sigmoid of the gradient's distance from the average of its squares.

    .. math:: x \leftarrow x - \eta \, \frac{1}{1 + e^{-4 D / \max D}} \, \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \quad
        D = |g - v|

    Args:
      learning_rate: rate or schedule.
      b1, b2, eps: those of Adam; its v, without correction, is the average, and the maximum is that of a leaf.

    Returns:
      The transformation.

    >>> optimizer = dgrad(1.0)
    >>> updates, _ = optimizer.update(jnp.array([10.0, 0.0]), optimizer.init(jnp.zeros(2)))
    >>> [round(float(update), 3) for update in updates]
    [-0.982, -0.0]

    Reference: arXiv 2103.14689 (MEM: what the difference is taken from, its scale and the factor 4).
    """

    def update_fn(updates, state, params=None):
        del params
        updates = squarable(updates)
        steps, state = _adam(updates, state, b1=b1, b2=b2, eps=eps)

        def damp(step, g, v):
            distance = jnp.abs(g - v)
            most = jnp.max(distance, initial=0.0)
            return step * jax.nn.sigmoid(4 * distance / jnp.where(most == 0, jnp.ones_like(most), most))

        return jax.tree.map(damp, steps, updates, state.nu), state

    return optax.chain(optax.GradientTransformation(_adam_init, update_fn), optax.scale_by_learning_rate(learning_rate))


def _adam_init(params: optax.Params) -> optax.ScaleByAdamState:
    zeros = optax.tree.zeros_like
    return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros(params), zeros(params))


def _adam(
    updates: optax.Updates, state: optax.ScaleByAdamState, *, b1: float, b2: float, eps: float
) -> tuple[optax.Updates, optax.ScaleByAdamState]:
    """Returns Adam's steps, whose corrections hold for decays near 1, where those of optax are 0."""
    count = optax.safe_increment(state.count)
    mean = optax.tree.update_moment(updates, state.mu, b1, 1)
    square = optax.tree.update_moment(updates, state.nu, b2, 2)
    of_mean = bias_correction(b1, count)
    of_square = bias_correction(b2, count)
    steps = jax.tree.map(lambda m, v: m / of_mean / (jnp.sqrt(v / of_square) + eps), mean, square)
    return steps, optax.ScaleByAdamState(count, mean, square)
