"""Adaptive consensus: each worker weighs as much as its direction agrees with the sum of all gradients."""

from typing import NamedTuple, Unpack

import jax
import optax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import unit
from reducers.options import Fraction, check_options
from reducers.reducer import Reducer

# Weights that add up to less than this share of their magnitudes add up to nothing but rounding.
_NOISE = 1e-4


class Average(NamedTuple):
    """Each worker's own state; it differs between workers.

    Attributes:
      started: whether there was a step before.
      average: on worker r the moving average of the (r + 1)-th smallest weight, whichever worker had it.
    """

    started: jax.Array
    average: jax.Array


@takes_gram_options
def adacons(
    axis_name: AxisName,
    *,
    momentum: Fraction = 0.99,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Sums the directions of the workers' updates, weighted by how far each agrees with the sum of them all.

    .. math:: R(g_1, \dots, g_n) = \sum_{i=1}^{n} \frac{\bar c_i}{\sum_j \bar c_j} \frac{g_i}{|g_i|}, \qquad
        c_i = \frac{1}{n} \Big\langle \frac{g_i}{|g_i|}, \sum_j g_j \Big\rangle

    where the average :math:`\bar c` over steps is of ranks, not of workers: sorted, then averaged, then each worker
    takes the average of the rank that its weight has now.

    The result does not scale with the gradients: its length is 1 where all agree, and the learning rate alone sets the
    size of a step. Where weights have both signs it can be longer; where they add up to less than 1e-4 of their
    magnitudes, it is zero.

    Args:
      axis_name: the worker axis or axes, lanes last.
      momentum: rate of the moving average of the weights of a rank, which starts at the first step with so many
        workers; 0 for none.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``, two scalars of which are each worker's own: map it over the worker axis. Its update
      takes ``contributes``, optional: a bool of each worker, whether it is counted; the ranks are then those of the
      workers that are, the first of all ranks, and the averages of the others stay. A zero gradient has weight 0. NaN
      or Inf of a worker that counts makes its group NaN; the averages stay as they were.

    Raises:
      ValueError: for a momentum outside [0, 1).

    >>> reducer = adacons("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[6.0, 0.0], [0.0, 2.0]]))[0].round(2)
    Array([0.75, 0.25], dtype=float32)

    Reference: Choukroun et al., "Adaptive Consensus Gradients Aggregation for Scaled Distributed Training",
    arXiv 2411.03742; the equations are those of the authors' code. Differs from it in: norms without the 1e-8 that is
    added to them there, so that scales do not matter; weights that do not add up to more than 0 give zero, where the
    code divides by their sum and makes a step of any length, or backwards; a worker takes the average of its rank,
    where the code takes that at the place of the worker with its rank, which for two workers is the same.
    """
    check_options(adacons, momentum=momentum)

    def rule(products, state):
        counted = products.counted
        count = products.counted.sum()
        directions = products.directions
        largest = products.scales.max()
        weights = largest * (directions * (products.gram @ products.relative_scales)) / products.num_counted
        weights = jnp.clip(weights, -jnp.finfo(weights.dtype).max, jnp.finfo(weights.dtype).max)

        order = jnp.argsort(jnp.where(counted, weights, jnp.inf))  # the worker of each rank
        ranked = weights[order]
        averaged = jnp.where(state.started, momentum * state.average + (1 - momentum) * ranked, ranked)
        averages = jnp.where(jnp.arange(len(order)) < count, averaged, state.average)
        _, own = unit(jnp.where(counted, averages[jnp.argsort(order)], 0))
        total = own.sum()
        magnitude = jnp.abs(own).sum()
        vanishes = total <= _NOISE * magnitude  # NaN does not
        consensus = jnp.where(vanishes, 0, own / jnp.where(vanishes, 1, total))
        after = Average(state.started | (jnp.arange(len(order)) < count), averages)
        return consensus * directions, optax.tree.where(products.all_finite, after, state)

    def init(dtype):
        return Average(started=jnp.zeros((), bool), average=jnp.zeros((), dtype))

    return from_gram(axis_name, rule, init=init, homogeneous=False, **options)
