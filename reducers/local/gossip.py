"""Gossip: each worker averages its parameters with those of a few neighbours, and nothing is shared by all."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.clock import own_seconds
from reducers.collectives import AxisName, agreed, axes_of, map_together, num_workers, shift_workers
from reducers.local.drift import after_update, before_updates
from reducers.options import check_options
from reducers.reducer import Reducer
from reducers.state import moved, zeros_like
from reducers.sums.mean import mean

Topology = Literal["complete", "exponential", "one_peer_exponential", "ring"]
Order = Literal["adapt_then_combine", "combine_then_adapt"]


def gossip(axis_name: AxisName, *, topology: Topology = "ring", order: Order = "combine_then_adapt") -> Reducer:
    r"""Averages each worker's parameters with those of its neighbours in every update; the shared ones stay.

    .. math::
        u_i &\leftarrow \sum_j W_{ij} u_j + d_i & &\text{combine\_then\_adapt} \\
        u_i &\leftarrow \sum_j W_{ij} (u_j + d_j) & &\text{adapt\_then\_combine}

    with a worker's parameters :math:`z + u_i`, the shared z at which all began, the update :math:`d_i` of its own
    optimizer, and W doubly stochastic: 1 / (degree + 1) for a worker itself and for each neighbour. Neighbours are
    those at some distances along the circle of n workers:

    * ``ring``: one step in either direction;
    * ``exponential``: 1, 2, 4, ..., below n;
    * ``one_peer_exponential``: one of these distances in each update, in turn; for n a power of two all workers agree
      after log2 n updates without progress of their own;
    * ``complete``: all, by an all-reduce.

    The reducer stands after the optimizer. A worker evaluates its gradient at ``reducers.own_params(params, state)``,
    and runs are evaluated at the mean of these.

    Args:
      axis_name: the worker axis or axes.
      topology: which workers are neighbours.
      order: "combine_then_adapt" is D-PSGD, whose messages can be sent while gradients are computed.

    Returns:
      A reducer whose result is always zero, and whose ``DriftState`` holds one copy of the parameters of each worker:
      map it over the worker axis. A worker sends its parameters to each neighbour; a distance takes at most two
      permutations between devices, and none within one. Given ``arrival_seconds`` [n], it keeps each worker's clock: a
      worker waits for its neighbours alone.

    >>> reducer = gossip("worker", topology="complete", order="adapt_then_combine")
    >>> one = lambda update: reducer.update(update, reducer.init(update))[1].report.drift
    >>> jax.vmap(one, axis_name="worker")(jnp.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", arXiv 1705.09056 (MEM);
    weights and graphs: code of Assran, Loizou, Ballas, Rabbat, arXiv 1811.10792 (READ). Differs from the paper in:
    graphs are circulant, all workers at once.
    """
    check_options(gossip, topology=topology, order=order)
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, arrival_seconds=None, **extra_args):
        del params, extra_args
        step = agreed(state.num_updates, axes)

        drift = state.report.drift if order == "combine_then_adapt" else moved(state.report.drift, updates)
        drift = _mix(drift, step, topology=topology, axes=axes)
        drift = moved(drift, updates) if order == "combine_then_adapt" else drift

        clock = state.seconds
        own = own_seconds(arrival_seconds, axes)
        if arrival_seconds is not None:
            meet = lambda clock: _meet(clock, step, topology=topology, axes=axes)  # noqa: E731
            clock = jnp.maximum(clock + own, meet(clock)) if order == "combine_then_adapt" else meet(clock + own)
        never = jnp.array(False)
        always = jnp.array(True)
        given = arrival_seconds is not None
        state = after_update(state, drift, clock, emitted=never, met=always, given=given, axes=axes)
        return zeros_like(updates, axes), state

    return Reducer(
        functools.partial(before_updates, axes=axes),
        update_fn,
        axis_name=axes,
        homogeneous=True,
        reduces="updates",
        local_workers="always",
        numbers="inexact",
    )


def distances(topology: Topology, num_workers: int) -> list[list[int]]:
    """Returns the distances to a worker's neighbours, for each update in turn.

    >>> distances("ring", 8), distances("exponential", 6), distances("one_peer_exponential", 8)
    ([[1, 7]], [[1, 2, 4]], [[1], [2], [4]])
    """
    powers = [1 << bit for bit in range((num_workers - 1).bit_length())]
    found = {
        "complete": [list(range(1, num_workers))],
        "exponential": [powers],
        "one_peer_exponential": [[power] for power in powers] or [[]],
        "ring": [sorted({1, num_workers - 1} - {0} if num_workers > 1 else set())],
    }
    return found[topology]


def _mix(tree: Any, step: jax.Array, *, topology: Topology, axes: tuple[str, ...]) -> Any:
    """Returns the mean over this worker and its neighbours of every array of a tree."""
    if topology == "complete":
        return mean(axes).update(tree, optax.EmptyState())[0]

    def average(tree, neighbours):
        def of_leaf(x):
            total = sum((shift_workers(x, distance, axes) for distance in neighbours), x)
            return (total / (len(neighbours) + 1)).astype(x.dtype)

        return map_together(of_leaf, tree, axis_name=axes)

    return _with_neighbours(average, tree, step, topology=topology, axes=axes)


def _meet(clock: jax.Array, step: jax.Array, *, topology: Topology, axes: tuple[str, ...]) -> jax.Array:
    """Returns the latest of the clocks of this worker and its neighbours."""
    if topology == "complete":
        return lax.pmax(clock, axes)

    def latest(clock, neighbours):
        return functools.reduce(jnp.maximum, (shift_workers(clock, d, axes) for d in neighbours), clock)

    return _with_neighbours(latest, clock, step, topology=topology, axes=axes)


def _with_neighbours(
    combine: Callable[..., Any], tree: Any, step: jax.Array, *, topology: Topology, axes: tuple[str, ...]
) -> Any:
    """Applies ``combine(tree, neighbours)`` to the distances of this update's neighbours."""
    of_updates = distances(topology, num_workers(axes))
    in_turn = [functools.partial(combine, neighbours=neighbours) for neighbours in of_updates]
    return in_turn[0](tree) if len(in_turn) == 1 else lax.switch(step % len(in_turn), in_turn, tree)
