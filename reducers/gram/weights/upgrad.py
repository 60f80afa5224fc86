"""UPGrad: each gradient is projected so that it conflicts with none, and the mean is taken."""

from typing import Unpack

import jax
from jax import lax

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.weights.linear_algebra import nonnegative
from reducers.reducer import Reducer

# So many programs are solved together; each has a table of n x n numbers.
_AT_ONCE = 64


@takes_gram_options
def upgrad(axis_name: AxisName, **options: Unpack[GramOptions]) -> Reducer:
    r"""Projects each gradient onto the cone of vectors that conflict with no gradient, and averages.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_i w_i \pi(g_i), \qquad
        \pi(x) = \arg\min_{y : \, y \cdot g_j \ge 0 \; \forall j} |y - x|^2

    with weights w of mean 1; without ``weights`` all are 1. A projection is a combination of the gradients, found by a
    small program in n numbers,

    .. math:: \pi(g_i) = \sum_j v_j g_j, \qquad v = \arg\min_{v \ge e_i} v^\top G v

    by an active-set method, ``linear_algebra.nonnegative``, in a bounded number of steps.

    Args:
      axis_name: the worker axis or axes, lanes last.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted; and ``weights``, optional. NaN or Inf of a worker that counts makes its group NaN, and a weight that is
      negative, NaN or infinite makes the result NaN.

    >>> from jax import numpy as jnp
    >>> reducer = upgrad("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))[0].round(4)
    Array([0.2924, 1.9006, 1.9006], dtype=float32)

    Reference: Quinton, Rey, "Jacobian Descent for Multi-Objective Optimization", arXiv 2406.16232; known through the
    authors' code, TorchJD. Differs from the code in: the program is that of the definition, without the 1e-4 of the
    trace that is added to the Gram matrix there, and without giving the mean for small gradients.
    """
    return from_gram(axis_name, without_conflicts, takes_weights=True, **options)


def without_conflicts(products: Products, shares: jax.Array) -> jax.Array:
    """Returns the weights of the units in the mean of all projections, weighted by shares [n], [n]."""
    cosines = products.cosines
    count = products.num_counted
    multipliers = lax.map(lambda row: nonnegative(cosines, row), cosines, batch_size=_AT_ONCE)  # v - e_i of |g_i| = 1
    lengths = shares * products.relative_scales * products.unit_norms
    weights = products.scales.max() * ((lengths + lengths @ multipliers) / count * products.directions)
    return products.nan_unless_finite(weights)
