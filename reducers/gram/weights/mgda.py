"""MGDA: the shortest vector among all weighted means of the gradients."""

from typing import Unpack

from reducers.collectives import AxisName
from reducers.gram import from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.weights.linear_algebra import shortest
from reducers.reducer import Reducer


@takes_gram_options
def mgda(axis_name: AxisName, **options: Unpack[GramOptions]) -> Reducer:
    r"""Takes the shortest of all convex combinations of the gradients, which is a descent direction for all workers.

    .. math:: R(g_1, \dots, g_n) = \sum_i w_i g_i, \qquad
        w = \arg\min_{w \ge 0, \, \sum_i w_i = 1} \Big| \sum_i w_i g_i \Big|^2

    The program is solved by an active-set method, ``linear_algebra.nonnegative``, in a bounded number of steps. A
    worker can end with a weight of 0.

    Args:
      axis_name: the worker axis or axes, lanes last.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. A worker with a zero gradient makes the result zero; NaN or Inf of one that counts makes its group NaN.
      Workers of weight 0 are left out, see ``reducers.Report``.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> reducer = mgda("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[1.0, 0.0], [1.0, 2.0]]))[0]
    Array([1., 0.], dtype=float32)

    Reference: Desideri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", 2012; Sener,
    Koltun, "Multi-Task Learning as Multi-Objective Optimization", arXiv 1810.04650; known through the latter's code and
    TorchJD's. Differs from them in: an active-set method, which ends, in place of Frank-Wolfe steps.
    """
    return from_gram(axis_name, shortest, **options)
