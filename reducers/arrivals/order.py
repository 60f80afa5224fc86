"""Order statistics of arrival times: which workers a step counts, and how long it takes.

All functions depend on the seconds alone, give all workers the same result, and may be called in a traced program.
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from reducers.dtypes import wide


class Arrived(NamedTuple):
    """The workers that a step counts, and its duration.

    Attributes:
      contributes: [W] bool, whether each worker is counted.
      step_seconds: [], the time of the update.
    """

    contributes: jax.Array
    step_seconds: jax.Array


def ranks(seconds: jax.Array) -> jax.Array:
    """Returns each worker's place in the order of arrival, from 0; ties are broken by index.

    >>> ranks(jnp.array([3.0, 1.0, 3.0, 2.0]))
    Array([2, 0, 3, 1], dtype=int32)
    """
    return jnp.argsort(jnp.argsort(seconds, stable=True))


def first_arrivals(seconds: jax.Array, num_required: int | jax.Array) -> Arrived:
    r"""Counts the first N of W arrivals: exactly N, ties broken by index.

    .. math:: step = T_{(N)}, \quad T_{(1)} \le \dots \le T_{(W)}

    Args:
      seconds: [W].
      num_required: N, at least 1 and at most W; a traced N is not checked.

    Returns:
      ``Arrived``: a bool per worker, and the N-th order statistic.

    Raises:
      ValueError: if N exceeds W.

    >>> first_arrivals(jnp.array([2.0, 9.0, 1.0, 2.0]), 2)
    Arrived(contributes=Array([ True, False,  True, False], dtype=bool), step_seconds=Array(2., dtype=float32))

    Reference: Chen et al., arXiv 1604.00981, the synchronous algorithm with backup workers.
    """
    num_workers = len(seconds)
    if not isinstance(num_required, jax.Array) and num_required > num_workers:
        raise ValueError(f"num_required={num_required}: exceeds num_workers={num_workers}")
    return Arrived(ranks(seconds) < num_required, jnp.sort(seconds)[jnp.asarray(num_required) - 1])


def quorum_arrivals(seconds: jax.Array, num_required: int | jax.Array, *, grace_seconds: float | jax.Array) -> Arrived:
    r"""Counts the first N of W arrivals, and whoever else comes within a time of grace after the N-th.

    .. math:: step = \min(T_{(N)} + grace, T_{(W)})

    Args:
      seconds: [W].
      num_required: N, at least 1 and at most W; a traced N is not checked.
      grace_seconds: 0 s is ``first_arrivals``; infinity waits for everyone who comes at all.

    Returns:
      ``Arrived``: a bool per worker, and the time of the update, which is over as soon as all workers are there.

    Raises:
      ValueError: if N exceeds W.

    >>> quorum_arrivals(jnp.array([2.0, 9.0, 1.0, 2.5]), 2, grace_seconds=1.0)
    Arrived(contributes=Array([ True, False,  True,  True], dtype=bool), step_seconds=Array(3., dtype=float32))
    """
    first = first_arrivals(seconds, num_required)
    end = first.step_seconds + grace_seconds
    in_time = jnp.isfinite(seconds) & (seconds <= end) & (jnp.asarray(grace_seconds) > 0)  # 0 s: ties go by index
    return Arrived(first.contributes | in_time, jnp.minimum(end, jnp.max(seconds)))


def deadline_arrivals(seconds: jax.Array, deadline_seconds: float | jax.Array) -> Arrived:
    """Counts the workers that arrive by a deadline, and at least the first one.

    Args:
      seconds: [W].
      deadline_seconds: the deadline; an arrival at that very moment is counted.

    Returns:
      ``Arrived``: a bool per worker, and the time of the update. That is the last arrival if all workers arrive before
      the deadline, the first arrival if none does, and else the deadline. If none does, the first worker is counted,
      ties broken by index.

    >>> deadline_arrivals(jnp.array([2.0, 9.0, 1.0]), 4.0)
    Arrived(contributes=Array([ True, False,  True], dtype=bool), step_seconds=Array(4., dtype=float32))
    """
    seconds = wide(seconds)
    first = jnp.min(seconds)
    in_time = seconds <= deadline_seconds
    step_seconds = jnp.clip(jnp.asarray(deadline_seconds, seconds.dtype), first, jnp.max(seconds))
    return Arrived(in_time | (ranks(seconds) == 0), step_seconds)
