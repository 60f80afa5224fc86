"""Synchronous SGD with a quorum: the first N gradients, and those that come within a time of grace after them."""

import math

import jax

from reducers.arrivals.order import quorum_arrivals
from reducers.arrived.over_arrived import over_arrived
from reducers.collectives import AxisName
from reducers.options import Count, NonNegative, check_options
from reducers.reducer import Combine, Reducer


def quorum(
    axis_name: AxisName,
    *,
    num_required: Count,
    grace_seconds: NonNegative | None = 0.0,
    combine: Combine = None,
) -> Reducer:
    r"""Combines the first N gradients to arrive, and those that come within a time of grace after the N-th.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{|S|} \sum_{i \in S} g_i, \quad S = \{i : T_i \le T_{(N)} + grace\}

    Args:
      axis_name: the worker axis or axes.
      num_required: N, from 1 to the number of workers.
      grace_seconds: the grace in simulated time; 0 s is ``backup_workers``, None waits for all workers.
      combine: how they are combined: a reducer that takes a mask; None is ``mean``. Configs give a name or a block.

    Returns:
      A reducer. Its update needs ``arrival_seconds`` [n], the same on all workers. Its state has ``metrics``:
      "step_seconds", the end of the time of grace, or less if all workers arrive before it, and "contributors", at
      least N. It also says whether this worker is one of them, and so differs between workers: map it over the worker
      axis.

    Raises:
      ValueError: if ``combine`` cannot leave workers out; and when traced, if N exceeds the number of workers.

    >>> import jax, jax.numpy as jnp
    >>> reducer = quorum("worker", num_required=1, grace_seconds=1.5)
    >>> reduce = lambda g: reducer.update(g, reducer.init(g), arrival_seconds=jnp.array([1.0, 9.0, 2.0]))[0]
    >>> jax.vmap(reduce, axis_name="worker")(jnp.array([1.0, 70.0, 3.0]))
    Array([2., 2., 2.], dtype=float32)

    Reference: the minimum quorum and the grace window of Decoupled DiLoCo, arXiv 2604.21428 (second hand). Differs from
    the paper in: the time of grace is fixed, where the paper adapts it.
    """
    check_options(quorum, num_required=num_required, grace_seconds=grace_seconds)
    grace = float("inf") if grace_seconds is None else grace_seconds
    reducer = over_arrived(
        axis_name,
        combine=combine,
        choose=lambda seconds: quorum_arrivals(seconds, num_required, grace_seconds=grace),
        num_required=num_required if isinstance(grace, float) and grace == 0 else None,
    )
    is_known = not isinstance(num_required, jax.Array) and not isinstance(grace, jax.Array)
    is_over_without_all = is_known and math.isfinite(grace)
    return reducer.like(
        *reducer, takes_weights=reducer.takes_weights, awaits=lambda step, n: num_required if is_over_without_all else n
    )
