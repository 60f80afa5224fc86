"""An exchange after which each device has a slice of every vector."""

import functools
from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import backend
from reducers.collectives.buckets import consecutive
from reducers.collectives.devices import Devices
from reducers.collectives.joined import cut, join, pad_axis


def slice_size(num_elements: int, count: int) -> int:
    """Returns the number of elements in each of ``count`` slices of a vector, padding included.

    >>> slice_size(10, 4)
    3
    """
    return -(-num_elements // count)


def to_slices(vectors: Sequence[jax.Array], devices: Devices) -> list[jax.Array]:
    """Exchanges the vectors of all devices, so that each has a slice of every one: (n - 1) / n of the bytes.

    Args:
      vectors: this device's, [k, m] each, or [k, m, C] in chunks: k gradients, those of its lanes.
      devices: n of them.

    Returns:
      This device's slices of all gradients, for every bucket of consecutive vectors [n * k, M] or [n * k, M, C], one
      vector after the other, padded with zeros to ``slice_size`` each. Types are kept.
    """
    count = devices.count
    blocks = []
    for bucket in consecutive(vectors, limit=backend.exchange_bytes()):
        padded = [pad_axis(vectors[i], -vectors[i].shape[1] % count, axis=1) for i in bucket]
        slices = [x.reshape(len(x), count, -1, *x.shape[2:]).swapaxes(0, 1) for x in padded]  # (devices, k, width)
        blocks.append(_exchange(join([x.reshape(-1, *x.shape[2:]) for x in slices], axis=1), devices))
    return blocks


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


def own_from_slices(rows: jax.Array, sizes: Sequence[int], devices: Devices) -> list[jax.Array]:
    """Sends slices back, the reverse of ``to_slices``: each device then has its own vectors whole.

    Args:
      rows: this device's slices of all gradients, [n * k, M] or [n * k, M, C], one vector after the other.
      sizes: the sizes of the vectors, in elements or chunks.
      devices: n of them.

    Returns:
      This device's vectors without padding, [k, m] or [k, m, C] each.

    >>> mesh = jax.make_mesh((1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> one = Devices(("device",))
    >>> there_and_back = lambda x: own_from_slices(to_slices([x], one)[0], [3], one)[0]
    >>> spec = jax.sharding.PartitionSpec()
    >>> jax.shard_map(there_and_back, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(jnp.ones((2, 3)))
    Array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    count = devices.count
    of_devices = _exchange(rows, devices).reshape(count, -1, *rows.shape[1:])
    slices = cut(of_devices, [slice_size(size, count) for size in sizes], axis=2)
    whole = [x.swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:]) for x in slices]
    return [lax.slice_in_dim(x, 0, size, axis=1) for x, size in zip(whole, sizes, strict=True)]


def from_slices(slices: jax.Array, sizes: Sequence[int], devices: Devices, *, counts: Sequence[int] = ()) -> list:
    """Gathers all devices' slices of some vectors, [M] or [M, C], and returns the vectors without padding.

    Args:
      slices: this device's, one vector after the other.
      sizes: the sizes of the vectors, in elements or chunks.
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
    own = cut(slices, [of_vector[-1] for of_vector in widths], axis=0)
    gathered: list[jax.Array] = []  # [*counts, width] each
    for bucket in consecutive(own, limit=backend.exchange_bytes() / devices.count):
        of_bucket = join([own[i] for i in bucket])
        of_all = devices.gather(of_bucket).reshape(*reversed(counts), *of_bucket.shape)
        ordered = of_all.transpose(*reversed(range(len(counts))), *range(len(counts), of_all.ndim))
        gathered += cut(ordered, [len(own[i]) for i in bucket], axis=len(counts))
    return [_whole(x, of_vector) for x, of_vector in zip(gathered, widths, strict=True)]


def _whole(slices: jax.Array, widths: Sequence[int]) -> jax.Array:
    """Joins the slices of a vector, [*counts, width]; ``widths`` are its size, and those of its slices at each cut."""
    for axis, size in reversed(list(enumerate(widths[:-1]))):
        joined = slices.reshape(*slices.shape[:axis], -1, *slices.shape[axis + 2 :])
        slices = lax.slice_in_dim(joined, 0, size, axis=axis)
    return slices
