"""Centred clipping: the mean of what the gradients differ from the last result, each difference cut to a length."""

from typing import Any, Literal, NamedTuple, Unpack

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import AxisName, agreed, axes_of
from reducers.gram import GramState, Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.scales import nonzero, quotient
from reducers.options import Count, Positive, check_options, check_static
from reducers.reducer import Reducer
from reducers.state import zeros_like


class CentredClippingState(NamedTuple):
    """State of ``centred_clipping`` that starts from the last result.

    Attributes:
      centre: like params, that result; the same on all workers.
      combine: the state of the rule.
    """

    centre: Any
    combine: GramState


@takes_gram_options
def centred_clipping(
    axis_name: AxisName,
    *,
    radius: Positive,
    num_steps: Count = 1,
    start: Literal["last", "zero"] = "last",
    **options: Unpack[GramOptions],
) -> Reducer:
    r"""Moves from the last result by the mean of the differences to all gradients, each cut to a length.

    .. math:: R(g_1, \dots, g_n) = v_L, \qquad
        v_{l+1} = v_l + \frac{1}{n} \sum_i (g_i - v_l) \min\Big(1, \frac{\tau}{|g_i - v_l|}\Big)

    where v_0 is the last result, at first zero, L is ``num_steps``, and tau is ``radius``. A worker moves the result by
    tau / n in each step at most. The differences to the last result are gradients, too, of which the same rule is
    taken from zero: so the weights follow from their dot products.

    Args:
      axis_name: the worker axis or axes, lanes last.
      radius: tau, in the units of the gradients: larger than the distances between honest ones.
      num_steps: L. After the first, distances below 1e-3 of the differences' norms are lost to rounding.
      start: from the "last" result, which each worker keeps, or from "zero".
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``CentredClippingState``, or ``GramState`` if it starts from zero. Its update takes
      ``contributes``, optional: a bool of each worker, whether it is counted. Gradients that are not finite are left
      out. Where the result is not finite the last one stays in the state.

    Raises:
      ValueError: for a number outside its range, or an unknown start.

    >>> reducer = centred_clipping("worker", radius=1.0)
    >>> combine = jax.vmap(reducer.update, axis_name="worker", in_axes=(0, None))
    >>> gradients = jnp.array([1.0, 1.5, 2.0, -9e9])
    >>> state = reducer.init(0.0)
    >>> for _ in range(3):
    ...   results, states = combine(gradients, state)
    ...   state = jax.tree.map(lambda x: x[0], states)
    ...   print(results[0])
    0.5
    0.875
    1.0625

    Reference: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization",
    arXiv 2012.10333; known through the code of ByzFL, which agrees with the equation. Differs from the paper in:
    workers need not send momenta; they do after an optimizer with momentum. Gradients that are not finite are left out.
    """
    check_options(centred_clipping, radius=radius, num_steps=num_steps, start=start)
    check_static(num_steps=num_steps)
    axes = axes_of(axis_name)

    def rule(products):
        return clipped(products.only_finite(), radius=radius, num_steps=num_steps)

    from_zero = from_gram(axis_name, rule, homogeneous=False, **options)
    if start == "zero":
        return from_zero

    def init_fn(params):
        return CentredClippingState(zeros_like(params, axes), from_zero.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        centre = jax.tree.map(lambda v, g: agreed(v.astype(g.dtype), axes), state.centre, updates)
        away = jax.tree.map(jnp.subtract, updates, centre)
        moved, combined = from_zero.update(away, state.combine, params, **extra_args)
        result = jax.tree.map(jnp.add, centre, moved)
        last = jax.tree.map(lambda v, x: jnp.where(jnp.isfinite(x), x.astype(v.dtype), v), state.centre, result)
        return result, CentredClippingState(last, combined)

    return from_zero.like(init_fn, update_fn, axis_name=axes, takes_mask=from_zero.takes_mask)


def clipped(products: Products, *, radius: float, num_steps: int) -> jax.Array:
    """Returns the weights of the units after so many steps from zero, [n]."""
    counted, scales = products.counted, products.scales

    def step(_, weights):
        differences = jnp.diag(scales) - weights[None, :]
        sizes = nonzero(jnp.abs(differences).max(1))
        lengths = nonzero(products.length_of(quotient(differences, sizes[:, None])))
        shares = jnp.where(counted, jnp.minimum(1, radius / sizes / lengths), 0)
        # Not the shares times the scales: a share may be subnormal where a scale is huge.
        own = jnp.where(counted, jnp.minimum(scales, radius * (scales / sizes) / lengths), 0)
        return (1 - shares.sum() / products.num_counted) * weights + own / products.num_counted

    return lax.fori_loop(0, num_steps, step, jnp.zeros_like(scales))
