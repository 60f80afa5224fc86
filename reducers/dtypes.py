"""Dtypes of sums and products: wide enough, whatever JAX's rules of promotion are set to."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax
from jax import numpy as jnp

T = TypeVar("T")


def mixing_dtypes(function: Callable[..., T]) -> Callable[..., T]:
    """Returns a function of another library that may mix dtypes, also where JAX's promotion is "strict".

    >>> with jax.numpy_dtype_promotion("strict"):
    ...   mixing_dtypes(jnp.add)(jnp.ones((), jnp.bfloat16), jnp.ones(())).dtype
    dtype('float32')
    """

    def mixed(*args: Any, **kwargs: Any) -> T:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return mixed


def common_dtype(*dtypes: Any) -> Any:
    """Returns the dtype that several promote to, also where ``jax_numpy_dtype_promotion`` is "strict".

    >>> with jax.numpy_dtype_promotion("strict"):
    ...   common_dtype(jnp.bfloat16, jnp.float32)
    dtype('float32')
    """
    return mixing_dtypes(jnp.result_type)(*dtypes)


def wide_dtype(x: Any) -> Any:
    """Returns the dtype of x, or float32 if that is narrower: gradients are multiplied and added up in it."""
    return common_dtype(x.dtype, jnp.float32)


def wide(x: jax.Array) -> jax.Array:
    """Returns x in float32 at least."""
    return x.astype(wide_dtype(x))


def cast(x: Any, dtype: Any) -> Any:
    """Returns an array, or its ``jax.ShapeDtypeStruct``, in another dtype."""
    return x.update(dtype=dtype) if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x, dtype)


def is_integer(x: Any) -> bool:
    """Returns whether x holds integers."""
    return jnp.issubdtype(x.dtype, jnp.integer)


def divided(total: jax.Array, count: Any) -> jax.Array:
    """Returns a sum divided by a count, or by 1 if that is 0; integers are rounded toward zero.

    Args:
      total: the sum, of numbers of any kind.
      count: a Python int, or [] float32.

    >>> divided(jnp.array([7, -7]), 2), divided(jnp.array([7.0, -7.0]), jnp.float32(0))
    (Array([ 3, -3], dtype=int32), Array([ 7., -7.], dtype=float32))
    """
    count = count if isinstance(count, int) else jnp.maximum(count, 1)
    if is_integer(total):
        return lax.div(total, jnp.full_like(total, count))
    if isinstance(count, int):
        return total / count
    if jnp.iscomplexobj(total):
        return lax.complex(total.real / count, total.imag / count)
    return wide(total) / count.astype(wide_dtype(total))


def real_dtype(x: Any) -> Any:
    """Returns the dtype of a floating-point number, or of the parts of a complex one.

    >>> real_dtype(jnp.ones(2, jnp.complex64))
    dtype('float32')
    """
    return jnp.finfo(jnp.result_type(x)).dtype


def as_real(x: jax.Array) -> jax.Array:
    """Returns the real and the imaginary parts of complex numbers, [2, ...]; real numbers as they are.

    Dot products of such vectors are the real parts of those of the complex ones, and so are squared norms.

    >>> as_real(jnp.array([1 + 2j]))
    Array([[1.],
           [2.]], dtype=float32)
    """
    return jnp.stack([x.real, x.imag]) if jnp.iscomplexobj(x) else x
