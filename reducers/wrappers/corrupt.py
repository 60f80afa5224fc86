"""Workers that send something else than their gradients, to test how a reducer copes."""

from typing import Any, Literal, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, num_workers, sum_workers
from reducers.collectives.backend import each
from reducers.options import check_options
from reducers.reducer import Combine, Reducer
from reducers.sums.mean import combiner_of

GARBAGE = 1e6


class CorruptState(NamedTuple):
    """State of ``corrupt``: the number of updates, and the state of the reducer inside it."""

    num_updates: jax.Array
    combine: Any


def corrupt(
    axis_name: AxisName,
    *,
    workers: tuple[int, ...] = (0,),
    how: Literal["garbage", "nan", "copy", "flip"] = "garbage",
    combine: Combine = None,
) -> Reducer:
    r"""Lets some workers send something else than their gradients, before another reducer combines them all.

    .. math:: R'(g_1, \dots, g_n) = R(h_1, \dots, h_n), \qquad h_i = \begin{cases} \mathrm{corrupt}(g_i) &
        i \in \mathrm{workers} \\ g_i & \text{else} \end{cases}

    Args:
      axis_name: the worker axis or axes.
      workers: the indices of these workers.
      how: what they send: "garbage", normal numbers times a million (in float16 mostly infinities), drawn anew for each
        worker and update; "nan"; a "copy" of the gradient of the first worker that is not among them; or "flip", the
        negative gradient.
      combine: a reducer; None is ``mean``.

    Returns:
      A reducer with the facts of ``combine``; with garbage, which has a scale of its own, it is not homogeneous.

    Raises:
      ValueError: for an unknown ``how``; when traced, for a worker that does not exist, or if no worker stays honest.

    >>> reducer = corrupt("worker", workers=(2,), how="flip")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 1.0, 4.0]))[0]
    Array(-0.6666667, dtype=float32)

    Reference: the attacks of the literature on Byzantine workers; values as this project's tests need them.
    """
    check_options(corrupt, workers=workers, how=how)
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)

    def init_fn(params):
        return CorruptState(jnp.zeros((), jnp.int32), combiner.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        worker = lax.axis_index(axes)
        count = num_workers(axes)
        if beyond := [w for w in workers if not 0 <= w < count]:
            raise ValueError(f"workers={workers}: {beyond[0]} is none of the {count} workers")
        honest = next((w for w in range(count) if w not in workers), None)
        if honest is None:
            raise ValueError(f"workers={workers}: leaves none of the {count} workers as it is")
        is_corrupt = (worker == jnp.array(workers, jnp.int32)).any()
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), state.num_updates), worker)
        leaves, treedef = jax.tree.flatten(updates)
        if how == "copy":
            sent = sum_workers(leaves, axes, where=worker == honest)
        elif how == "garbage":
            keys = jax.random.split(key, len(leaves))
            sent = each(lambda k, g: GARBAGE * jax.random.normal(k, jnp.shape(g)), list(keys), leaves)
        else:
            sent = [-g if how == "flip" else jnp.full_like(g, jnp.nan) for g in leaves]
        given = [
            jnp.where(is_corrupt, x.astype(g.dtype), g) if g.size else g for x, g in zip(sent, leaves, strict=True)
        ]
        result, inner = combiner.update(jax.tree.unflatten(treedef, given), state.combine, params, **extra_args)
        return result, CorruptState(state.num_updates + 1, inner)

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=combiner.takes_mask,
        takes_weights=combiner.takes_weights,
        homogeneous=combiner.homogeneous and how != "garbage",
        numbers="inexact",
    )
