"""Arrival times that are independent between workers and steps, of one law for all."""

from typing import Annotated

import jax
from jax import numpy as jnp

Seconds = Annotated[float, "(0, inf)"]


def none():
    """No time passes: all gradients are there at once. For a config that does not model time.

    Returns:
      An arrival model.

    >>> none()(jax.random.key(0), 0, 2)
    Array([0., 0.], dtype=float32)
    """
    return lambda key, step, num_workers: jnp.zeros(num_workers)


def constant(*, seconds: Seconds = 1.0):
    r"""Every worker takes the same time, always.

    .. math:: T = s

    Args:
      seconds: s.

    Returns:
      An arrival model.

    >>> constant(seconds=2.0)(jax.random.key(0), 0, 3)
    Array([2., 2., 2.], dtype=float32)
    """

    def model(key, step, num_workers):
        del key, step
        return jnp.full(num_workers, seconds, jnp.float32)

    return model


def shifted_exponential(*, shift_seconds: Annotated[float, "[0, inf)"] = 1.0, scale_seconds: Seconds = 0.5):
    r"""A least time and an exponential rest.

    .. math:: T = s + E, \quad P(E > t) = e^{-t / \beta}

    Args:
      shift_seconds: s; 0 makes it exponential.
      scale_seconds: beta, the mean of the rest.

    Returns:
      An arrival model.

    >>> bool((shifted_exponential(shift_seconds=3.0)(jax.random.key(0), 0, 9) >= 3).all())
    True

    Reference: the model of Dutta et al., "Slow and stale gradients can win the race", arXiv 1803.01113.
    """

    def model(key, step, num_workers):
        return shift_seconds + scale_seconds * jax.random.exponential(jax.random.fold_in(key, step), (num_workers,))

    return model


def lognormal(*, median_seconds: Seconds = 1.0, sigma: Annotated[float, "[0, inf)"] = 0.1):
    r"""Factors of speed that multiply: a body around the median and, for large sigma, a long tail.

    .. math:: T = m e^{\sigma Z}, \quad Z \sim \mathcal{N}(0, 1)

    Args:
      median_seconds: m.
      sigma: standard deviation of the logarithm; for small values that of T over its mean.

    Returns:
      An arrival model.

    >>> lognormal(median_seconds=1.5, sigma=0.0)(jax.random.key(0), 0, 2)
    Array([1.5, 1.5], dtype=float32)
    """

    def model(key, step, num_workers):
        z = jax.random.normal(jax.random.fold_in(key, step), (num_workers,))
        return median_seconds * jnp.exp(sigma * z)

    return model


def pareto(*, least_seconds: Seconds = 1.0, alpha: Annotated[float, "(1, inf)"] = 3.0):
    r"""A tail that falls as a power: now and then a worker takes a hundred times as long.

    .. math:: P(T > t) = (m / t)^\alpha, \quad t \ge m

    Args:
      least_seconds: m.
      alpha: exponent of the tail; above 1, so that there is a mean. The variance is finite above 2.

    Returns:
      An arrival model. Draws are of float32 and resolve the tail down to a probability of 1e-7.

    >>> bool((pareto(least_seconds=2.0)(jax.random.key(0), 0, 9) >= 2).all())
    True
    """

    def model(key, step, num_workers):
        return least_seconds * jax.random.pareto(jax.random.fold_in(key, step), alpha, (num_workers,))

    return model
