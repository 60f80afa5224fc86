"""Reducers that do not hand on every update at once: their workers stand apart from the shared parameters.

A worker's own parameters are then the shared ones plus its *drift*, what it has done and not handed on yet. The
training step asks the state of such a reducer three things: where a worker evaluates its gradient, whether the shared
parameters, the state of an optimizer after the reducer and the moving average change at all, and where the mean of the
workers' parameters is.
"""

from typing import Any, NamedTuple

import jax


class Apart(NamedTuple):
    """How far a worker stands apart; in the state of every reducer that does not hand on each update at once.

    Attributes:
      due: [] bool, the same on all workers: whether the last update handed anything on. Where it did not, all that is
        shared stays as it is.
      drift: like params, this worker's own: its parameters minus the shared ones; None where it has none.
    """

    due: jax.Array
    drift: Any


def apart(state: Any) -> Apart | None:
    """Returns the record of a reducer whose workers stand apart, wherever it is nested; None for all other reducers.

    >>> from jax import numpy as jnp
    >>> apart(((), {"inner": Apart(due=jnp.array(True), drift=None)})).due
    Array(True, dtype=bool)
    """
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Apart))
    return next((node for node in nodes if isinstance(node, Apart)), None)


def own_params(params: Any, state: Any) -> Any:
    """Returns the parameters at which this worker evaluates its gradient: the shared ones, plus its drift if any.

    Args:
      params: the shared parameters.
      state: of the worker's reducer, or of a chain with it.

    >>> from jax import numpy as jnp
    >>> own_params(jnp.ones(2), Apart(due=jnp.array(False), drift=jnp.array([0.5, 0.0])))
    Array([1.5, 1. ], dtype=float32)
    """
    found = apart(state)
    if found is None or found.drift is None:
        return params
    moved = lambda p, u: p if u is None else (p + u).astype(p.dtype)  # noqa: E731 - integers have no drift
    return jax.tree.map(moved, params, found.drift)
