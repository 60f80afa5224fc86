"""Lanes in groups that go one after another: one group's activations are in memory, and idle groups are skipped."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from parallel.layout import split_by_axes


def in_groups(
    compute: Callable[[Any, Any, Any], Any],
    *,
    lanes: int,
    lanes_at_once: int,
    state_axes: Any,
    is_idle: Callable[[Any], Any] | None = None,
) -> Callable[[Any, Any, Any, Any], Any]:
    """Returns the work of all lanes of one device, ``(state, batch, resident, inputs) -> gradient``, [L, ...].

    There are as few groups as possible, all of one size, so that they share a program. If the size does not divide the
    lanes, the last group computes some lanes of the group before it once more.

    Args:
      compute: the work of some lanes at once, ``(state, batch, resident) -> gradient``, without collectives.
      lanes: L.
      lanes_at_once: the most lanes of a group.
      state_axes: prefix of the state's tree: None where state is shared, 0 where each lane has its own.
      is_idle: ``inputs -> [L]`` bool; a group whose lanes are all idle is not computed, and its work is zeros.
    """
    count = -(-lanes // lanes_at_once)
    size = -(-lanes // count)

    @jax.jit  # traced once, for the shapes of its work and for the loop
    def group(state, batch, resident, first):
        own = split_by_axes(state, state_axes, shared=lambda tree: tree, per_worker=lambda tree: part(tree, first))
        return compute(own, part(batch, first), resident)

    def part(tree, first):
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, size), tree)

    def call(state, batch, resident, inputs):
        if count == 1:
            return compute(state, batch, resident)
        shapes = jax.eval_shape(group, state, batch, resident, 0)

        def zeros(*arguments):
            del arguments
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def take(i, work):
            first = jnp.minimum(i * size, lanes - size)
            given = (state, batch, resident, first)
            if is_idle is None:
                of_group = group(*given)
            else:
                of_group = lax.cond(part(is_idle(inputs), first).all(), zeros, group, *given)
            return jax.tree.map(lambda all_, x: lax.dynamic_update_slice_in_dim(all_, x, first, 0), work, of_group)

        work = jax.tree.map(lambda x: jnp.zeros((lanes, *x.shape[1:]), x.dtype), shapes)
        return lax.fori_loop(0, count, take, work)

    return call
