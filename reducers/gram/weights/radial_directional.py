"""The mean of the norms times the direction of the mean of the directions."""

from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import from_gram
from reducers.gram.reducer import Telemetry
from reducers.gram.scales import nonzero
from reducers.mesh import ShardedOver
from reducers.reducer import Reducer

# A sum of n directions that is shorter than n times this is rounding noise, and has no direction.
_NOISE = 1e-3


def radial_directional(
    axis_name: AxisName,
    *,
    granularity: str = "layer",
    telemetry: Telemetry = "off",
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Averages lengths and directions apart, so that gradients that differ in direction do not shrink.

    .. math:: R(g_1, \dots, g_n) = \Big( \frac{1}{n} \sum_i w_i |g_i| \Big) \, \phi\Big( \sum_i w_i \phi(g_i) \Big),
        \qquad \phi(x) = \frac{x}{|x|}, \quad \phi(0) = 0

    with weights w of mean 1; without ``weights`` all are 1.

    Args:
      axis_name: the worker axis or axes, lanes last.
      granularity: what counts as one vector: each "layer", the whole "model", or a pattern; see ``from_gram``.
      telemetry: see ``from_gram``.
      sharded_over: see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted; and ``weights``, optional. The result is zero where the directions add up to nothing; where their sum is
      short, the rounding errors of dot products grow by the square of n over its length. NaN or Inf of a worker that
      counts makes its group NaN, and a weight that is negative, NaN or infinite makes the result NaN.

    >>> import jax
    >>> reducer = radial_directional("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[2.0, 0.0], [0.0, 2.0]]))[0].round(4)
    Array([1.4142, 1.4142], dtype=float32)

    Reference: the merge of Decoupled DiLoCo, Douillard et al., arXiv 2604.21428, known at second hand alone: three
    readers of the paper agree on the equation, two on taking it tensor by tensor. Its weights are the workers' numbers
    of tokens. Differs from the paper in: embeddings, which it averages, are treated as all others.
    """

    def rule(products, weights):
        directions = weights * products.directions
        length = products.length_of(directions)
        vanishes = length <= _NOISE * jnp.where(products.scales != 0, weights, 0).sum()
        norms = (weights * products.relative_scales * products.unit_norms).sum() / products.num_counted
        norms /= nonzero(length)  # over the largest
        return jnp.where(vanishes, 0, products.scales.max() * (norms * directions))

    return from_gram(
        axis_name,
        rule,
        granularity=granularity,
        telemetry=telemetry,
        sharded_over=sharded_over,
        takes_weights=True,
    )
