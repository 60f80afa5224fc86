"""An exchange after which each device has a slice of every vector."""

from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives.axes import gather_workers, num_workers
from reducers.collectives.joined import cut, join


def slice_size(num_elements: int, axes: tuple[str, ...]) -> int:
    """Returns the number of elements in a device's slice of a vector, padding included."""
    return -(-num_elements // num_workers(axes))


def to_slices(vectors: Sequence[jax.Array], axes: tuple[str, ...]) -> jax.Array:
    """Exchanges all devices' vectors, so that each device has a slice of every one: (n - 1) / n of the bytes.

    Args:
      vectors: this device's, [k, m] each: k gradients, those of its lanes.
      axes: the devices, outer first.

    Returns:
      This device's slices of all gradients, [devices * k, M], one vector after the other, padded with zeros to
      ``slice_size`` each. Types are kept.
    """
    num_rows = len(vectors[0]) * num_workers(axes)
    padded = [jnp.pad(x, ((0, 0), (0, -x.shape[1] % num_workers(axes)))) for x in vectors]
    slices = [x.reshape(len(x), num_workers(axes), -1).swapaxes(0, 1) for x in padded]  # (devices, k, width)
    block = join([x.reshape(num_rows, -1) for x in slices], axis=1)
    # Tiled, the result comes in the shape in which it is used. Through another one XLA on CPU would join it once for
    # each use.
    return lax.all_to_all(block, axes, split_axis=0, concat_axis=0, tiled=True)


def from_slices(slices: jax.Array, sizes: Sequence[int], axes: tuple[str, ...]) -> list[jax.Array]:
    """Gathers all devices' slices of some vectors, one after the other, [M], and returns the vectors without padding.

    >>> mesh = jax.make_mesh((1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> there_and_back = lambda x: from_slices(to_slices([x], ("device",))[0], [3], ("device",))[0]
    >>> spec = jax.sharding.PartitionSpec()
    >>> jax.shard_map(there_and_back, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(jnp.ones((1, 3)))
    Array([1., 1., 1.], dtype=float32)
    """
    padded = cut(gather_workers(slices, axes), [slice_size(size, axes) for size in sizes])  # (devices, width) each
    return [x.reshape(-1)[:size] for x, size in zip(padded, sizes, strict=True)]
