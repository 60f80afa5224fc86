"""Reducers made of another one, over the workers that arrived: what backup workers and the deadline share."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

import reducers
from reducers.arrivals.order import Arrived
from reducers.axes import AxisName, num_workers

# Reducers whose update takes arrival_seconds.
WAITING = frozenset({"backup_workers", "deadline", "dynamic_backup_workers", "k_batch"})


class Waited(NamedTuple):
    """Whom the last update waited for; a part of the state of every reducer that leaves late workers out.

    Attributes:
      contributes: [] int32, how many batches of this worker are counted, 0 or 1 for all but ``k_batch``.
      metrics: "step_seconds", the simulated duration, and "contributors", how many workers are counted; float32.
    """

    contributes: jax.Array
    metrics: dict[str, jax.Array]


class ArrivedState(NamedTuple):
    """State of a reducer over those who arrived.

    Attributes:
      combine: state of the reducer that combines them.
      waited: whom the last update waited for.
    """

    combine: Any
    waited: Waited


def over_arrived(
    axis_name: AxisName,
    *,
    combine: Mapping | str,
    choose: Callable[[jax.Array], Arrived],
    num_required: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns the reducer ``combine`` over the workers that ``choose`` counts.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      combine: name of a reducer whose update takes ``contributes``, or a block {"name": ..., option: value}.
      choose: seconds [W] -> ``Arrived``.
      num_required: how many it counts, where that is known. If it is all, they are combined without a mask, in the very
        program of the reducer alone, and so to the same bits.

    Returns:
      A reducer whose update needs ``arrival_seconds`` [W], the same on all workers.

    Raises:
      ValueError: for a block that makes no sense, or a reducer that cannot leave workers out.
    """
    combiner = reducers.REDUCERS.build(combine, where="combine", axis_name=axis_name)
    if "contributes" not in inspect.signature(combiner.update).parameters:
        name = combine if isinstance(combine, str) else combine["name"]
        raise ValueError(f"combine={name!r}: its update takes no 'contributes', so it cannot leave workers out")

    def init_fn(params):
        return ArrivedState(combiner.init(params), nobody_yet())

    def update_fn(updates, state, params=None, *, arrival_seconds, **extra_args):
        arrived = choose(check_seconds(arrival_seconds, axis_name=axis_name))
        waited = waited_for(arrived, axis_name=axis_name)
        if num_required != num_workers(axis_name):
            extra_args |= {"contributes": waited.contributes > 0}
        updates, combined = combiner.update(updates, state.combine, params, **extra_args)
        return updates, ArrivedState(combined, waited)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def check_seconds(arrival_seconds: jax.Array, *, axis_name: AxisName) -> jax.Array:
    """Returns the seconds, [W] or [C, W]; raises ValueError if they are of another number of workers."""
    arrival_seconds = jnp.asarray(arrival_seconds)
    if arrival_seconds.shape[-1:] != (num_workers(axis_name),):
        shape = list(arrival_seconds.shape)
        raise ValueError(f"arrival_seconds: of shape {shape}, must be of num_workers={num_workers(axis_name)}")
    return arrival_seconds


def nobody_yet() -> Waited:
    """Before the first update."""
    return Waited(jnp.zeros((), jnp.int32), {"step_seconds": jnp.zeros(()), "contributors": jnp.zeros(())})


def waited_for(arrived: Arrived, *, axis_name: AxisName) -> Waited:
    """Returns what one worker keeps of who arrived; a worker counts once, however many batches it made."""
    contributes = arrived.contributes.astype(jnp.int32)
    contributors = jnp.sum(contributes > 0, dtype=jnp.float32)
    metrics = {"step_seconds": arrived.step_seconds.astype(jnp.float32), "contributors": contributors}
    return Waited(contributes[lax.axis_index(axis_name)], metrics)


def waited(state: Any) -> Waited | None:
    """Returns whom a reducer waited for, from its state, wherever it is nested; None if it waits for all.

    >>> waited((optax.EmptyState(), ArrivedState((), nobody_yet()))).metrics["contributors"]
    Array(0., dtype=float32)
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Waited))
    return next((leaf for leaf in leaves if isinstance(leaf, Waited)), None)


def num_counted(reducer: Mapping | str, *, num_workers: int) -> int:
    """Returns how many workers' batches each update counts, where a block's rule fixes it; else all.

    >>> num_counted({"name": "stale", "combine": {"name": "backup_workers", "num_required": 6}}, num_workers=8)
    6
    >>> num_counted({"name": "deadline", "deadline_seconds": 2.0}, num_workers=8)  # at most
    8
    """
    block = {} if isinstance(reducer, str) else reducer
    fixed = block.get("num_required", block.get("num_batches"))
    if fixed is None:
        return num_counted(block["combine"], num_workers=num_workers) if "combine" in block else num_workers
    return fixed


def needs_arrivals(reducer: Mapping | str) -> bool:
    """Tells whether the update of a block's reducer, or of what it combines with, takes ``arrival_seconds``.

    >>> needs_arrivals("mean"), needs_arrivals({"name": "stale", "combine": {"name": "deadline"}})
    (False, True)
    """
    block = {"name": reducer} if isinstance(reducer, str) else reducer
    return block["name"] in WAITING or ("combine" in block and needs_arrivals(block["combine"]))
