"""IMTL-G: the combination whose projections onto all gradients' directions are equal."""

from typing import Unpack

import jax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.weights.linear_algebra import Spectrum
from reducers.reducer import Reducer

# Weights that cancel to so little of their magnitudes, in units of rounding, add up to noise.
_NOISE_ULPS = 16


@takes_gram_options
def imtl_g(axis_name: AxisName, **options: Unpack[GramOptions]) -> Reducer:
    r"""Takes the combination that goes equally far along all gradients' directions, whatever their lengths are.

    .. math:: R(g_1, \dots, g_n) = \sum_i w_i g_i, \qquad w = \frac{v}{\sum_i v_i}, \qquad
        v = G^+ (|g_1|, \dots, |g_n|)^\top

    with the pseudo-inverse of the Gram matrix. Where the gradients are linearly independent, the projections of R onto
    their directions are all equal. Weights add up to 1, and can be negative.

    Args:
      axis_name: the worker axis or axes, lanes last.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. The result is zero where the v_i cancel. NaN or Inf of a worker that counts makes its group NaN.

    >>> reducer = imtl_g("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[3.0, 0.0], [0.0, 1.0]]))[0].round(4)
    Array([0.75, 0.75], dtype=float32)

    Reference: Liu et al., "Towards Impartial Multi-task Learning", ICLR 2021, whose form for dependent gradients is
    that of Quinton, Rey, arXiv 2406.16232; known through TorchJD's code. Differs from the code in: the result is zero
    where the sum of the v_i is rounding of its terms, not where it is below 1e-12, so that scales do not matter.
    """
    return from_gram(axis_name, impartial, **options)


def impartial(products: Products) -> jax.Array:
    """Returns the weights of the units, [n]."""
    spectrum = Spectrum.of(products)
    v = spectrum.apply(lambda values: 1 / values, products.relative_scales * products.unit_norms)
    total, eps = v.sum(), jnp.finfo(v.dtype).eps
    cancels = jnp.abs(total) <= _NOISE_ULPS * eps * jnp.abs(v).sum()
    weights = products.of_units(jnp.where(cancels, 0, v / jnp.where(cancels, 1, total)))
    return products.nan_unless_finite(weights)
