"""Adam whose steps are damped by how little the gradient has changed.

Their further variants, by a cosine, an exponential or random numbers, are known too badly to be built, and are missing.

Reference: Dubey et al., "diffGrad", arXiv 1909.11015 (READ: the authors' code); Nanni, Maguolo, Lumini, "Exploiting
Adam-like optimization algorithms to improve the performance of convolutional neural networks", arXiv 2103.14689.
"""

from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp

from reducers.dtypes import mixing_dtypes


class DiffgradState(NamedTuple):
    """State of ``diffgrad``: Adam's, and the gradient before."""

    adam: optax.ScaleByAdamState
    previous: optax.Updates


def diffgrad(
    learning_rate: optax.ScalarOrSchedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Adam with each step times a sigmoid of the gradient's change.

    .. math:: x \leftarrow x - \eta \, \frac{1}{1 + e^{-|g_{t-1} - g_t|}} \,
        \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \quad g_0 = 0

    Args:
      learning_rate: rate or schedule.
      b1, b2, eps: as of Adam.

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
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)

    def init_fn(params):
        return DiffgradState(adam.init(params), optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None):
        del params
        steps, inner = mixing_dtypes(adam.update)(updates, state.adam)
        friction = jax.tree.map(lambda old, g: 0.5 + 0.5 * jnp.tanh(0.5 * jnp.abs(old - g)), state.previous, updates)
        return jax.tree.map(jnp.multiply, friction, steps), DiffgradState(inner, updates)

    return optax.chain(optax.GradientTransformation(init_fn, update_fn), optax.scale_by_learning_rate(learning_rate))


def dgrad(
    learning_rate: optax.ScalarOrSchedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Adam with each step times a sigmoid of the gradient's distance from the average of its squares.

    .. math:: x \leftarrow x - \eta \, \frac{1}{1 + e^{-4 D / \max D}} \, \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \quad
        D = |g - v|

    Args:
      learning_rate: rate or schedule.
      b1, b2, eps: as of Adam; its v, without correction, is the average, and the maximum is that of a leaf.

    Returns:
      The transformation.

    >>> optimizer = dgrad(1.0)
    >>> updates, _ = optimizer.update(jnp.array([10.0, 0.0]), optimizer.init(jnp.zeros(2)))
    >>> [round(float(update), 3) for update in updates]
    [-0.982, -0.0]

    Reference: arXiv 2103.14689 (MEM: what the difference is taken from, its scale and the factor 4).
    """
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)

    def update_fn(updates, state, params=None):
        del params
        steps, state = mixing_dtypes(adam.update)(updates, state)

        def damp(step: jax.Array, g: jax.Array, v: jax.Array) -> jax.Array:
            distance = jnp.abs(g - v)
            most = jnp.max(distance, initial=0.0)
            return step * jax.nn.sigmoid(4 * distance / jnp.where(most == 0, jnp.ones_like(most), most))

        return jax.tree.map(damp, steps, updates, state.nu), state

    return optax.chain(optax.GradientTransformation(adam.init, update_fn), optax.scale_by_learning_rate(learning_rate))
