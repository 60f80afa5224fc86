"""The toy polynomial of Horovod's guide to Adasum: steps until SGD has found its coefficients."""

import jax
import numpy as np
from jax import numpy as jnp

import reducers

COEFFICIENTS = {"square": (1.0, -20.0, 50.0), "cubic": (10.0, 5.0, -20.0, -5.0)}  # the first one is not fitted
START = (1.0, -1.0, 1.0)
NUM_STEPS, NOT_STOPPED = 50, 100  # the script's own count of a run that does not stop
DIVERGED = 1e3  # coefficients that are this large are lost
RATES = [round(0.01 * i, 2) for i in range(10, 160)]
REDUCERS = ("mean", "adasum")
LABELS = {"mean": "averaging", "adasum": "Adasum"}


def samples_of_numpy(seed: int, *, x_max: float) -> jax.Array:
    """Returns the samples that the guide's script draws, [steps, 2], in [-x_max, x_max].

    Args:
      seed: s takes NumPy's seeds 1 + 2 s and 2 + 2 s; those of 0 are the guide's own samples.
      x_max: the largest sample.
    """
    draws = [np.random.RandomState(1 + 2 * seed + rank).rand(NUM_STEPS) for rank in range(2)]
    return jnp.float32(2 * x_max * np.stack(draws, axis=1) - x_max)


def steps_to_stop(x: jax.Array, rates: jax.Array, *, polynomial: str, reducer: str) -> jax.Array:
    """Fits the polynomial by SGD, from the script's start, on one sample a worker and step.

    Args:
      x: samples, [steps, workers].
      rates: learning rates, [R].
      polynomial: which one.
      reducer: by name.

    Returns:
      The first step with two combined gradients of 0 in a row, [R]; like the script, 100 for a run that does not stop.
    """
    true = jnp.array(COEFFICIENTS[polynomial])
    combine = reducers.make(reducer, axis_name="worker")

    def value(params, x):
        coefficients = [true[0], *params]
        powers = [jnp.ones_like(x)]
        for _ in params:
            powers.append(powers[-1] * x)
        return sum(c * power for c, power in zip(coefficients, reversed(powers), strict=True))

    def combined(params, x):
        gradient = jax.grad(lambda params: (value(params, x) - value(true[1:], x)) ** 2)(params)
        return combine.update(gradient, combine.init(gradient))[0]

    over_workers = jax.vmap(combined, in_axes=(None, 0), out_axes=None, axis_name="worker")

    def one_rate(rate):
        def step(state, x):
            params, zero_before, stopped, count = state
            gradient = over_workers(params, x)
            # A run that diverges ends in zeros, too, at the end of float32's range.
            zero = jnp.all(gradient == 0) & jnp.all(jnp.abs(params) < DIVERGED)
            count = jnp.where(stopped, count, count + 1)
            return (params - rate * gradient, zero, stopped | (zero & zero_before), count), None

        start = jnp.array(START[: len(true) - 1]), jnp.array(False), jnp.array(False), jnp.array(0)
        count = jax.lax.scan(step, start, x)[0][3]
        return jnp.where(count >= len(x), NOT_STOPPED, count)

    return jax.vmap(one_rate)(rates)


def percent_fewer(steps: float, *, than: float) -> float:
    """Returns how many per cent fewer steps one run needs than another.

    >>> percent_fewer(23, than=46)
    50.0
    """
    return 100 * (1 - steps / than)
