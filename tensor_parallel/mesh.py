"""The axes of a mesh of d x q x q devices, and communication along them."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

DEPTH, ROW, COLUMN = AXES = ("depth", "row", "column")


def make_mesh(*, q: int, d: int = 1, num_workers: int | None = None) -> Mesh:
    """Makes a mesh of d x q x q devices, or of as many devices for each worker.

    Args:
      q: the number of block rows and of block columns of every matrix.
      d: the number of squares of q x q devices, which divide the rows of activations.
      num_workers: the number of workers, with d x q x q devices each, along a first axis "worker"; None for a mesh
        without it.

    Raises:
      ValueError: if JAX has too few devices.

    >>> make_mesh(q=1, num_workers=1).axis_names
    ('worker', 'depth', 'row', 'column')
    """
    names = AXES if num_workers is None else ("worker", *AXES)
    sizes = (d, q, q) if num_workers is None else (num_workers, d, q, q)
    needed = math.prod(sizes)
    if needed > jax.device_count():
        raise ValueError(f"q={q}, d={d}: need {needed} devices, and {jax.device_count()} are there")
    types = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(sizes, names, axis_types=types, devices=jax.devices()[:needed])


def activation_spec(ndim: int) -> PartitionSpec:
    """Returns how activations are cut: the first dimension over depth and row, the last one over column.

    >>> tuple(activation_spec(3))
    (('depth', 'row'), None, 'column')
    """
    return PartitionSpec((DEPTH, ROW), *[None] * (ndim - 2), COLUMN)


def param_spec(param: Any) -> PartitionSpec:
    """Returns how a parameter is cut: matrices over row and column, biases and scales over column, scalars not at all.

    >>> tuple(param_spec(jnp.ones((4, 6)))), tuple(param_spec(jnp.ones(6))), tuple(param_spec(1.0))
    (('row', 'column'), ('column',), ())
    """
    return PartitionSpec(*(ROW, COLUMN)[2 - min(jnp.ndim(param), 2) :])


def side() -> int:
    """Returns q, inside a mapped function.

    Raises:
      ValueError: if the numbers of rows and columns differ.
    """
    rows = lax.axis_size(ROW)
    columns = lax.axis_size(COLUMN)
    if rows != columns:
        raise ValueError(f"mesh: has {rows} rows and {columns} columns of devices; they must be as many")
    return rows


def check_divides(name: str, size: int, by: int, *, of: str) -> None:
    """Raises ValueError, with the nearest allowed sizes, if a size is not a multiple of ``by``.

    >>> check_divides("width", 10, 4, of="q")
    Traceback (most recent call last):
    ValueError: width=10: must be a multiple of q = 4, such as 8 or 12
    """
    if size % by:
        below = size // by * by
        above = -(-size // by) * by
        such_as = f"{below} or {above}" if below else f"{above}"
        raise ValueError(f"{name}={size}: must be a multiple of {of} = {by}, such as {such_as}")


def broadcast(x: jax.Array, axis: str, root: int) -> jax.Array:
    """Sends x from the device with index ``root`` along an axis to all devices of the axis.

    The messages form a binomial tree: in each round, every device that has x sends it to one that has not. So x arrives
    in log2 q rounds, by q - 1 messages.
    """
    size = lax.axis_size(axis)
    distance = (lax.axis_index(axis) - root) % lax.axis_size(axis)
    for have in _powers(size):
        received = lax.ppermute(x, axis, _pairs(size, root, have))
        x = jnp.where((have <= distance) & (distance < 2 * have), received, x)
    return x


def reduce(x: jax.Array, axis: str, root: int, *, dtype: Any) -> jax.Array:
    """Sums x along an axis onto the device with index ``root``; the other devices return partial sums.

    Args:
      x: this device's summand; its dtype is that of the sums.
      axis: the axis.
      root: the index of the device that returns the whole sum.
      dtype: the dtype of messages.
    """
    size = lax.axis_size(axis)
    for have in reversed(_powers(size)):
        back = [(target, source) for source, target in _pairs(size, root, have)]
        x += lax.ppermute(x.astype(dtype), axis, back).astype(x.dtype)
    return x


def _powers(size: int) -> list[int]:
    """Returns how many devices have x before each round of ``broadcast``: 1, 2, 4, ..."""
    return [1 << i for i in range((size - 1).bit_length())]


def _pairs(size: int, root: int, have: int) -> list[tuple[int, int]]:
    """Returns (sender, receiver) of the messages of a round, before which ``have`` devices have x."""
    return [((root + i) % size, (root + i + have) % size) for i in range(have) if i + have < size]


def wide_dtype(dtype: Any) -> Any:
    """Returns the dtype for sums of numbers of a dtype: float32 for half precision.

    >>> wide_dtype(jnp.bfloat16).__name__, wide_dtype(jnp.dtype("int32"))
    ('float32', dtype('int32'))
    """
    return jnp.float32 if jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).bits < 32 else dtype


def varying(x: jax.Array) -> frozenset[str]:
    """Returns the axes over which x is typed as varying; empty if JAX does not track them (``check_vma=False``)."""
    return jax.typeof(x).manual_axis_type.varying


def tracked() -> frozenset[str]:
    """Returns the three axes if JAX tracks which values vary over them (``check_vma=True``), else the empty set."""
    return frozenset(AXES) if varying(lax.axis_index(DEPTH)) else frozenset()


def marked(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """Returns x typed as varying over these axes, too; sends nothing."""
    missing = tuple(sorted(axes - varying(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def summed(cotangent: jax.Array, axes: tuple[str, ...], *, like: jax.Array) -> jax.Array:
    """Sums a gradient over the axes along which its parameter has copies, and over those that its type asks for.

    Args:
      cotangent: this device's part of the gradient.
      axes: the axes along which the parameter is the same.
      like: the parameter; the result has its type.
    """
    over = tuple(sorted(set(axes) | (varying(cotangent) - varying(like))))
    return marked(lax.psum(cotangent, over), varying(like))


def with_gradient(function: Callable, forward: Callable, backward: Callable, *, static: tuple[int, ...]) -> Callable:
    """Gives a function its own gradient by ``jax.custom_vjp``; ``static`` are arguments that are not differentiated."""
    found = jax.custom_vjp(function, nondiff_argnums=static)
    found.defvjp(forward, backward)
    return found


def copied(param: jax.Array, axes: tuple[str, ...] = (DEPTH, ROW)) -> jax.Array:
    """Returns a parameter unchanged, but sums its gradient over the devices that have a copy; for your own layers.

    Otherwise, without ``check_vma``, each device would get only the part of the gradient from its own activations. The
    layers of this package already call it for their parameters.

    Args:
      param: this device's copy, the same along the axes.
      axes: the axes along which devices have copies. Default: those of a bias or a scale that ``param_spec`` cuts. Use
        ``AXES`` for a parameter that every device has whole.

    >>> P = PartitionSpec
    >>> grads = jax.grad(lambda bias, x: (x + copied(bias)[None]).sum())
    >>> specs = {"in_specs": (P(COLUMN), activation_spec(2)), "out_specs": P(COLUMN)}
    >>> jax.shard_map(grads, mesh=make_mesh(q=1, d=2), check_vma=False, **specs)(jnp.zeros(3), jnp.ones((4, 3)))
    Array([4., 4., 4.], dtype=float32)
    """
    return _copied(param, axes)


def _mark_copies(param: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    # If it were not marked, JAX would sum the gradient over these axes once more.
    return marked(param, tracked() & set(axes))


_copied = with_gradient(
    _mark_copies,
    lambda param, axes: (_mark_copies(param, axes), param),
    lambda axes, param, cotangent: (summed(cotangent, axes, like=param),),
    static=(1,),
)
