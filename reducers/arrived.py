"""Reducers made of another one, over the workers that arrived: what backup workers and the deadline share."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

import reducers
from reducers import blocks
from reducers.arrivals.order import Arrived
from reducers.axes import AxisName, num_workers


class ArrivedState(NamedTuple):
    """State of a reducer over those who arrived.

    Attributes:
      combine: state of the reducer that combines them.
      metrics: of the last update: "step_seconds", its simulated duration, and "contributors", how many were counted.
    """

    combine: Any
    metrics: dict[str, jax.Array]


def over_arrived(
    axis_name: AxisName, *, combine: Mapping | str, choose: Callable[[jax.Array], Arrived]
) -> optax.GradientTransformationExtraArgs:
    """Returns the reducer ``combine`` over the workers that ``choose`` counts.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      combine: name of a reducer whose update takes ``contributes``, or a block {"name": ..., option: value}.
      choose: seconds [W] -> ``Arrived``.

    Returns:
      A reducer whose update needs ``arrival_seconds`` [W], the same on all workers.

    Raises:
      ValueError: for a block that makes no sense, or a reducer that cannot leave workers out.
    """
    combiner = blocks.build(combine, lookup=reducers.lookup, key="combine", axis_name=axis_name)
    if "contributes" not in inspect.signature(combiner.update).parameters:
        name = combine if isinstance(combine, str) else combine["name"]
        raise ValueError(f"combine={name!r}: its update takes no 'contributes', so it cannot leave workers out")

    def init_fn(params):
        return ArrivedState(combiner.init(params), metrics_of(Arrived(jnp.zeros(1), jnp.zeros(()))))

    def update_fn(updates, state, params=None, *, arrival_seconds, **extra_args):
        arrived = choose(check_seconds(arrival_seconds, axis_name=axis_name))
        extra_args |= {"contributes": arrived.contributes[lax.axis_index(axis_name)]}
        updates, combined = combiner.update(updates, state.combine, params, **extra_args)
        return updates, ArrivedState(combined, metrics_of(arrived))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def check_seconds(arrival_seconds: jax.Array, *, axis_name: AxisName) -> jax.Array:
    """Returns the seconds, [W] or [C, W]; raises ValueError if they are of another number of workers."""
    arrival_seconds = jnp.asarray(arrival_seconds)
    if arrival_seconds.shape[-1:] != (num_workers(axis_name),):
        shape = list(arrival_seconds.shape)
        raise ValueError(f"arrival_seconds: of shape {shape}, must be of num_workers={num_workers(axis_name)}")
    return arrival_seconds


def metrics_of(arrived: Arrived) -> dict[str, jax.Array]:
    """The numbers of a step that a record shows, float32; a worker counts once, however many batches it made."""
    contributors = jnp.sum(arrived.contributes > 0, dtype=jnp.float32)
    return {"step_seconds": arrived.step_seconds.astype(jnp.float32), "contributors": contributors}
