"""Krum: the gradient, or the mean of the gradients, that lies nearest to its neighbours."""

from typing import Unpack

import jax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.options import Count, Natural, check_options
from reducers.reducer import Reducer


@takes_gram_options
def krum(
    axis_name: AxisName,
    *,
    num_byzantine: Natural = 1,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Takes the one gradient that lies nearest to its neighbours.

    .. math:: R(g_1, \dots, g_n) = g_{i^*}, \qquad
        i^* = \arg\min_i \sum_{j \in N_i} |g_i - g_j|^2, \qquad |N_i| = \max(1, n - f - 2)

    where N_i are the workers nearest to i, without itself, f is ``num_byzantine``, and n counts the workers that are
    counted. Ties go to the first worker.

    Args:
      axis_name: the worker axis or axes, lanes last.
      num_byzantine: f, how many workers may send anything. The guarantee of the source needs n >= 2 f + 3.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. A gradient that is not finite is infinitely far away. All workers but the chosen one are left out, see
      ``reducers.Report``.

    Raises:
      ValueError: for a negative ``num_byzantine``.

    >>> reducer = krum("worker", num_byzantine=1)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 1.1, 1.3, 90.0, jnp.nan]))[0]
    Array(1.1, dtype=float32)

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NIPS 2017; read in its preprint, arXiv 1703.02757. Differs from the paper in: fewer workers than
    2 f + 3 are not refused.
    """
    check_options(krum, num_byzantine=num_byzantine)
    return multi_krum(axis_name, num_byzantine=num_byzantine, num_selected=1, **options)


@takes_gram_options
def multi_krum(
    axis_name: AxisName,
    *,
    num_byzantine: Natural = 1,
    num_selected: Count | None = None,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Averages the m gradients that lie nearest to their neighbours.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{m} \sum_{i \in S} g_i, \qquad
        S = \text{the } m \text{ workers of least } \sum_{j \in N_i} |g_i - g_j|^2, \qquad |N_i| = \max(1, n - f - 2)

    Args:
      axis_name: the worker axis or axes, lanes last.
      num_byzantine: f, how many workers may send anything.
      num_selected: m, cut to the number of workers with finite gradients; None for n - f.
      **options: see ``krum``.

    Returns:
      A reducer as ``krum`` is; workers that are not among the m are left out.

    Raises:
      ValueError: for a number outside its range.

    >>> reducer = multi_krum("worker", num_byzantine=1, num_selected=2)
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([1.0, 1.5, 2.0, 90.0, 4.0]))[0]
    Array(1.25, dtype=float32)

    Reference: that of ``krum``, arXiv 1703.02757. Differs from the preprint in: all m are chosen by one computation of
    the sums, as common libraries do, where the preprint computes them anew after each choice.
    """
    check_options(multi_krum, num_byzantine=num_byzantine, num_selected=num_selected)

    def rule(products):
        return products.of_units(nearest(products, num_byzantine=num_byzantine, num_selected=num_selected))

    return from_gram(axis_name, rule, **options)


def nearest(products: Products, *, num_byzantine: int, num_selected: int | None) -> jax.Array:
    """Returns equal weights for the gradients nearest to their neighbours, [n], and 0 for the others."""
    candidates = products.only_finite().counted
    count = products.counted.sum()
    exponents, mantissas = products.nearest_distances(jnp.maximum(1, count - num_byzantine - 2))
    order = jnp.lexsort((mantissas, exponents, ~candidates))  # candidates first; stable
    wanted = count - num_byzantine if num_selected is None else num_selected
    chosen = jnp.clip(wanted, 1, jnp.maximum(candidates.sum(), 1))
    is_chosen = (jnp.argsort(order) < chosen) & candidates
    return is_chosen.astype(products.gram.dtype) / chosen.astype(products.gram.dtype)
