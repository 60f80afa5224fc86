"""The product of two matrices that are cut into blocks: SUMMA on each depth of a mesh."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from tensor_parallel.mesh import (
    COLUMN,
    DEPTH,
    ROW,
    broadcast,
    marked,
    reduce,
    side,
    summed,
    tracked,
    varying,
    wide_dtype,
    with_gradient,
)


def matmul(x: jax.Array, a: jax.Array, *, precision: Any = None, preferred_element_type: Any = None) -> jax.Array:
    r"""Multiplies activations by a matrix, both of them cut into blocks, where the three axes are bound.

    .. math:: Y_{kij} = \sum_{t=0}^{q-1} X_{kit} A_{tj}

    In step t, the devices of block column t broadcast their block of X along their row, those of block row t their
    block of A along their column, and each device adds up a product. The gradients are sums of the same kind, for which
    only X and A are kept:

    .. math:: dX_{kit} = \sum_j dY_{kij} A_{tj}^T, \qquad dA_{tj} = \sum_k \sum_i X_{kit}^T dY_{kij}

    A block is sent q - 1 times in each of three products, so that a device sends
    :math:`3 (q - 1) (|X| + |A|) + 2 \frac{d - 1}{d} |A|` of its own blocks.

    Args:
      x: [..., m, k], this device's block: rows, the first dimension, are cut over depth and row, columns over column.
      a: [k, n], this device's block: rows cut over row, columns over column, with a copy on each depth; or, like
        ``jnp.matmul``, [..., k, n] with batches that are not cut.
      precision: as in ``jnp.matmul``.
      preferred_element_type: dtype of the result, as in ``jnp.matmul``. Sums are made in float32 at least.

    Returns:
      [..., m, n], this device's block of the product, cut as x is.

    Raises:
      ValueError: for a mesh whose rows are not as many as its columns, and blocks that do not fit.

    >>> from tensor_parallel.mesh import activation_spec, make_mesh, param_spec
    >>> x, a = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 1))
    >>> specs = {"in_specs": (activation_spec(2), param_spec(a)), "out_specs": activation_spec(2)}
    >>> jax.shard_map(matmul, mesh=make_mesh(q=1), **specs)(x, a)
    Array([[ 3.],
           [12.]], dtype=float32)

    Reference: layout and costs as the documentation of ColossalAI, by the authors of Wang, Xu, Bian, You, arXiv
    2105.14500, states them (READ); the backward pass is DERIVED, as is its one sum over depth. Differs from the paper
    in: the broadcasts are binomial trees of point-to-point messages.
    """
    q = side()
    if x.ndim < 2 or a.ndim < 2 or x.shape[-1] != a.shape[-2]:
        raise ValueError(
            f"shapes={x.shape} and {a.shape}: must be [..., m, k] and [..., k, n] blocks, whose k is 1 / {q} of the "
            f"columns of x and of the rows of a, so that a has {x.shape[-1] * q if x.ndim else 1} rows in all"
        )
    if 2 < a.ndim >= x.ndim:
        raise ValueError(f"shapes={x.shape} and {a.shape}: a must have fewer dimensions than x, whose first one is cut")
    return _product(marked(x, varying(a) | tracked()), a, precision, preferred_element_type)


def _forward(x: jax.Array, a: jax.Array, precision: Any, dtype: Any) -> jax.Array:
    total: jax.Array | None = None
    for t in range(side()):
        x_t, a_t = (_sent(block, axis, t, like=x, after=total) for block, axis in ((x, COLUMN), (a, ROW)))
        product = _multiply(x_t, a_t, precision)
        total = product if total is None else total + product
    assert total is not None  # q is 1 at least
    return total.astype(jnp.result_type(x, a) if dtype is None else dtype)


def _forward_and_kept(x, a, precision, dtype):
    return _forward(x, a, precision, dtype), (x, a)


def _backward(precision, dtype, kept, dy):
    del dtype
    x, a = kept
    wide = wide_dtype(jnp.result_type(x, a))
    dx, da, dy = jnp.zeros_like(x), marked(jnp.zeros_like(a), varying(x)), dy.astype(wide)
    a_here = marked(a, varying(x))  # else the gradient would be summed over depth in each step
    for t in range(side()):
        a_t = _sent(a, ROW, t, like=x, after=da if t else dy)
        (of_x,) = jax.vjp(lambda x, a=a_t: _multiply(x, a, precision), x)[1](dy)
        of_x = reduce(of_x.astype(wide), COLUMN, t, dtype=x.dtype).astype(x.dtype)
        dx = jnp.where(lax.axis_index(COLUMN) == t, of_x, dx)
        x_t = _sent(x, COLUMN, t, like=x, after=dx)
        (of_a,) = jax.vjp(lambda a, x=x_t: _multiply(x, a, precision), a_here)[1](dy)
        of_a = reduce(of_a.astype(wide), ROW, t, dtype=a.dtype).astype(a.dtype)
        da = jnp.where(lax.axis_index(ROW) == t, of_a, da)
    return dx, summed(da, (DEPTH,), like=a)


_product = with_gradient(_forward, _forward_and_kept, _backward, static=2)


def _multiply(x: jax.Array, a: jax.Array, precision: Any) -> jax.Array:
    return jnp.matmul(x, a, precision=precision, preferred_element_type=wide_dtype(jnp.result_type(x, a)))


def _sent(block: jax.Array, axis: str, root: int, *, like: jax.Array, after: jax.Array | None) -> jax.Array:
    """Returns a block of another device, sent once ``after`` is computed, so that the blocks of few steps are kept."""
    block = marked(block, varying(like))
    if after is not None and after.size:  # nothing waits for what is empty
        block = lax.platform_dependent(block, after, cpu=_dependent, default=_barrier)
    return broadcast(block, axis, root)


def _barrier(x: jax.Array, after: jax.Array) -> jax.Array:
    return lax.optimization_barrier((x, after))[0]


def _dependent(x: jax.Array, after: jax.Array) -> jax.Array:
    # XLA on CPU removes barriers before it decides on an order, and would keep the blocks of all steps. The condition
    # always holds, which it does not find out.
    end = jnp.real(after.ravel()[0])
    return jnp.where((end == end) | (end != end + 1), x, 0)
