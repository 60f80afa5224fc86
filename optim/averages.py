"""Averages of parameters, at which runs are evaluated: a moving one, and that of a schedule-free optimizer.

Early in a run an average with decay 0.9999 would be almost only the initial parameters. TensorFlow's
`ExponentialMovingAverage(decay, num_updates=t)` therefore uses min(decay, (1 + t) / (10 + t)), and so do the models of
Revisiting Distributed Synchronous SGD, with t the global step.

A schedule-free optimizer computes gradients at y, an interpolation of its own iterates z and of their average x. The
parameters of a run are y; x is better, and is what remains in place of a decaying learning rate.

Reference: Defazio et al., The Road Less Scheduled, arXiv 2405.15682; optax.contrib.schedule_free.
"""

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from reducers.dtypes import wide, wide_dtype


def ema_rate(num_updates: jax.typing.ArrayLike, *, decay: float) -> jax.Array:
    """Returns 1 - min(decay, (1 + t) / (10 + t)) for t updates made, float32, in which a decay near 1 would be 1.

    >>> [round(float(ema_rate(t, decay=0.9)), 4) for t in (0, 1, 79, 80, 81)]
    [0.9, 0.8182, 0.1011, 0.1, 0.1]
    """
    made = jnp.asarray(num_updates, jnp.float32)
    return jnp.maximum(jnp.float32(1 - decay), 9 / (10 + made))


def ema(
    average: optax.Params, params: optax.Params, *, num_updates: jax.typing.ArrayLike, decay: float
) -> optax.Params:
    """Moves the average towards the parameters.

    average <- average + (1 - d) * (params - average),  d = min(decay, (1 + t) / (10 + t))

    Args:
        average: the average so far, a pytree like ``params``; at first the initial parameters.
        params: the parameters after the update just made.
        num_updates: t, updates made, including this one: ``step + 1`` for a step that counts from 0. May be traced.
        decay: the decay that is reached after about 9 / (1 - decay) updates, in [0, 1).

    Returns:
        The new average. Each leaf keeps its dtype; the arithmetic is at least float32. An average held in bfloat16
        stands still once (1 - d) times the difference is below its rounding, so keep averages in float32. Leaves that
        are not floating point (counters) are copied from ``params``.

    >>> float(ema(jnp.zeros(()), jnp.ones(()), num_updates=80, decay=0.5))
    0.5

    Reference: tf.train.ExponentialMovingAverage with num_updates (tensorflow/python/training/moving_averages.py).
    """
    part = ema_rate(num_updates, decay=decay)

    def move(old, new):
        if not jnp.issubdtype(old.dtype, jnp.floating):
            return new.astype(old.dtype)
        moved = wide(old) + part.astype(wide_dtype(old)) * (wide(new) - wide(old))
        return moved.astype(old.dtype)

    return jax.tree.map(move, average, params)


def schedule_free_state(opt_state: optax.OptState) -> contrib.ScheduleFreeState | None:
    """Returns the state of a schedule-free optimizer, which may be a part of a chain; None if there is none.

    >>> schedule_free_state(optax.sgd(0.1).init({"w": 0.0})) is None
    True
    """

    def is_one(node):
        return isinstance(node, contrib.ScheduleFreeState)

    return next(filter(is_one, jax.tree.leaves(opt_state, is_leaf=is_one)), None)


def schedule_free(opt_state: optax.OptState, params: optax.Params) -> optax.Params | None:
    r"""Returns the average of a schedule-free optimizer; None for any other optimizer.

    .. math:: x = \frac{y - (1 - \beta_1) z}{\beta_1}

    Args:
        opt_state: after an update.
        params: y, the parameters after it.
    """
    state = schedule_free_state(opt_state)
    return None if state is None else contrib.schedule_free_eval_params(state, params)
