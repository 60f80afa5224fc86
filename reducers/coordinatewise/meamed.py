"""The mean around the median, coordinate by coordinate."""

import optax

from reducers.collectives import AxisName, axes_of, num_workers
from reducers.coordinatewise.middle import mean_of_middle
from reducers.options import Natural, check_options, check_static
from reducers.reducer import Reducer


def meamed(axis_name: AxisName, *, num_byzantine: Natural = 1) -> Reducer:
    r"""Averages the n - f values nearest to the median, coordinate by coordinate.

    .. math:: R(g_1, \dots, g_n)_j = \frac{1}{n - f} \sum_{i \in N_j} g_{ij}, \qquad
        N_j = \text{the } n - f \text{ workers of least } |g_{ij} - \operatorname{median}(g_{1j}, \dots, g_{nj})|

    where f is ``num_byzantine``. Of equally near values, the smaller are taken.

    Args:
      axis_name: the worker axis or axes.
      num_byzantine: f, how many workers may send anything, fewer than half of them.

    Returns:
      A stateless reducer; dtypes are kept, arithmetic is in float32 at least. Each device sorts a slice of all
      gradients, which sends what an all-reduce sends. NaN counts as the largest value. Its update takes
      ``contributes``, optional: a bool of each worker, whether it is counted; if m are, f is at most (m - 1) // 2; if
      none is, the result is 0.

    Raises:
      ValueError: for a negative ``num_byzantine``; when traced, if it is half of the workers or more.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> reducer = meamed("worker", num_byzantine=1)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 2.0, 6.0, 90.0]))
    Array([3., 3., 3., 3.], dtype=float32)

    Reference: Xie, Koyejo, Gupta, "Generalized Byzantine-tolerant SGD", arXiv 1802.10116; known through the code of
    ByzFL. Differs from the code in: the median of an even number of workers is the mean of the two in the middle, as
    with NumPy; with PyTorch, the code takes the lower one.
    """
    check_options(meamed, num_byzantine=num_byzantine)
    check_static(num_byzantine=num_byzantine)
    axes = axes_of(axis_name)

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        if contributes is None and 2 * num_byzantine >= num_workers(axes):
            raise ValueError(f"num_byzantine={num_byzantine}: must be fewer than half of {num_workers(axes)} workers")
        given = {"num_trimmed": num_byzantine, "contributes": contributes, "around_median": True}
        return mean_of_middle(updates, axes, **given), state

    return Reducer(
        optax.init_empty_state,
        update_fn,
        axis_name=axes,
        takes_mask="whole",
        homogeneous=True,
        numbers="floating",
    )
