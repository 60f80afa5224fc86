"""A worker's own clock, for reducers whose workers do not meet in every update.

All clocks are in seconds since the time that the run has reached: the latest of all workers' clocks, when none can be
left out. So they stay small, however long the run is.
"""

import jax
from jax import lax
from jax import numpy as jnp


def own_seconds(arrival_seconds: jax.Array | None, axes: tuple[str, ...]) -> jax.Array:
    """Returns how long this worker takes for its update, [] float32; 0 where no arrival times are given.

    Args:
      arrival_seconds: [W], the same on all workers; or None.
      axes: the worker axes, outer first.
    """
    if arrival_seconds is None:
        return jnp.zeros(())
    return jnp.asarray(arrival_seconds, jnp.float32)[lax.axis_index(axes)]


def latest(clock: jax.Array, axes: tuple[str, ...], *, given: bool) -> jax.Array:
    """Returns the latest of all workers' clocks; 0, and sends nothing, where no arrival times are ``given``."""
    return lax.pmax(clock, axes) if given else jnp.zeros(())
