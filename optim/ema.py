"""Exponential moving average of parameters, with a decay that starts low.

Early in a run an average with decay 0.9999 would be almost only the initial parameters. TensorFlow's
`ExponentialMovingAverage(decay, num_updates=t)` therefore uses min(decay, (1 + t) / (10 + t)), and so do the models of
Revisiting Distributed Synchronous SGD, with t the global step.
"""

import jax
import jax.numpy as jnp
import optax

from reducers.dtypes import wide, wide_dtype


def effective_decay(num_updates: jax.typing.ArrayLike, *, decay: float) -> jax.Array:
    """Returns min(decay, (1 + t) / (10 + t)) for t updates made, float32.

    >>> [round(float(effective_decay(t, decay=0.9)), 4) for t in (0, 1, 79, 80, 81)]
    [0.1, 0.1818, 0.8989, 0.9, 0.9]
    """
    made = jnp.asarray(num_updates, jnp.float32)
    return jnp.minimum(jnp.float32(decay), (1 + made) / (10 + made))


def update(ema: optax.Params, params: optax.Params, *, num_updates: jax.typing.ArrayLike, decay: float) -> optax.Params:
    """Moves the average towards the parameters.

    ema <- ema + (1 - d) * (params - ema),  d = min(decay, (1 + t) / (10 + t))

    Args:
        ema: the average so far, a pytree like ``params``; at first the initial parameters.
        params: the parameters after the update just made.
        num_updates: t, updates made, including this one: ``step + 1`` for a step that counts from 0. May be traced.
        decay: the decay that is reached after about 9 / (1 - decay) updates, in [0, 1).

    Returns:
        The new average. Each leaf keeps its dtype; the arithmetic is at least float32. An average held in bfloat16
        stands still once (1 - d) times the difference is below its rounding, so keep averages in float32. Leaves that
        are not floating point (counters) are copied from ``params``.

    Raises:
        ValueError: if ``decay`` is outside [0, 1).

    >>> float(update(jnp.zeros(()), jnp.ones(()), num_updates=80, decay=0.5))
    0.5

    Reference: tf.train.ExponentialMovingAverage with num_updates (tensorflow/python/training/moving_averages.py).
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay={decay}: must be in [0, 1)")
    rate = 1 - effective_decay(num_updates, decay=decay)

    def move(average: jax.Array, new: jax.Array) -> jax.Array:
        if not jnp.issubdtype(average.dtype, jnp.floating):
            return new.astype(average.dtype)
        moved = wide(average) + rate.astype(wide_dtype(average)) * (wide(new) - wide(average))
        return moved.astype(average.dtype)

    return jax.tree.map(move, ema, params)
