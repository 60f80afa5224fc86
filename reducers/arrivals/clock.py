"""A worker's own clock, for reducers whose workers do not meet in every update.

All clocks are in seconds since the time that the run has reached: the latest of all workers' clocks, when none can be
left out. So they stay small, however long the run is.
"""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, num_workers
from reducers.dtypes import wide
from reducers.options import in_one_line


def check_seconds(arrival_seconds: Any, *, axis_name: AxisName) -> jax.Array:
    """Returns the seconds of all workers, [W] in float32 at least.

    Args:
      arrival_seconds: real numbers, 0 or more; inf for a worker that never arrives.
      axis_name: the worker axis or axes.

    Raises:
      ValueError: for another number of workers, or a known value that is negative, NaN or not a real number.

    >>> jax.vmap(lambda x: check_seconds([1, 2], axis_name="worker"), axis_name="worker")(jnp.zeros(2))[0]
    Array([1., 2.], dtype=float32)
    """
    count = num_workers(axis_name)
    seconds = jnp.asarray(arrival_seconds)
    if seconds.shape != (count,):
        raise ValueError(f"arrival_seconds: of shape {list(seconds.shape)}, must be of num_workers={count}")
    given = f"arrival_seconds={in_one_line(arrival_seconds)}"
    if not jnp.issubdtype(seconds.dtype, jnp.integer) and not jnp.issubdtype(seconds.dtype, jnp.floating):
        raise ValueError(f"{given}: must be seconds, not {seconds.dtype}")
    if not isinstance(seconds, jax.core.Tracer) and not (np.asarray(seconds) >= 0).all():
        raise ValueError(f"{given}: must be seconds from 0 on")
    return wide(seconds)


def own_seconds(arrival_seconds: jax.Array | None, axes: tuple[str, ...]) -> jax.Array:
    """Returns how long this worker takes for its update, [] float32; 0 where no arrival times are given.

    Args:
      arrival_seconds: [W], the same on all workers; or None.
      axes: the worker axes, outer first.
    """
    if arrival_seconds is None:
        return jnp.zeros((), jnp.float32)
    return check_seconds(arrival_seconds, axis_name=axes).astype(jnp.float32)[lax.axis_index(axes)]


def latest(clock: jax.Array, axes: tuple[str, ...], *, given: bool) -> jax.Array:
    """Returns the latest of all workers' clocks; 0, and sends nothing, where no arrival times are ``given``."""
    return lax.pmax(clock, axes) if given else jnp.zeros((), jnp.float32)


def of_round(
    seconds: jax.Array,
    *,
    is_sync_step: jax.Array,
    round_steps: jax.Array,
    leaves_out: bool,
    given: bool,
    axes: tuple[str, ...],
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Returns the time metrics of a step of a round, and this worker's clock after it; all meet at the round's end.

    Args:
      seconds: [] float32, this worker's clock; where workers may be left out, since its round began.
      is_sync_step: [] bool, whether the round ends here.
      round_steps: [] int32, its steps, if it does.
      leaves_out: whether the reducer at its end leaves workers out, and reports the time of the round itself.
      given: whether arrival times are given.
      axes: the worker axes, outer first.

    Returns:
      The metrics and the clock. The metric is "steps_decided", the number of steps for which it is now known which
      workers are left out, or "step_seconds", by how much the latest worker's clock advanced.
    """
    if leaves_out:
        decided = jnp.where(is_sync_step, round_steps, 0).astype(jnp.float32)
        return {"steps_decided": decided}, jnp.where(is_sync_step, 0, seconds)
    passed = latest(seconds, axes, given=given)
    return {"step_seconds": passed}, jnp.where(is_sync_step, 0, seconds - passed)


def first_of_round(*, leaves_out: bool) -> dict[str, jax.Array]:
    """Returns the metrics of ``of_round`` before the first step."""
    return {"steps_decided" if leaves_out else "step_seconds": jnp.zeros((), jnp.float32)}
