"""Adaptive consensus: each worker weighs as much as its direction agrees with the sum of all gradients."""

import functools
from typing import Annotated, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, axes_of, gather_workers, num_workers, sum_workers
from reducers.options import check_options
from reducers.reducer import Reducer

# Weights that add up to less than this share of their magnitudes add up to nothing but rounding.
_NOISE = 1e-4


class State(NamedTuple):
    """Each worker's own state; it differs between workers.

    Attributes:
      started: [], whether there was a step before.
      average: [], on worker r the moving average of the (r + 1)-th smallest weight, whosever it was.
    """

    started: jax.Array
    average: jax.Array


def adacons(axis_name: AxisName, *, momentum: Annotated[float, "[0, 1)"] = 0.99) -> Reducer:
    r"""Sums the directions of the workers' updates, weighted by how far each agrees with the sum of them all.

    .. math:: R(g_1, \dots, g_n) = \sum_{i=1}^{n} \frac{\bar c_i}{\sum_j \bar c_j} \frac{g_i}{|g_i|}, \qquad
        c_i = \frac{1}{n} \Big\langle \frac{g_i}{|g_i|}, \sum_j g_j \Big\rangle

    where a gradient is that of the whole model, and the average :math:`\bar c` over steps is of ranks, not of workers:
    sorted, then averaged, then each worker takes the average of the rank that its weight has now.

    The result has no scale, whatever that of the gradients: it is of length 1 where all agree, and the learning rate
    alone is the size of a step. Where weights have both signs it can be longer; where they add up to nothing or less
    (less than 1e-4 of their magnitudes), it is zero.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      momentum: rate of the moving average of the weights, which starts from those of the first step; 0 for none.

    Returns:
      A reducer with a state that is each worker's own, two scalars: map it over the worker axis. Dtypes are kept,
      arithmetic is in float32 at least. A zero gradient has weight 0. NaN or Inf of any worker makes all of it NaN,
      and the average with it.

    Raises:
      ValueError: for a momentum outside [0, 1).

    >>> reducer = adacons("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[6.0, 0.0], [0.0, 2.0]]))[0].round(2)
    Array([0.75, 0.25], dtype=float32)

    Reference: Choukroun et al., "Adaptive Consensus Gradients Aggregation for Scaled Distributed Training",
    arXiv 2411.03742; the equations are those of the authors' code. Differs from it in: norms without the 1e-8 that is
    added to them there, so that scales do not matter; weights that do not add up to more than nothing, by which the
    code divides all the same, give zero instead of a step of any length, or against the sum.
    """
    check_options(adacons, momentum=momentum)
    axes = axes_of(axis_name)

    def init_fn(params):
        dtype = jnp.result_type(jnp.float32, *jax.tree.leaves(params))
        return State(started=jnp.zeros((), bool), average=jnp.zeros((), dtype))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        leaves, treedef = jax.tree.flatten(updates)
        wide = [jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32)) for leaf in leaves]
        _, own = _direction(wide)
        length, common = _direction(sum_workers(wide, axes))
        weight = length * _dot(own, common) / num_workers(axes)

        pair = jnp.stack([weight, state.average.astype(weight.dtype)])
        weights, averages = gather_workers(pair, axes).T  # (W,), (W,)
        order = jnp.argsort(weights)  # the worker of each rank
        ranked = weights[order]
        averages = jnp.where(state.started, momentum * averages + (1 - momentum) * ranked, ranked)
        worker = lax.axis_index(axes)
        rank = jnp.argsort(order)[worker]
        total, magnitude = averages.sum(), jnp.abs(averages).sum()
        vanishes = total <= _NOISE * magnitude  # NaN does not
        share = jnp.where(vanishes, 0, averages[rank] / jnp.where(vanishes, 1, total))

        sums = sum_workers([share * leaf for leaf in own], axes)
        sums = [total.astype(jnp.result_type(g)) for total, g in zip(sums, leaves, strict=True)]
        state = State(started=jnp.ones((), bool), average=averages[worker].astype(state.average.dtype))
        return jax.tree.unflatten(treedef, sums), state

    return Reducer(init_fn, update_fn, axis_name=axes)


def _direction(leaves: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
    """Returns length and direction of all leaves as one vector; (0, leaves) for zero.

    The largest element is divided out first, so that no square leaves the range of float32.
    """
    largest = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(x), initial=0.0) for x in leaves], jnp.zeros(()))
    scaled = [x / jnp.where(largest == 0, 1, largest) for x in leaves]
    norm = jnp.sqrt(_dot(scaled, scaled))
    return largest * norm, [x / jnp.where(norm == 0, 1, norm) for x in scaled]


def _dot(a: list[jax.Array], b: list[jax.Array]) -> jax.Array:
    return sum((jnp.vdot(x, y, precision="highest") for x, y in zip(a, b, strict=True)), jnp.zeros(()))
