"""The median over workers, coordinate by coordinate: a minority of wild gradients cannot move it far."""

import optax

from reducers.collectives import AxisName, axes_of
from reducers.coordinatewise.middle import mean_of_middle
from reducers.reducer import Reducer


def coordinate_median(axis_name: AxisName) -> Reducer:
    r"""Takes the median over all workers, coordinate by coordinate.

    .. math:: R(g_1, \dots, g_n)_j = \operatorname{median}(g_{1j}, \dots, g_{nj})

    For an even number of workers it is the mean of the two in the middle.

    Args:
      axis_name: the worker axis or axes.

    Returns:
      A stateless reducer; dtypes are kept, arithmetic is in float32 at least. Each device sorts a slice of all
      gradients, which sends what an all-reduce sends. NaN counts as the largest value, so that a minority of workers
      with NaN is outvoted as any other. Its update takes ``contributes``, optional: a bool of each worker, whether it
      is counted; the median is of those that are, and 0 where none is. It takes ``weights``, optional: a number of
      each worker, 0 or more; half of the weight then lies on either side of the median. A weight that is negative, NaN
      or infinite makes the result NaN.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> reducer = coordinate_median("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 2.0, 90.0]))
    Array([2., 2., 2.], dtype=float32)

    Reference: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, arXiv 1803.01498.
    """
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, weights=None, **extra_args):
        del params, extra_args
        return mean_of_middle(updates, axes, num_trimmed=None, contributes=contributes, weights=weights), state

    return Reducer(
        optax.init_empty_state,
        update_fn,
        axis_name=axes,
        takes_mask="whole",
        takes_weights=True,
        homogeneous=True,
        numbers="floating",
    )
