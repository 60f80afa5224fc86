"""Adam and Adagrad in the form in which their convergence is proved: see ``optim.bounds``.

Reference: Défossez, Bottou, Bach, Usunier, "A Simple Convergence Proof of Adam and Adagrad", arXiv 2003.02395 (MEM).
"""

from typing import NamedTuple

import jax
import optax
from jax import numpy as jnp

from optim.precision import bias_correction, in_full_precision, squarable


class PlainState(NamedTuple):
    """Sums of gradients and of their squares, each decayed or not."""

    num_updates: jax.Array
    mean: optax.Updates
    square: optax.Updates


@in_full_precision
def adam_plain(
    learning_rate: optax.ScalarOrSchedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Adam without the correction of its momentum, and with epsilon inside of the root.

    .. math:: m \leftarrow \beta_1 m + g, \quad v \leftarrow \beta_2 v + g^2, \quad
        x \leftarrow x - \alpha (1 - \beta_1) \sqrt{\frac{1 - \beta_2^n}{1 - \beta_2}} \, \frac{m}{\sqrt{\epsilon + v}}

    Args:
      learning_rate: :math:`\alpha`, rate or schedule.
      b1: decay of the sum of gradients.
      b2: decay of the sum of squares, below 1.
      eps: added to the sum of squares.

    Returns:
      The transformation.

    >>> optimizer = adam_plain(1.0)
    >>> print(optimizer.update(jnp.array([2.0, -5.0]), optimizer.init(jnp.zeros(2)))[0].round(3))
    [-0.1  0.1]

    Reference: arXiv 2003.02395, section 2 (MEM).
    """
    return optax.chain(_scale(b1=b1, b2=b2, eps=eps), optax.scale_by_learning_rate(learning_rate))


@in_full_precision
def adagrad_plain(
    learning_rate: optax.ScalarOrSchedule, *, b1: float = 0.0, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    r"""Returns Adagrad with momentum, and with epsilon inside of the root.

    .. math:: m \leftarrow \beta_1 m + g, \quad v \leftarrow v + g^2, \quad
        x \leftarrow x - \alpha (1 - \beta_1) \, \frac{m}{\sqrt{\epsilon + v}}

    Args:
      learning_rate: :math:`\alpha`, rate or schedule.
      b1: decay of the sum of gradients.
      eps: added to the sum of squares.

    Returns:
      The transformation.

    >>> optimizer = adagrad_plain(1.0)
    >>> print(optimizer.update(jnp.array([2.0, -5.0]), optimizer.init(jnp.zeros(2)))[0].round(3))
    [-1.  1.]

    Reference: arXiv 2003.02395, section 2 (MEM).
    """
    return optax.chain(_scale(b1=b1, b2=1.0, eps=eps), optax.scale_by_learning_rate(learning_rate))


def _scale(*, b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    def init_fn(params):
        return PlainState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update_fn(updates, state, params=None):
        del params
        count = optax.safe_increment(state.num_updates)
        updates = squarable(updates)
        size = (1 - b1) * (1.0 if b2 == 1 else jnp.sqrt(bias_correction(b2, count) / (1 - b2)))
        mean = jax.tree.map(lambda m, g: b1 * m + g, state.mean, updates)
        square = jax.tree.map(lambda v, g: b2 * v + g**2, state.square, updates)
        steps = jax.tree.map(lambda m, v: size * m / jnp.sqrt(eps + v), mean, square)
        return steps, PlainState(count, mean, square)

    return optax.GradientTransformation(init_fn, update_fn)
