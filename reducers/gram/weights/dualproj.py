"""DualProj: the mean gradient is projected so that it conflicts with none."""

from typing import Unpack

import jax

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.weights.linear_algebra import nonnegative
from reducers.reducer import Reducer


@takes_gram_options
def dualproj(axis_name: AxisName, **options: Unpack[GramOptions]) -> Reducer:
    r"""Projects the mean onto the cone of vectors that conflict with no gradient.

    .. math:: R(g_1, \dots, g_n) = \pi\Big( \frac{1}{n} \sum_i w_i g_i \Big), \qquad
        \pi(x) = \arg\min_{y : \, y \cdot g_j \ge 0 \; \forall j} |y - x|^2

    with weights w of mean 1; without ``weights`` all are 1. ``upgrad`` projects each gradient first, and averages then.
    The projection is a combination of the gradients, found by one small program in n numbers,

    .. math:: \pi(\bar g) = \bar g + \sum_j v_j g_j, \qquad
        v = \arg\min_{v \ge 0} \tfrac12 v^\top G v + \sum_j v_j \, g_j \cdot \bar g

    by an active-set method, ``linear_algebra.nonnegative``, in a bounded number of steps.

    Args:
      axis_name: the worker axis or axes, lanes last.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted; and ``weights``, optional. NaN or Inf of a worker that counts makes its group NaN, and a weight that is
      negative, NaN or infinite makes the result NaN.

    >>> from jax import numpy as jnp
    >>> reducer = dualproj("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))[0].round(4)
    Array([0.5556, 1.1111, 1.1111], dtype=float32)

    Reference: Lopez-Paz, Ranzato, "Gradient Episodic Memory for Continual Learning", arXiv 1706.08840, equation 11,
    which projects the gradient of a new task so; known through TorchJD's code, which projects the mean. Differs from
    that code in: the program is that of the definition, without the 1e-4 of the trace that is added to the Gram matrix
    there, which moves its documented 0.5563, 1.1109, 1.1109 from the above.
    """
    return from_gram(axis_name, projected_mean, takes_weights=True, **options)


def projected_mean(products: Products, shares: jax.Array) -> jax.Array:
    """Returns the weights of the units in the projection of the mean, weighted by shares [n], [n]."""
    cosines = products.cosines
    lengths = shares * products.relative_scales * products.unit_norms / products.num_counted
    multipliers = nonnegative(cosines, cosines @ lengths)  # v of |g_j| = 1
    return products.nan_unless_finite(products.scales.max() * (lengths + multipliers) * products.directions)
