"""Late workers that finish what they began: a worker that a step left out begins the next one when it is done.

A worker works at one gradient at a time, and cannot be interrupted. If the step ends before, the gradient is dropped
when it is done, and the worker begins the gradient of the step that is open then.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from reducers import REDUCERS
from reducers.arrivals import replays_arrivals
from reducers.registry import Block, name_of

Array = TypeVar("Array", jax.Array, np.ndarray)
LateWorkers = Literal["finish", "interrupt"]


def by_default(reducer: Block) -> LateWorkers:
    """Returns what late workers do by default: they finish if the reducer leaves workers out of steps.

    They are interrupted if nobody can be late, or if the reducer leaves workers out of whole rounds. A user's own
    reducer is assumed to leave workers out.

    Args:
      reducer: a valid ``config.reducer``.

    >>> by_default({"name": "stale", "combine": {"name": "backup_workers", "num_required": 3}}), by_default("adasum")
    ('finish', 'interrupt')
    """
    return "finish" if _leaves_out(reducer) else "interrupt"


def _leaves_out(reducer: Block | None) -> bool:
    """Returns whether a reducer, or one inside it, leaves workers out of steps."""
    if reducer is None:  # the mean
        return False
    name = name_of(reducer)
    room = REDUCERS.find(name).__module__
    if room.startswith("reducers.local."):
        return False
    if room.startswith("reducers.arrived.") or not room.startswith("reducers."):
        return True
    return isinstance(reducer, Mapping) and any(_leaves_out(reducer.get(key)) for key in REDUCERS.held(name))


def finish(config: Any) -> bool:
    """Returns whether a config's late workers finish what they began; recorded arrivals stay as they are."""
    return config.late_workers == "finish" and not replays_arrivals(**config.arrivals)


def arrivals(free_at: jax.Array | None, durations: jax.Array) -> jax.Array:
    r"""Returns when the workers' gradients of a step arrive, from its start, [W].

    .. math:: T_w = f_w + d_w

    Args:
      free_at: [W], when each worker has finished a gradient of an earlier step; None if all begin together.
      durations: [W], how long each takes for its gradient.
    """
    return durations if free_at is None else free_at + durations


def free_after(free_at: Array, durations: Array, step_seconds: Array) -> Array:
    r"""Returns ``free_at`` of the next step, [W]: how long each worker goes on with the gradient that it has begun.

    .. math:: f_w \leftarrow \begin{cases} f_w - S & \text{if } f_w \ge S \\ \max(f_w + d_w - S, 0) & \text{else}
        \end{cases}

    In the first case the worker has not begun the step's gradient. A worker that never finishes stays away. Arrays are
    all JAX's, or all NumPy's.

    Args:
      free_at: [W], value at this step.
      durations: [W], durations of the step's gradients.
      step_seconds: [], S, duration of the step.

    >>> free_after(np.array([0.0, 0.0, 5.0, 1.0]), np.array([1.0, 9.0, 1.0, 2.0]), np.array(2.0))
    array([0., 7., 3., 1.])

    Reference: the synchronous optimizer of TensorFlow, which drops gradients of an earlier step; Chen et al., arXiv
    1604.00981, ran with it.
    """
    of = free_at.__array_namespace__()
    after = of.maximum(free_at + durations - step_seconds, 0)
    return of.where(free_at >= step_seconds, free_at - step_seconds, after)
