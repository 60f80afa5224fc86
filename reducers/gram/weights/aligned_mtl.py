"""Aligned-MTL: the mean of gradients that were made orthogonal and equally long, as a whole and with least change."""

import functools
from typing import Literal, Unpack

import jax
from jax import numpy as jnp

from reducers.collectives import AxisName
from reducers.gram import Products, from_gram
from reducers.gram.reducer import GramOptions, takes_gram_options
from reducers.gram.weights.linear_algebra import Spectrum
from reducers.options import check_options
from reducers.reducer import Reducer


@takes_gram_options
def aligned_mtl(
    axis_name: AxisName, *, scale_mode: Literal["min", "median", "rmse"] = "min", **options: Unpack[GramOptions]
) -> Reducer:
    r"""Averages gradients after their principal components were made equally long.

    .. math:: R(g_1, \dots, g_n) = \frac{1}{n} \sum_i w_i g_i, \qquad
        w = \sqrt{\sigma} \, V \Lambda^{-1/2} V^\top \mathbf{1}, \qquad G = V \Lambda V^\top

    with the eigenvalues other than 0 of the Gram matrix; sigma is the least of them, so that nothing grows.

    Args:
      axis_name: the worker axis or axes, lanes last.
      scale_mode: sigma: the "min", the "median" (the lower one), or the mean, "rmse", of the eigenvalues.
      **options: ``granularity``, ``telemetry`` and ``sharded_over``; see ``from_gram``.

    Returns:
      A reducer with ``GramState``. Its update takes ``contributes``, optional: a bool of each worker, whether it is
      counted. NaN or Inf of a worker that counts makes its group NaN.

    Raises:
      ValueError: for an unknown scale_mode.

    >>> reducer = aligned_mtl("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[3.0, 0.0], [0.0, 1.0]]))[0].round(4)
    Array([0.5, 0.5], dtype=float32)

    Reference: Senushkin et al., "Independent Component Alignment for Multi-Task Learning", CVPR 2023, algorithm 1;
    known through TorchJD's code, with its three choices of the scale.
    """
    check_options(aligned_mtl, scale_mode=scale_mode)

    return from_gram(axis_name, functools.partial(aligned, scale_mode=scale_mode), **options)


def aligned(products: Products, scale_mode: str) -> jax.Array:
    """Returns the weights of the units, [n]."""
    spectrum = Spectrum.of(products)
    mean = jnp.where(products.counted, 1 / products.num_counted, 0)
    rank = jnp.maximum(spectrum.rank, 1)
    first = len(mean) - rank
    scale = {
        "min": lambda: spectrum.values[first],
        "median": lambda: spectrum.values[first + (rank - 1) // 2],
        "rmse": lambda: jnp.where(spectrum.kept, spectrum.values, 0).sum() / rank.astype(mean.dtype),
    }[scale_mode]()
    weights = products.of_units(spectrum.apply(lambda values: jnp.sqrt(scale / values), mean))
    return products.nan_unless_finite(weights)
