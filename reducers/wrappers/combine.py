"""The reducer inside a reducer."""

from typing import Any

import jax
from jax import numpy as jnp

from reducers.collectives import as_own, num_workers
from reducers.record import everybody
from reducers.reducer import Combine, Reducer, as_inner
from reducers.sums.mean import mean


def combiner_of(combine: Combine, axes: tuple[str, ...]) -> Reducer:
    """Returns the reducer that another one wraps; None is ``mean``.

    Raises:
      ValueError: if it is no transformation, or if it does not hand on every update.
    """
    return mean(axes) if combine is None else as_inner(combine, key="combine")


def while_waiting(updates: Any, inner: Any, axes: tuple[str, ...]) -> tuple[Any, Any]:
    """Returns what a wrapper hands on where nothing is due, zeros, and the state that its combiner then has.

    Args:
      updates: of this worker.
      inner: the combiner's state; all workers count until it combines again.
      axes: the worker axes, outer first.
    """
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), updates)
    return nothing, as_own(everybody(inner, num_workers=num_workers(axes)), axes)
