"""Operations written for XLA's backends; results depend on the backend only by rounding.

Each function here is a plain operation (a sum, a Gram matrix, an identity) written the way in which one backend is fast
at it. The measurements are at the end of ``benchmarks/RESULTS.md``, on CPU; of GPUs and TPUs their compilers' programs
decide.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reducers import targets
from reducers.dtypes import wide_dtype

# A collective takes a time of its own, however little it sends, and one over the network of several processes takes
# longer to begin. Measured with 4 processes over loopback and ResNet-50's 161 leaves in 25 MB: the mean takes 0.88 s
# leaf by leaf, 0.15 s in buckets of 1 MB, 0.1 s of 4 MB, 0.075 s of 16 MB. But in 16 MB LeNet-5 is one bucket, whose
# copies make a step of 2 processes 0.17 s long instead of 0.06. Devices of one process share its caches: 1 MB.
BUCKET_BYTES = 1 << 20
BUCKET_BYTES_OF_PROCESSES = 1 << 22
# On an accelerator a collective takes some 20 us before its first byte. Sums of 32 MB may begin while the backward pass
# goes on; the sums of ResNet-50's 161 leaves are 4 collectives. An exchange, which XLA cannot join to another one, and
# whose dot products are multiplied at once, has all vectors.
BUCKET_BYTES_OF_ACCELERATORS = 1 << 25
# Products of long, thin matrices are slow on CPU where they do not fit into a cache. Dot products of 64 vectors of
# 6 MB, eight by eight: 0.26 s at once, about 0.05 s in slices of 0.125 to 4 MB.
SLICE_BYTES = 1 << 21
# XLA on CPU sorts columns one by one: 1 M columns of 8 in 0.8 s, which a network of comparisons of whole rows sorts in
# 2 ms; of 32 in 4.8 s and 50 ms. A network of 64 rows takes 3 s to compile.
NETWORK_ROWS = 32
# Chunks of an average vector at least, and of a device. A TPU stores 8 x 128 numbers together, so a slice has a
# multiple of eight chunks, and a chunk a multiple of 128 numbers.
CHUNKS_OF_VECTOR, CHUNKS_OF_DEVICE, MIN_CHUNK, CHUNKS_OF_TILE = 16, 2048, 1024, 8


def shares_caches() -> bool:
    """Returns whether all devices are CPUs of one process, so that they exchange data through its caches."""
    return is_cpu() and targets.num_processes() == 1


def is_cpu() -> bool:
    """Returns whether programs are compiled for CPUs."""
    return targets.platform() == "cpu"


def is_tpu() -> bool:
    """Returns whether programs are compiled for TPUs, whose XLA sums several arrays at once without joining them."""
    return targets.platform() == "tpu"


def bucket_bytes() -> int:
    """Returns how many bytes small arrays may have together to share one sum, or another elementwise reduction."""
    if not is_cpu():
        return BUCKET_BYTES_OF_ACCELERATORS
    return BUCKET_BYTES if shares_caches() else BUCKET_BYTES_OF_PROCESSES


def exchange_bytes() -> float:
    """Returns how many bytes vectors may have together to share one exchange; on accelerators any number."""
    return bucket_bytes() if is_cpu() else math.inf


def chunk_size(num_elements: int, *, num_vectors: int, num_slices: int) -> int:
    """Returns the size of the chunks in which vectors are sent, a power of two; 0 on CPU, where none are.

    Half a chunk of each vector is padding, and each chunk has dot products of its own: few chunks a device, but each
    much smaller than a vector.

    Args:
      num_elements: of all vectors.
      num_vectors: how many there are.
      num_slices: the devices that they are cut over.
    """
    if is_cpu():
        return 0
    largest = num_elements // max(CHUNKS_OF_VECTOR * num_vectors, CHUNKS_OF_DEVICE * num_slices)
    return max(MIN_CHUNK, 1 << largest.bit_length() - 1 if largest else 0)


def each(function: Callable[..., Any], *columns: Sequence[jax.Array]) -> list[Any]:
    """Returns the function of each row of some columns; on accelerators rows of the same shapes are computed at once.

    A compiler of accelerators takes a second or two for what an encoding does with one leaf. ResNet-50's 161 leaves
    have 22 sizes, BERT-Large's 398 leaves 9. On CPU, stacking the leaves would copy them.

    >>> each(jnp.add, [jnp.zeros(2), jnp.zeros(1)], [jnp.ones(2), jnp.ones(1)])
    [Array([1., 1.], dtype=float32), Array([1.], dtype=float32)]
    """
    rows = list(zip(*columns, strict=True))
    if is_cpu():
        return [function(*row) for row in rows]
    alike: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(tuple(map(jax.typeof, row)), []).append(place)
    results: dict[int, Any] = {}
    for places in alike.values():
        if len(places) == 1:
            results[places[0]] = function(*rows[places[0]])
            continue
        of_all = jax.vmap(function)(*(jnp.stack(column) for column in zip(*(rows[i] for i in places), strict=True)))
        results |= {place: jax.tree.map(lambda x, i=i: x[i], of_all) for i, place in enumerate(places)}
    return [results[place] for place in range(len(rows))]


def sum_rows(rows: jax.Array) -> jax.Array:
    """Sums over the first axis, in float32 at least; integers in their own type.

    The sum is a product with ones: XLA on CPU sums rows some 20 times slower than it multiplies by a vector.

    >>> sum_rows(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([4., 6.], dtype=float32)
    """
    if len(rows) == 1:
        return rows[0]
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        return jnp.sum(rows, axis=0, dtype=rows.dtype)
    ones = jnp.ones(len(rows), rows.dtype)
    wide = wide_dtype(rows)
    return jnp.tensordot(ones, rows, 1, precision="highest", preferred_element_type=wide).astype(rows.dtype)


def sum_neighbours(rows: jax.Array, count: int) -> jax.Array:
    """Sums every ``count`` neighbouring rows, [..., n, m] -> [..., n / count, m]; also a product with ones.

    >>> sum_neighbours(jnp.array([[1.0], [2.0], [3.0], [4.0]]), 2)
    Array([[3.],
           [7.]], dtype=float32)
    """
    if count == 1:
        return rows
    blocks = rows.reshape(*rows.shape[:-2], -1, count, rows.shape[-1])
    return jnp.einsum("i,...im->...m", jnp.ones(count, rows.dtype), blocks, precision="highest")


def sort_rows(rows: jax.Array) -> list[jax.Array]:
    """Sorts along the first axis, NaN last; returns the rows one by one, or all of them in one array.

    Up to ``NETWORK_ROWS`` rows are sorted by a network of comparisons, each of two whole rows, and stay apart.

    Args:
      rows: [n, m].

    >>> sort_rows(jnp.array([[3.0, jnp.nan], [1.0, 2.0]]))
    [Array([[1., 2.]], dtype=float32), Array([[ 3., nan]], dtype=float32)]
    """
    if len(rows) > NETWORK_ROWS or not jnp.issubdtype(rows.dtype, jnp.floating):
        return [jnp.sort(rows, axis=0)]
    ordered = list(rows)
    for i, j in _comparisons(len(rows)):
        low, high = ordered[i], ordered[j]
        swap = (low > high) | (low != low)  # NaN goes up
        ordered[i] = lax.select(swap, high, low)
        ordered[j] = lax.select(swap, low, high)
    return [row[None] for row in ordered]


@functools.cache
def _comparisons(num_rows: int) -> list[tuple[int, int]]:
    """Returns the comparisons of Batcher's merge exchange: Knuth, volume 3, algorithm 5.2.2 M."""
    powers = [1 << bit for bit in reversed(range((num_rows - 1).bit_length()))]
    found = []
    for p in powers:
        found += [(i, i + p) for i in range(num_rows - p) if not i & p]
        for distance in [q - p for q in powers if q > p]:
            found += [(i, i + distance) for i in range(num_rows - distance) if i & p]
    return found


def dot_products(rows: jax.Array) -> jax.Array:
    r"""Returns the Gram matrix of each layer; on CPU slice by slice, so that a slice of all vectors fits into a cache.

    .. math:: G_{lij} = \sum_m x_{lim} x_{ljm}

    Args:
      rows: [layers, n, m].

    Returns:
      [layers, n, n].

    >>> dot_products(jnp.array([[[1.0, 2.0], [3.0, 0.0]]]))
    Array([[[5., 3.],
            [3., 9.]]], dtype=float32)
    """
    _, num_vectors, length = rows.shape
    width = max(1, SLICE_BYTES // (num_vectors * rows.dtype.itemsize))
    if length <= 2 * width:
        return _at_once(rows)
    return lax.platform_dependent(rows, cpu=functools.partial(_slice_by_slice, width=width), default=_at_once)


def dot_products_of_quotients(rows: jax.Array) -> jax.Array:
    """Returns the Gram matrix of each layer as ``dot_products`` does, where rows were divided by something.

    On a GPU it is a sum of products, not a product of matrices, before which the quotients would be written to memory.
    """
    return (rows[:, :, None] * rows[:, None]).sum(-1) if targets.platform() == "gpu" else dot_products(rows)


def _at_once(rows: jax.Array) -> jax.Array:
    return jnp.einsum("lim,ljm->lij", rows, rows, precision="highest")


def _slice_by_slice(rows: jax.Array, *, width: int) -> jax.Array:
    num_layers, num_vectors, length = rows.shape
    num_slices = length // width  # of a layer; the remainder is shorter than one

    def add(number, products):
        layer = number // num_slices
        part = number % num_slices
        x = lax.dynamic_slice(rows, (layer, 0, part * width), (1, num_vectors, width))
        return products.at[layer].add(_at_once(x)[0])

    nothing = jnp.zeros_like(rows, shape=(num_layers, num_vectors, num_vectors))  # varies over devices as the rows do
    products = lax.fori_loop(0, num_layers * num_slices, add, nothing)
    return products + _at_once(rows[..., num_slices * width :])


def wait_for(end: jax.Array, vector: jax.Array) -> jax.Array:
    """Returns the vector; on CPU as a value that depends on ``end``, so that XLA computes ``end`` first.

    Buffers of earlier buckets can then be used again and stay in cache. Measured on 8 devices of 2 cores, 10 M floats:
    2 MB of scratch memory instead of 36, and half the time. Elsewhere nothing waits, so that a large leaf is exchanged
    as soon as its gradient is there, while others are still computed.
    """
    ends, own = (jax.typeof(x).manual_axis_type.varying for x in (end, vector))
    if not ends <= own:  # else JAX would take the vector to differ over more axes than it does
        return vector
    return lax.platform_dependent(end, vector, cpu=_dependent, default=lambda end, vector: vector)


def _dependent(end: jax.Array, vector: jax.Array) -> jax.Array:
    # The condition always holds, but XLA cannot tell. ``lax.optimization_barrier`` would not do: XLA on CPU removes it
    # before it decides on an order.
    bits = lax.bitcast_convert_type(end, jnp.dtype(f"int{8 * end.dtype.itemsize}"))
    return jnp.where(bits | 1 != 0, vector, 0)
