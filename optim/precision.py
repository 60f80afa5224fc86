"""Arithmetic of optimizers that holds in every dtype, for gradients of any scale and decays near 1."""

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import optax
from jax import numpy as jnp

from reducers.dtypes import cast, common_dtype, mixing_dtypes, real_dtype

P = ParamSpec("P")


def in_full_precision(
    make: Callable[P, optax.GradientTransformation],
) -> Callable[P, optax.GradientTransformationExtraArgs]:
    """Returns the constructor of an optimizer that computes, and holds its state, in float32 at least.

    Updates are rounded once, to the dtypes of the gradients. The optimizer may mix dtypes, also where JAX's promotion
    is "strict".

    Args:
      make: the constructor. Without this, squares of its gradients may leave the range of float16, and moving averages
        stand still in bfloat16.

    >>> adam, params = in_full_precision(optax.adam)(0.5), jnp.zeros(2, jnp.float16)
    >>> adam.update(jnp.array([300.0, 0.0], jnp.float16), adam.init(params))[0]
    Array([-0.5, -0. ], dtype=float16)
    """

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> optax.GradientTransformationExtraArgs:
        inner = optax.with_extra_args_support(make(*args, **kwargs))

        def init_fn(params):
            return inner.init(_widened(params))

        def update_fn(updates, state, params=None, **extra_args):
            found, state = inner.update(_widened(updates), state, _widened(params), **extra_args)
            return jax.tree.map(lambda new, g: new.astype(jnp.result_type(g)), found, updates), state

        return optax.GradientTransformationExtraArgs(mixing_dtypes(init_fn), mixing_dtypes(update_fn))

    return made


def _widened(tree: Any) -> Any:
    return jax.tree.map(lambda x: cast(x, common_dtype(jnp.result_type(x), jnp.float32)), tree)


def bias_correction(decay: float, count: jax.Array) -> jax.Array:
    """Returns 1 - decay^count for a count above 0, to rounding: ``decay`` itself may be 1 in float32.

    >>> print(bias_correction(1 - 1e-9, jnp.asarray(2)), bias_correction(0.5, jnp.asarray(2)))
    2e-09 0.75
    """
    return -jnp.expm1(count * (math.log(decay) if decay else -math.inf))


def squarable(updates: optax.Updates) -> optax.Updates:
    """Returns gradients whose squares, and sums of a million squares, are in the dtype's range.

    A finite number beyond 2^54 in float32 counts as 2^54. Its square would be infinite, and stay so in every average
    of squares.

    >>> print(squarable(jnp.array([2.0**53, -1e30])) / 2.0**54)
    [ 0.5 -1. ]
    """

    def bounded(g: jax.Array) -> jax.Array:
        most = 2.0 ** (jnp.finfo(real_dtype(g)).maxexp // 2 - 10)
        return jnp.where(jnp.isfinite(g), jnp.clip(g, -most, most), g)

    return jax.tree.map(bounded, updates)
