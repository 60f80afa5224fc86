"""Synchronous SGD with backup workers: the first N of N + b gradients are used, the others dropped."""

import jax

from reducers.arrivals.order import first_arrivals
from reducers.arrived.over_arrived import over_arrived
from reducers.collectives import AxisName
from reducers.options import Count, check_options
from reducers.reducer import Combine, Reducer


def backup_workers(axis_name: AxisName, *, num_required: Count, combine: Combine = None) -> Reducer:
    r"""Combines the first N gradients to arrive; those of the b workers that come later are dropped, never reused.

    .. math:: R(g_1, \dots, g_{N+b}) = \frac{1}{N} \sum_{i \in S} g_i, \quad S = \{i : T_i \text{ among the first } N\}

    Exactly N are counted, ties broken by the worker's index; N = n is plain synchronous SGD. Every worker computes a
    gradient and takes part in the reduction: the program simulates who would have come in time, and how long it takes.

    Args:
      axis_name: the worker axis or axes.
      num_required: N, from 1 to the number of workers.
      combine: how the N are combined: a reducer that takes a mask, such as ``adasum(axis_name)``; None is ``mean``.
        Configs give its name, or a block such as {"name": "adasum", "granularity": "model"}.

    Returns:
      A reducer. Its update needs ``arrival_seconds`` [n], the same on all workers. Its state has
      ``metrics``: "step_seconds", the N-th order statistic, and "contributors", N. It also says whether this worker is
      one of the N, and so differs between workers: map it over the worker axis.

    Raises:
      ValueError: if ``combine`` cannot leave workers out; and when traced, if N exceeds the number of workers.

    >>> from jax import numpy as jnp
    >>> reducer = backup_workers("worker", num_required=2)
    >>> reduce = lambda g: reducer.update(g, reducer.init(g), arrival_seconds=jnp.array([1.0, 9.0, 2.0]))[0]
    >>> jax.vmap(reduce, axis_name="worker")(jnp.array([1.0, jnp.nan, 3.0]))
    Array([2., 2., 2.], dtype=float32)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, the
    synchronous algorithm with backup workers. Differs from the paper in: one set of workers for all variables, where
    parameter servers each took their first N; workers compute in lock-step, on simulated time.
    """
    check_options(backup_workers, num_required=num_required)
    return over_arrived(
        axis_name,
        combine=combine,
        choose=lambda seconds: first_arrivals(seconds, num_required),
        num_required=None if isinstance(num_required, jax.Array) else num_required,
    )
