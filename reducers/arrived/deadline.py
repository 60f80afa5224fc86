"""Synchronous SGD with a time limit: the workers that arrive by then are counted."""

from reducers.arrivals.order import deadline_arrivals
from reducers.arrived.over_arrived import over_arrived
from reducers.collectives import AxisName
from reducers.options import Positive, check_options
from reducers.reducer import Combine, Reducer


def deadline(axis_name: AxisName, *, deadline_seconds: Positive, combine: Combine = None) -> Reducer:
    r"""Combines the gradients that arrive by a time limit, at least the first one; later ones are dropped.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{|S|} \sum_{i \in S} g_i, \quad S = \{i : T_i \le D\}

    Args:
      axis_name: the worker axis or axes.
      deadline_seconds: D, of simulated time, from the start of the step.
      combine: how they are combined: a reducer that takes a mask; None is ``mean``. Configs give a name or a block.

    Returns:
      A reducer. Its update needs ``arrival_seconds`` [n], the same on all workers. Its state has ``metrics``:
      "step_seconds", which is D, or less if all arrive before it, or the first arrival if none does; and
      "contributors". It also says whether this worker is one of them, and so differs between workers: map it over the
      worker axis.

    Raises:
      ValueError: for a deadline that is not above 0, or if ``combine`` cannot leave workers out.

    >>> import jax, jax.numpy as jnp
    >>> reducer = deadline("worker", deadline_seconds=2.0)
    >>> reduce = lambda g: reducer.update(g, reducer.init(g), arrival_seconds=jnp.array([1.0, 9.0, 2.0]))[0]
    >>> jax.vmap(reduce, axis_name="worker")(jnp.array([1.0, 70.0, 3.0]))
    Array([2., 2., 2.], dtype=float32)

    Reference: the interval of the code behind agnusmaximus/DistributedMNIST; Chen et al., arXiv 1604.00981, have the
    first N instead. Differs from that code in: a step ends early if all have arrived.
    """
    check_options(deadline, deadline_seconds=deadline_seconds)
    return over_arrived(axis_name, combine=combine, choose=lambda s: deadline_arrivals(s, deadline_seconds))
