"""Worker axes: one name, or several, outer first."""

from collections.abc import Sequence
from typing import TypeAlias

import jax
from jax import lax

AxisName: TypeAlias = str | tuple[str, ...]


def num_workers(axis_name: AxisName) -> int:
    """Returns the number of workers along ``axis_name``, a Python int known while tracing.

    >>> import jax, jax.numpy as jnp
    >>> jax.vmap(lambda x: x * num_workers("worker"), axis_name="worker")(jnp.ones(3))
    Array([3., 3., 3.], dtype=float32)
    """
    return lax.axis_size(axis_name)


def lanes_of(axis_name: AxisName) -> tuple[str, ...]:
    """Returns those axes that are vmapped, not devices of a mesh: what is gathered along them is already there."""
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    return tuple(axis for axis in axes if axis not in jax.sharding.get_abstract_mesh().manual_axes)


def same_on_all(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns x, which is the same on all workers, so that JAX knows it of lanes too: the first lane's; sends nothing.

    >>> import jax.numpy as jnp
    >>> jax.vmap(lambda x: same_on_all(x, "worker"), axis_name="worker", out_axes=None)(jnp.ones(3))
    Array(1., dtype=float32)
    """
    lanes = lanes_of(axis_name)
    return gather_workers(x, lanes)[0] if lanes else x


def gather_workers(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """Returns all workers' x, [W, ...], in worker order: one axis at a time, innermost first.

    >>> import jax.numpy as jnp
    >>> jax.vmap(lambda x: gather_workers(x, ["worker"]), axis_name="worker")(jnp.arange(2.0))[0]
    Array([0., 1.], dtype=float32)
    """
    shape = x.shape
    for axis in reversed(axes):
        x = lax.all_gather(x, axis)
    return x.reshape(num_workers(tuple(axes)), *shape)
