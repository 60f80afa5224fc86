"""Many arrays, a few at a time: exchanged together where they are small, and in memory only for a while.

A collective takes a time of its own, however little it sends. Measured with 4 processes over loopback and ResNet-50's
161 leaves in 25 MB: the mean takes 0.88 s leaf by leaf, 0.15 s in batches of 1 MB, 0.1 s of 4 MB, 0.075 s of 16 MB. But
in 16 MB LeNet-5 is one batch, whose copies make a step of 2 processes 0.17 s long instead of 0.06.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reducers.axes import AxisName, lanes_of

# Arrays are exchanged together up to so many bytes, larger ones alone: between devices of a process, which share its
# caches, and of several, where a collective takes longer to begin.
BATCH_BYTES, BATCH_BYTES_OF_PROCESSES = 1 << 20, 1 << 22
# A batch begins when the one so many before it has ended: one is on its way while another is computed with.
IN_FLIGHT = 2


def map_together(reduce: Callable[[jax.Array], jax.Array], tree: Any, *, axis_name: AxisName) -> Any:
    """Applies an elementwise reduction to every array of a tree, to small ones of a dtype as one; as they are on lanes.

    Args:
      reduce: along ``axis_name``; an element of its result depends on the workers' values of that element alone.
      tree: of arrays.
      axis_name: the worker axis, or a tuple of axes, outer first; of no device there is nothing to exchange.

    >>> double = lambda x: 2 * x
    >>> jax.vmap(lambda x: map_together(double, {"w": x}, axis_name="worker"), axis_name="worker")(jnp.ones(2))
    {'w': Array([2., 2.], dtype=float32)}
    """
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    if lanes_of(axes) == tuple(axes):
        return jax.tree.map(reduce, tree)
    leaves, treedef = jax.tree.flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    results: list[Any] = [None] * len(arrays)
    for batch in together(arrays):
        if len(batch) == 1:
            results[batch[0]] = reduce(arrays[batch[0]])
            continue
        reduced = reduce(join([arrays[i].ravel() for i in batch]))
        for i, part in zip(batch, cut(reduced, [arrays[i].size for i in batch]), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return jax.tree.unflatten(treedef, results)


def in_batches(
    reduce: Callable[[list[jax.Array]], list[tuple[jax.Array, Any]]], vectors: Sequence[jax.Array]
) -> list[tuple[jax.Array, Any]]:
    """Applies ``reduce`` to batches of vectors; the number of calls follows the bytes, not the number of vectors.

    On CPU a batch waits for an earlier one, so that its buffers can be used again and stay in cache. Measured on 8
    devices of 2 cores, 10 M floats: 2 MB of scratch memory instead of 36, and half the time. Elsewhere none waits, so
    that a large leaf can be exchanged as soon as its gradient is there, while others are still computed.

    Args:
      reduce: of a list of vectors; of each returns a vector, and whatever else is to be known of it.
      vectors: arrays of the same dtype in any number of dimensions.

    >>> double = lambda batch: [(2 * x, "doubled") for x in batch]
    >>> in_batches(double, [jnp.ones(2), jnp.ones(1)])
    [(Array([2., 2.], dtype=float32), 'doubled'), (Array([2.], dtype=float32), 'doubled')]
    """
    results: dict[int, tuple[jax.Array, Any]] = {}
    ends: list[jax.Array] = []  # an element of each batch's result
    for batch in together(vectors):
        chosen = [vectors[i] for i in batch]
        if len(ends) >= IN_FLIGHT:
            chosen = [_after(ends[-IN_FLIGHT], vector) for vector in chosen]
        done = reduce(chosen)
        results |= dict(zip(batch, done, strict=True))
        ends.append(done[0][0][0])
    return [results[i] for i in range(len(vectors))]


def together(arrays: Sequence[jax.Array]) -> list[list[int]]:
    """Returns which arrays go together, by their places: of a dtype, the small ones first.

    >>> together([jnp.zeros(300_000), jnp.zeros(2), jnp.zeros(3), jnp.zeros(1, jnp.int8)])
    [[1, 2], [0], [3]]
    """
    limit = BATCH_BYTES if jax.process_count() == 1 else BATCH_BYTES_OF_PROCESSES
    batches: list[list[int]] = []
    free = 0
    for i in sorted(range(len(arrays)), key=lambda i: (arrays[i].dtype.name, arrays[i].nbytes)):
        if not batches or arrays[i].nbytes > free or arrays[i].dtype != arrays[batches[-1][0]].dtype:
            batches.append([])
            free = limit
        batches[-1].append(i)
        free -= arrays[i].nbytes
    return batches


def join(parts: Sequence[jax.Array], *, axis: int = 0) -> jax.Array:
    """The parts one after the other; a single one as it is, uncopied."""
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]


def cut(joined: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
    """Takes the parts out again, along the last axis.

    >>> cut(jnp.arange(3), [1, 2])
    [Array([0], dtype=int32), Array([1, 2], dtype=int32)]
    """
    ends = itertools.accumulate(widths)
    return [joined[..., end - width : end] for width, end in zip(widths, ends, strict=True)]


def _after(end: jax.Array, vector: jax.Array) -> jax.Array:
    """The vector, on CPU as something that depends on ``end``."""
    return lax.platform_dependent(end, vector, cpu=_dependent, default=lambda end, vector: vector)


def _dependent(end: jax.Array, vector: jax.Array) -> jax.Array:
    # The condition always holds, which XLA does not find out; it removes ``lax.optimization_barrier`` on CPU before it
    # decides on an order.
    bits = lax.bitcast_convert_type(end, jnp.dtype(f"int{8 * end.dtype.itemsize}"))
    return jnp.where(bits | 1 != 0, vector, 0)
