"""Worker axes: one name, or several, outer first."""

from typing import TypeAlias

from jax import lax

AxisName: TypeAlias = str | tuple[str, ...]


def num_workers(axis_name: AxisName) -> int:
    """Returns the number of workers along ``axis_name``, a Python int known while tracing.

    >>> import jax, jax.numpy as jnp
    >>> jax.vmap(lambda x: x * num_workers("worker"), axis_name="worker")(jnp.ones(3))
    Array([3., 3., 3.], dtype=float32)
    """
    return lax.axis_size(axis_name)
