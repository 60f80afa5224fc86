"""Synchronous SGD on the first K mini-batches, whichever workers computed them."""

from typing import Annotated, NamedTuple

import jax
from jax import numpy as jnp

from reducers.arrivals.order import k_batch_arrivals
from reducers.arrived.over_arrived import waited_for
from reducers.clock import check_seconds
from reducers.collectives import AxisName, axes_of, sum_workers
from reducers.options import check_options
from reducers.record import Waited, nobody_yet
from reducers.reducer import Reducer


class KBatchState(NamedTuple):
    """State of ``k_batch``: which workers the last update waited for."""

    waited: Waited


def k_batch(axis_name: AxisName, *, num_batches: Annotated[int, "[1, inf)"]) -> Reducer:
    r"""Averages the first K mini-batches to arrive; a worker that is done begins another one at once.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{K} \sum_{w=1}^{n} c_w g_w, \quad \sum_w c_w = K

    where :math:`c_w` is how many batches of worker w arrive among the first K, and :math:`g_w` the mean gradient over
    its first :math:`c_w` batches. A step of the program computes C batches on every worker, in micro-batches, and this
    is the reduction after them; the program that accumulates a worker's batches finds :math:`c_w` by
    ``k_batch_arrivals`` of the same seconds, and leaves the later ones out. With one batch a worker, C = 1, as in this
    project's trainer, it is ``backup_workers``.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      num_batches: K, from 1 to C times the number of workers.

    Returns:
      A reducer; dtypes are kept. Its update needs ``arrival_seconds`` [C, n], or [n] for C = 1, the same on all
      workers: the time that each batch takes. Its state has ``metrics``: "step_seconds", when the K-th arrives, and
      "contributors", the workers of which at least one batch is counted. It also says how many of this worker's are,
      and so differs between workers: map it over the worker axis.

    Raises:
      ValueError: for K below 1; and when traced, if it exceeds C n.

    >>> reducer = k_batch("worker", num_batches=3)
    >>> seconds = jnp.array([[1.0, 3.0], [1.0, 3.0]])  # worker 0 makes two batches while worker 1 makes one
    >>> reduce = lambda g: reducer.update(g, reducer.init(g), arrival_seconds=seconds)[0]
    >>> jax.vmap(reduce, axis_name="worker")(jnp.array([3.0, 6.0]))
    Array([4., 4.], dtype=float32)

    Reference: K-batch-sync of Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race:
    Error-Runtime Trade-offs in Distributed SGD", arXiv 1803.01113. Differs from the paper in: at most C batches of one
    worker; a C of at least K loses none.
    """
    check_options(k_batch, num_batches=num_batches)
    axes = axes_of(axis_name)

    def init_fn(params):
        del params
        return KBatchState(nobody_yet(axes))

    def update_fn(updates, state, params=None, *, arrival_seconds, **extra_args):
        del state, params, extra_args
        seconds = jnp.atleast_2d(check_seconds(arrival_seconds, axis_name=axes, of_batches=True))
        waited = waited_for(k_batch_arrivals(seconds, num_batches), axis_name=axes)
        count = waited.contributes

        weighed = jax.tree.map(lambda g: g * count.astype(g.dtype), updates)
        totals = sum_workers(weighed, axes, where=count > 0)
        average = jax.tree.map(lambda t: (t / jnp.asarray(num_batches, t.dtype)).astype(t.dtype), totals)
        return average, KBatchState(waited)

    counted = None if isinstance(num_batches, jax.Array) else num_batches
    return Reducer(
        init_fn,
        update_fn,
        axis_name=axes,
        needs_arrivals=True,
        homogeneous=True,
        num_counted=counted,
        numbers="inexact",
    )
