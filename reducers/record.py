"""The record of the last update that reducers keep in their state: whom it waited for, and whose update it used."""

import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from reducers.collectives import as_own


class Waited(NamedTuple):
    """Which workers the last update waited for; in the state of every reducer that leaves late workers out.

    Attributes:
      contributes: [] int32, 1 if this worker is counted, else 0; it differs between workers.
      metrics: "step_seconds", the simulated duration, and "contributors", how many workers are counted; float32.
    """

    contributes: jax.Array
    metrics: dict[str, jax.Array]


class Used(NamedTuple):
    """Whether the last update used this worker's gradient; in the state of reducers that weigh gradients.

    Attributes:
      used: [] bool; it differs between workers.
    """

    used: jax.Array


def nobody_yet(axes: tuple[str, ...] = ()) -> Waited:
    """Returns the record before the first update, of a worker along these axes."""
    return Waited(
        as_own(jnp.zeros((), jnp.int32), axes),
        dict.fromkeys(("step_seconds", "contributors"), jnp.zeros((), jnp.float32)),
    )


def keep_if(is_kept: jax.Array, new: Any, old: Any) -> Any:
    """Returns the new state if an update is kept, else the old one, but for the record of it: time has passed.

    >>> keep_if(jnp.array(False), {"count": jnp.array(2)}, {"count": jnp.array(1)})
    {'count': Array(1, dtype=int32, weak_type=True)}
    """

    def keep(new, old):
        return new if isinstance(new, Waited | Used) else jnp.where(is_kept, new, old)

    return jax.tree.map(keep, new, old, is_leaf=lambda node: isinstance(node, Waited | Used))


def everybody(state: Any, *, num_workers: int) -> Any:
    """Returns the state with the record of an update that left nobody out, in no time.

    >>> everybody(nobody_yet(), num_workers=2).metrics["contributors"]
    Array(2., dtype=float32)
    """

    def change(node):
        if isinstance(node, Waited):
            metrics = {"step_seconds": jnp.zeros((), jnp.float32), "contributors": jnp.float32(num_workers)}
            return Waited(jnp.ones((), jnp.int32), metrics)
        return Used(jnp.array(True)) if isinstance(node, Used) else node

    return jax.tree.map(change, state, is_leaf=lambda node: isinstance(node, Waited | Used))


def waited(state: Any) -> Waited | None:
    """Returns the record of whom a reducer waited for, wherever it is nested; None if it waits for all workers.

    >>> waited(((), {"inner": nobody_yet()})).metrics["contributors"]
    Array(0., dtype=float32)
    """
    return next((record for record in _records(state) if isinstance(record, Waited)), None)


def counts(state: Any) -> jax.Array | None:
    """Returns whether the last update counts this worker, [] bool: it arrived in time, and its gradient was used.

    Args:
      state: of a reducer, or of a chain of transformations.

    Returns:
      None for a reducer that counts all workers.

    >>> counts(((), Used(jnp.array(False))))
    Array(False, dtype=bool)
    """
    found = [record.contributes > 0 if isinstance(record, Waited) else record.used for record in _records(state)]
    return functools.reduce(jnp.logical_and, found) if found else None


def _records(state: Any) -> list[Waited | Used]:
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Waited | Used))
    return [leaf for leaf in leaves if isinstance(leaf, Waited | Used)]
