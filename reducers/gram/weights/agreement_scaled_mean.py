"""The mean, made longer the less the gradients agree."""

from typing import Annotated, Unpack

from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero
from reducers.options import check_options
from reducers.reducer import Reducer


@takes_gram_options
def agreement_scaled_mean(
    axis_name: AxisName,
    *,
    max_scale: Annotated[float, "[1, inf)"] | None = None,
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Scales the mean by how much longer the gradients are than it.

    .. math:: R(g_1, \dots, g_n) = \min\Big( c, \frac{\frac{1}{n} \sum_i |g_i|^2}{|\bar g|^2} \Big) \, \bar g, \qquad
        \bar g = \frac{1}{n} \sum_i g_i

    Equal gradients give their mean and orthogonal ones their sum, as with Adasum, but with one factor for all workers.
    The factor is 1 plus (n - 1) / n times the noise of a worker's batch over the square of the mean, which is what
    noise-scale methods estimate.

    Args:
      axis_name: the worker axis or axes, lanes last.
      max_scale: c, the largest factor; None for n, that of orthogonal gradients.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. NaN or Inf of a worker that counts makes its group NaN.

    Raises:
      ValueError: for a number outside its range.

    >>> import jax
    >>> reducer = agreement_scaled_mean("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[2.0, 0.0], [0.0, 2.0]]))[0]
    Array([2., 2.], dtype=float32)

    Reference: this project's; the two squares are those of McCandlish, Kaplan, Amodei et al., "An Empirical Model of
    Large-Batch Training", 2018, appendix A.1, known at second hand.
    """
    check_options(agreement_scaled_mean, max_scale=max_scale)

    def rule(products):
        gram = products.at_one_scale
        count = products.num_counted
        of_each = jnp.trace(gram)
        of_sum = gram.sum()
        largest = count if max_scale is None else max_scale
        scale = count * of_each / nonzero(of_sum)
        # Rounding can make the square of a sum that vanishes negative.
        scale = jnp.where(of_each >= largest / count * of_sum, largest, jnp.maximum(scale, 1))
        weights = jnp.where(products.counted, scale / count, 0)
        return products.of_units(weights)

    return from_gram(axis_name, rule, **options)
