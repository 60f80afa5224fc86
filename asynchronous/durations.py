"""How long each task of each worker takes: blocks of seconds[task, worker], from a table or from an arrival model."""

import functools
from collections.abc import Callable, Iterator
from typing import TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

Durations: TypeAlias = Callable[[int], np.ndarray]
"""``block -> seconds [BLOCK, num_workers]`` of tasks block * BLOCK and on; a block with fewer rows is the last."""

BLOCK = 256  # tasks of each worker that are looked up at a time
_KEPT_BLOCKS = 16


def from_table(seconds: np.ndarray) -> Durations:
    """Reads the durations off a table.

    Args:
      seconds: [T, num_workers], positive; the tasks of a worker down its column.

    >>> from_table(np.ones((300, 2)))(1).shape
    (44, 2)
    """
    table = np.asarray(seconds, np.float64)
    if table.ndim != 2:
        raise ValueError(f"seconds: has shape {table.shape}, must be [tasks, workers]")
    return lambda block: table[block * BLOCK : (block + 1) * BLOCK]


def from_model(arrival_seconds: Callable[[jax.Array], jax.Array]) -> Durations:
    """Takes the durations from an arrival model, those of the c-th task of every worker from its step c.

    Args:
      arrival_seconds: ``step -> seconds [n]``, pure: a model with its key and number of workers.

    >>> from_model(lambda step: jnp.full(2, 1.0 + step))(0)[:2]
    array([[1., 1.],
           [2., 2.]])
    """
    many = jax.jit(jax.vmap(arrival_seconds))
    # Stragglers are blocks behind the others.
    return functools.lru_cache(_KEPT_BLOCKS)(
        lambda block: np.asarray(many(jnp.arange(BLOCK) + block * BLOCK), np.float64)
    )


def of_worker(durations: Durations, worker: int, *, first_task: int) -> Iterator[float]:
    """Yields the seconds of one worker's tasks, from ``first_task`` on.

    Raises:
      ValueError: at a duration that is not positive and finite, and where there are no more.
    """
    task = first_task
    while True:
        column = durations(task // BLOCK)[task % BLOCK :, worker]
        if not len(column):
            raise ValueError(f"seconds: ends before task {task} of worker {worker}")
        wrong = np.flatnonzero(~(np.isfinite(column) & (column > 0)))
        if len(wrong):
            value = column[wrong[0]]
            raise ValueError(f"seconds[{task + wrong[0]}, {worker}]={value}: must be in (0, inf)")
        yield from column.tolist()
        task += len(column)
