"""An exchange after which each device has a slice of every vector."""

import functools
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives.buckets import consecutive
from reducers.collectives.devices import Devices
from reducers.collectives.joined import cut, join


def slice_size(num_elements: int, count: int) -> int:
    """Returns the number of elements in each of ``count`` slices of a vector, padding included.

    >>> slice_size(10, 4)
    3
    """
    return -(-num_elements // count)


def to_slices(vectors: Sequence[jax.Array], devices: Devices) -> list[jax.Array]:
    """Exchanges the vectors of all devices, so that each has a slice of every one: (n - 1) / n of the bytes.

    Args:
      vectors: this device's, [k, m] each: k gradients, those of its lanes.
      devices: n of them.

    Returns:
      This device's slices of all gradients, for every bucket of consecutive vectors [n * k, M], one vector after the
      other, padded with zeros to ``slice_size`` each. Types are kept.
    """
    return [_to_slices([vectors[i] for i in bucket], devices) for bucket in consecutive(vectors)]


def _to_slices(vectors: Sequence[jax.Array], devices: Devices) -> jax.Array:
    count = devices.count
    padded = [jnp.pad(x, ((0, 0), (0, -x.shape[1] % count))) for x in vectors]
    slices = [x.reshape(len(x), count, -1).swapaxes(0, 1) for x in padded]  # (devices, k, width)
    block = join([x.reshape(len(vectors[0]) * count, -1) for x in slices], axis=1)
    return _exchange(block, devices)


def _exchange(block: jax.Array, devices: Devices) -> jax.Array:
    """Sends a block of rows to each device, [count * rows, ...]; returns what they sent to this one, in their order."""
    # Tiled, the result comes in the shape in which it is used. Through another one XLA on CPU would join it once for
    # each use.
    exchange = functools.partial(
        lax.all_to_all,
        axis_name=devices.axes,
        split_axis=0,
        concat_axis=0,
        tiled=True,
        axis_index_groups=devices.groups,
    )
    return exchange(block) if devices.groups is None else _over_lanes(exchange)(block)


def _over_lanes(exchange: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """Returns an exchange along the first axis that may be vmapped, which JAX refuses where devices are in groups."""
    mapped = jax.custom_batching.custom_vmap(exchange)

    @mapped.def_vmap
    def _(axis_size, in_batched, blocks):
        del axis_size, in_batched  # one argument, which is batched
        return jnp.moveaxis(mapped(jnp.moveaxis(blocks, 0, -1)), -1, 0), True

    return mapped


def from_slices(slices: jax.Array, sizes: Sequence[int], devices: Devices, *, counts: Sequence[int] = ()) -> list:
    """Gathers all devices' slices of some vectors, one after the other, [M], and returns the vectors without padding.

    Args:
      slices: this device's.
      sizes: the sizes of the vectors.
      devices: all that have slices.
      counts: into how many slices a vector was cut, then each slice, and so on, where the first cut is the last digit
        of a device's index; () if it was cut once, into a slice for each device.

    >>> mesh = jax.make_mesh((1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> one = Devices(("device",))
    >>> there_and_back = lambda x: from_slices(to_slices([x], one)[0][0], [3], one)[0]
    >>> spec = jax.sharding.PartitionSpec()
    >>> jax.shard_map(there_and_back, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(jnp.ones((1, 3)))
    Array([1., 1., 1.], dtype=float32)
    """
    counts = counts or (devices.count,)
    widths = [[size] for size in sizes]  # of a vector, of its slices, of their slices, ...
    for count in counts:
        for of_vector in widths:
            of_vector.append(slice_size(of_vector[-1], count))
    own = cut(slices, [of_vector[-1] for of_vector in widths])
    gathered: list[jax.Array] = []  # [devices, width] each
    for bucket in consecutive([jax.ShapeDtypeStruct((size,), slices.dtype) for size in sizes]):
        of_bucket = [own[i] for i in bucket]
        gathered += cut(devices.gather(join(of_bucket)), [x.size for x in of_bucket])
    return [_whole(x, counts, of_vector) for x, of_vector in zip(gathered, widths, strict=True)]


def _whole(slices: jax.Array, counts: Sequence[int], widths: Sequence[int]) -> jax.Array:
    """Joins the slices of a vector, [devices, width]; ``widths`` are its size, and those of its slices at each cut."""
    x = slices.reshape(*reversed(counts), -1)
    for size in reversed(widths[:-1]):
        x = jnp.moveaxis(x, 0, -2)
        x = x.reshape(*x.shape[:-2], -1)[..., :size]
    return x
