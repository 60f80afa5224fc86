"""Collectives of many arrays: small ones share one, in a *bucket*, and large ones have one each."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import backend
from reducers.collectives.axes import AxisName, devices_and_lanes, gather_workers, num_workers, tracked_axes
from reducers.collectives.joined import cut, join

# The results of a reduction, for each vector an array or several; and how it made them: a tree of arrays with a leading
# axis of vectors, or None.
Combined: TypeAlias = tuple[list[Any], Any]

# So many buckets are under way at once: one is sent while another is computed with.
IN_FLIGHT = 2
# Vectors of fewer elements, and of fewer elements a gradient, are gathered as they are.
_MIN_ELEMENTS, _MIN_ELEMENTS_PER_GRADIENT = 64, 8


def sum_workers(tree: Any, axis_name: AxisName, *, where: jax.Array | None = None) -> Any:
    """Sums every array of a tree over all workers: lanes on their device, then ``lax.psum`` over devices.

    Sums over lanes accumulate in float32 at least, those of integers in their own type.

    Args:
      tree: this worker's arrays.
      axis_name: the worker axis or axes.
      where: a bool of each worker, whether its arrays are added; None adds those of all.

    >>> jax.vmap(lambda x: sum_workers({"w": x}, "worker"), axis_name="worker")(jnp.arange(3.0))
    {'w': Array([3., 3., 3.], dtype=float32)}
    """
    devices, lanes = devices_and_lanes(axis_name)
    if where is not None:
        tree = jax.tree.map(lambda x: jnp.where(where, x, 0), tree)
    if lanes:
        tree = jax.tree.map(lambda x: backend.sum_rows(gather_workers(x, lanes)), tree)
    # XLA removes the sum of a single device, but too late to see that what follows is computed of equal numbers twice.
    if not devices or (num_workers(devices) == 1 and not tracked_axes().intersection(devices)):
        return tree
    add = functools.partial(lax.psum, axis_name=devices)
    return jax.tree.map(add, tree) if backend.is_tpu() else map_together(add, tree, axis_name=devices)


def map_together(reduce: Callable[[jax.Array], jax.Array], tree: Any, *, axis_name: AxisName) -> Any:
    """Applies an elementwise reduction to every array of a tree, bucket by bucket; on one device array by array.

    Args:
      reduce: along ``axis_name``; an element of its result depends on the workers' values of that element alone.
      tree: a tree of arrays.
      axis_name: the worker axis or axes.

    >>> double = lambda x: 2 * x
    >>> jax.vmap(lambda x: map_together(double, {"w": x}, axis_name="worker"), axis_name="worker")(jnp.ones(2))
    {'w': Array([2., 2.], dtype=float32)}
    """
    devices, _ = devices_and_lanes(axis_name)
    # Where nothing is sent, XLA would join the arrays of a bucket anew in every operation that reads one of them.
    if not devices or num_workers(devices) == 1:
        return jax.tree.map(reduce, tree)
    leaves, treedef = jax.tree.flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    results: list[Any] = [None] * len(arrays)
    for bucket in buckets(arrays, limit=backend.bucket_bytes()):
        if len(bucket) == 1:
            results[bucket[0]] = reduce(arrays[bucket[0]])
            continue
        reduced = reduce(join([arrays[i].ravel() for i in bucket]))
        for i, part in zip(bucket, cut(reduced, [arrays[i].size for i in bucket]), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return jax.tree.unflatten(treedef, results)


def in_buckets(
    reduce: Callable[[list[int], list[Any]], Combined],
    vectors: Sequence[Any],
    *,
    axis_name: tuple[str, ...],
    together: bool = False,
) -> Combined:
    """Applies ``reduce`` to buckets of vectors; the number of calls follows the bytes, not the number of vectors.

    Where nothing is sent, all vectors are one bucket.

    Args:
      reduce: takes the places of vectors and the vectors, of one dtype.
      vectors: arrays in any number of dimensions, or several of one dtype each.
      axis_name: the devices that they are reduced over; empty for one device.
      together: between processes, whether one call has all buckets of a dtype, one after the other. It is for a
        ``reduce`` that divides its vectors into ``consecutive`` buckets itself, and sums some numbers of all at once.

    >>> double = lambda places, bucket: ([2 * x for x in bucket], jnp.array(places))
    >>> in_buckets(double, [jnp.ones(2), jnp.ones(1)], axis_name=("device",))
    ([Array([2., 2.], dtype=float32), Array([2.], dtype=float32)], Array([0, 1], dtype=int32))
    """
    if not vectors:
        return [], None
    if not axis_name:
        return reduce(list(range(len(vectors))), list(vectors))
    parts: list[tuple[list[int], Combined]] = []
    calls = buckets(vectors, limit=backend.exchange_bytes())
    if together and not backend.shares_caches():
        of_dtypes = itertools.groupby(calls, key=lambda bucket: jax.tree.leaves(vectors[bucket[0]])[0].dtype)
        calls = [list(itertools.chain(*of_dtype)) for _, of_dtype in of_dtypes]
    for bucket in calls:
        chosen = [vectors[i] for i in bucket]
        if len(parts) >= IN_FLIGHT:
            _, (earlier, _) = parts[-IN_FLIGHT]
            end = jax.tree.leaves(earlier[0])[0].ravel()[0]
            chosen = jax.tree.map(functools.partial(backend.wait_for, end), chosen)
        parts.append((bucket, reduce(bucket, chosen)))
    return _in_order(parts)


def too_small(num_elements: int, *, num_gradients: int) -> bool:
    """Returns whether slices of a vector are too small to be worth an exchange.

    Dot products of so few elements lose digits, too, where many gradients nearly cancel.
    """
    return num_elements < max(_MIN_ELEMENTS, _MIN_ELEMENTS_PER_GRADIENT * num_gradients)


def by_size(
    vectors: Sequence[Sequence[jax.Array]],
    *,
    num_gradients: int,
    small: Callable[[list[Sequence[jax.Array]]], Combined],
    large: Callable[[list[Sequence[jax.Array]]], Combined],
) -> Combined:
    """Combines vectors, parts of [..., m], by one function if they are ``too_small``, or by another; keeps their order.

    >>> small, large = (lambda xs, word=word: ([word for _ in xs], None) for word in ("small", "large"))
    >>> by_size([[jnp.ones(60), jnp.ones(40)], [jnp.ones(2)]], num_gradients=2, small=small, large=large)
    (['large', 'small'], None)
    """
    sizes = [sum(x.shape[-1] for x in parts) for parts in vectors]
    parts = []
    for combine, is_small in ((small, True), (large, False)):
        places = [i for i, size in enumerate(sizes) if too_small(size, num_gradients=num_gradients) == is_small]
        if places:
            parts.append((places, combine([vectors[i] for i in places])))
    return _in_order(parts)


def _in_order(parts: Sequence[tuple[list[int], Combined]]) -> Combined:
    """Puts together what was combined apart, by the places of the vectors."""
    back = np.argsort([i for places, _ in parts for i in places])
    results = [x for _, (xs, _) in parts for x in xs]
    how = jax.tree.map(lambda *x: jnp.concatenate(x)[back], *(how for _, (_, how) in parts))
    return [results[i] for i in back], how


def buckets(arrays: Sequence[Any], *, limit: float) -> list[list[int]]:
    """Returns the indices of the arrays that share a collective: of one kind, up to ``limit`` bytes, small ones first.

    >>> buckets([jnp.zeros(300_000), jnp.zeros(2), jnp.zeros(3), jnp.zeros(1, jnp.int8)], limit=1 << 20)
    [[1, 2], [0], [3]]
    """
    order = sorted(range(len(arrays)), key=lambda i: (_kind(arrays[i]), _num_bytes(arrays[i])))
    return [[order[i] for i in bucket] for bucket in consecutive([arrays[i] for i in order], limit=limit)]


def _kind(array: Any) -> tuple[str, list[str]]:
    """Returns the dtype and the axes along which an array differs for JAX: joined, all would differ along them."""
    parts = jax.tree.leaves(array)
    axes = [jax.typeof(part).manual_axis_type.varying for part in parts if isinstance(part, jax.Array)]
    return parts[0].dtype.name, sorted(frozenset[str]().union(*axes))


def _num_bytes(array: Any) -> int:
    return sum(part.size * part.dtype.itemsize for part in jax.tree.leaves(array))


def consecutive(arrays: Sequence[Any], *, limit: float) -> list[list[int]]:
    """Returns the indices of the arrays that share a collective, of up to ``limit`` bytes, in their order.

    >>> consecutive([jnp.zeros(300_000), jnp.zeros(2), jnp.zeros(3), jnp.zeros(1, jnp.int8)], limit=1 << 20)
    [[0], [1, 2], [3]]
    """
    found: list[list[int]] = []
    free = 0.0
    for i, array in enumerate(arrays):
        num_bytes = _num_bytes(array)
        if not found or num_bytes > free or _kind(array) != _kind(arrays[i - 1]):
            found.append([])
            free = limit
        found[-1].append(i)
        free -= num_bytes
    return found
