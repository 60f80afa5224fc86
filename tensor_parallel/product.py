"""The product of two matrices cut into blocks: SUMMA on each depth of a mesh."""

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
    r"""Multiplies activations by a matrix, both cut into blocks; called under ``jax.shard_map`` over the three axes.

    .. math:: Y_{kij} = \sum_{t=0}^{q-1} X_{kit} A_{tj}

    In step t, the devices of block column t broadcast their block of X along their row, and those of block row t their
    block of A along their column; each device then adds the product of the two blocks that it receives. The gradients
    are sums of the same kind, and the forward pass keeps only X and A for them:

    .. math:: dX_{kit} = \sum_j dY_{kij} A_{tj}^T, \qquad dA_{tj} = \sum_k \sum_i X_{kit}^T dY_{kij}

    A block is sent q - 1 times in each of the three products, so that each device sends
    :math:`3 (q - 1) (|X| + |A|) + 2 \frac{d - 1}{d} |A|` numbers, with :math:`|X|` and :math:`|A|` in a block.

    Args:
      x: [..., m, k], this device's block: rows, the first dimension, are cut over depth and row, columns over column.
      a: [k, n], this device's block: rows are cut over row, columns over column, and each depth has a copy; or, as in
        ``jnp.matmul``, [..., k, n] with batch dimensions that are not cut.
      precision: as in ``jnp.matmul``.
      preferred_element_type: dtype of the result, as in ``jnp.matmul``. Sums are in float32 or wider.

    Returns:
      [..., m, n], this device's block of the product, cut as x is.

    Raises:
      ValueError: if the mesh has different numbers of rows and columns, or the blocks do not fit each other.

    >>> from tensor_parallel.mesh import activation_spec, make_mesh, param_spec
    >>> x, a = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 1))
    >>> specs = {"in_specs": (activation_spec(2), param_spec(a)), "out_specs": activation_spec(2)}
    >>> jax.shard_map(matmul, mesh=make_mesh(q=1), **specs)(x, a)
    Array([[ 3.],
           [12.]], dtype=float32)

    Reference: Wang, Xu, Bian, You, arXiv 2105.14500; layout and costs from the documentation of ColossalAI, by the same
    authors (READ); the backward pass and its one sum over depth are DERIVED. Differs from the paper in: broadcasts are
    binomial trees of point-to-point messages.
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
        x_t = _broadcast_after(total, x, COLUMN, t, like=x)
        a_t = _broadcast_after(total, a, ROW, t, like=x)
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
    dx = jnp.zeros_like(x)
    da = marked(jnp.zeros_like(a), varying(x))
    dy = dy.astype(wide)
    a_here = marked(a, varying(x))  # without the mark, JAX would sum the gradient over depth in each step
    for t in range(side()):
        a_t = _broadcast_after(da if t else dy, a, ROW, t, like=x)
        (of_x,) = jax.vjp(lambda x, a=a_t: _multiply(x, a, precision), x)[1](dy)
        of_x = reduce(of_x.astype(wide), COLUMN, t, dtype=x.dtype).astype(x.dtype)
        dx = jnp.where(lax.axis_index(COLUMN) == t, of_x, dx)
        x_t = _broadcast_after(dx, x, COLUMN, t, like=x)
        (of_a,) = jax.vjp(lambda a, x=x_t: _multiply(x, a, precision), a_here)[1](dy)
        of_a = reduce(of_a.astype(wide), ROW, t, dtype=a.dtype).astype(a.dtype)
        da = jnp.where(lax.axis_index(ROW) == t, of_a, da)
    return dx, summed(da, (DEPTH,), like=a)


_product = with_gradient(_forward, _forward_and_kept, _backward, static=(2, 3))


def _multiply(x: jax.Array, a: jax.Array, precision: Any) -> jax.Array:
    return jnp.matmul(x, a, precision=precision, preferred_element_type=wide_dtype(jnp.result_type(x, a)))


def _broadcast_after(after: jax.Array | None, block: jax.Array, axis: str, root: int, *, like: jax.Array) -> jax.Array:
    """Broadcasts a block once ``after`` is computed, so that a device holds the blocks of few steps at a time.

    Args:
      after: the value to wait for; None to wait for nothing.
      block: this device's block.
      axis: the axis of the broadcast.
      root: the index of the sender.
      like: an array that varies over the axes over which the result varies.
    """
    block = marked(block, varying(like))
    if after is not None and after.size:  # an empty array has no number to depend on
        block = lax.platform_dependent(block, after, cpu=_dependent, default=_barrier)
    return broadcast(block, axis, root)


def _barrier(x: jax.Array, after: jax.Array) -> jax.Array:
    return lax.optimization_barrier((x, after))[0]


def _dependent(x: jax.Array, after: jax.Array) -> jax.Array:
    # On CPU, XLA removes barriers before it orders operations, and would hold the blocks of all steps. The condition
    # always holds, but XLA cannot know that.
    end = jnp.real(after.ravel()[0])
    return jnp.where((end == end) | (end != end + 1), x, 0)
