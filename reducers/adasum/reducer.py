"""Adasum: gradients are summed where they are orthogonal and averaged where they are parallel."""

import functools
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.gather import gather_and_fold
from reducers.adasum.halving import halving
from reducers.adasum.lanes import fold_lanes, whole_subtrees
from reducers.adasum.tree import Tree
from reducers.collectives import AxisName, axes_of, by_size, gather_workers, in_buckets, num_workers
from reducers.gram import groups
from reducers.gram.engine import exchange_slices
from reducers.gram.reducer import split_axes, take_part
from reducers.gram.scales import wide
from reducers.gram.telemetry import initial_metrics, metrics_of
from reducers.options import check_options, check_static
from reducers.reducer import Reducer

Algorithm = Literal["gram", "halving", "gather"]


class AdasumState(NamedTuple):
    """State of ``adasum`` with telemetry, the same on all workers.

    Attributes:
      metrics: of the last update, name -> scalar.
    """

    metrics: dict[str, Any]


def adasum(
    axis_name: AxisName,
    *,
    granularity: str = "layer",
    algorithm: Algorithm = "gram",
    group_size: Annotated[int, "[1, inf)"] = 1,
    within: Literal["mean", "sum", "adasum"] = "mean",
    telemetry: Literal["off", "on"] = "off",
) -> Reducer:
    r"""Combines the workers' updates pairwise by Adasum along a tree, layer by layer.

    .. math:: R(g_1, \dots, g_n) = \mathrm{Adasum}(R(g_1, \dots, g_{n/2}), R(g_{n/2+1}, \dots, g_n))

    Any number of workers; the tree is that of ``pairs.fold``. Before the optimizer it combines gradients, after it the
    optimizer's deltas, which is what the paper does for Momentum-SGD, Adam and LAMB.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first; lanes last.
      granularity: what counts as one vector: each "layer" (leaf), the whole "model", or a regular expression, and then
        the leaves in whose path, such as "Block_3/Conv_0/kernel", it matches the same text.
      algorithm: how the devices work the tree out; all give the same. "gram" exchanges slices and folds in the space
        of coefficients, which sends 2 (n - 1) / n of the gradient, as an all-reduce does. "halving" sends as much in
        log2(n) rounds, for powers of two: the paper's algorithm. "gather" sends n - 1 times the gradient: the readable
        reference. All but "gather" fold lanes on their device first, where the tree allows it; "gram" gathers small
        layers, whose dot products lose digits.
      group_size: how many neighbouring workers are combined first, before the groups are by Adasum; it divides the
        number of workers.
      within: how a group is combined. "mean" is what Horovod does inside a node of GPUs.
      telemetry: "on" keeps ``metrics`` of each layer and of the whole model in the state, see ``gram.Telemetry``. It
        works with all but "halving", and folds no lanes beforehand.

    Returns:
      A reducer. Its update takes ``contributes``, optional: a bool of each worker, whether it is counted; a
      worker that is not counted is left out of the tree, whatever its values. Dtypes are kept, arithmetic is in
      float32 at least. NaN or Inf in a layer of a worker that counts makes this layer NaN, and no other.

    Raises:
      ValueError: for an unknown algorithm, or a granularity that is no regular expression; when traced, for a pattern
        that matches no leaf, an algorithm that the number of devices does not allow, or groups that do not divide the
        workers.

    >>> reducer = adasum("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[1.0, 0.0], [0.0, 2.0]]))[0]  # orthogonal: the sum
    Array([1., 2.], dtype=float32)

    Reference: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake, Barsoum, "Scaling Distributed
    Training with Adaptive Summation", arXiv 2006.02924. Differs from the paper in: any number of workers, not powers
    of two alone; in the Gram form a node that cancels out to rounding noise is added without a projection.
    """
    check_options(adasum, granularity=granularity, algorithm=algorithm, within=within, telemetry=telemetry)
    check_options(adasum, group_size=group_size)
    check_static(group_size=group_size)
    has_telemetry = telemetry == "on"
    if has_telemetry and algorithm == "halving":
        allowed = ", ".join(repr(other) for other in get_args(Algorithm) if other != algorithm)
        raise ValueError(f"algorithm={algorithm!r}: must be one of {allowed} with telemetry")
    groups.check(granularity)
    axes = axes_of(axis_name)

    def init_fn(params):
        if not has_telemetry:
            return optax.EmptyState()
        return AdasumState(initial_metrics(groups.members(params, granularity)))

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        vectors, restore = groups.split(updates, granularity)
        tree = Tree.of(num_workers(axes), group_size=group_size, within=within)
        vectors, present = take_part(vectors, contributes, axes)  # a zero gradient is neutral
        if within == "mean" and group_size > 1:  # the sum of shares
            share = 1 / jnp.maximum(present.reshape(-1, group_size).sum(1)[lax.axis_index(axes) // group_size], 1)
            vectors = {name: share * wide(vector) for name, vector in vectors.items()}
        combined = _combine(
            list(vectors.values()), axes=axes, tree=tree, present=present, algorithm=algorithm, apart=has_telemetry
        )
        if has_telemetry:
            state = AdasumState(metrics_of(dict(zip(vectors, [how for _, how in combined], strict=True))))
        return restore(dict(zip(vectors, [result for result, _ in combined], strict=True))), state

    return Reducer(init_fn, update_fn, axis_name=axes, takes_mask=True, homogeneous=True)


def _combine(
    vectors: list[jax.Array],
    *,
    axes: tuple[str, ...],
    tree: Tree,
    present: jax.Array,
    algorithm: Algorithm,
    apart: bool,
) -> list[tuple[jax.Array, Any]]:
    """Returns the result of every layer, [m], and how it combines the nodes; ``apart`` makes every worker a node."""
    devices, lanes = split_axes(axes)
    if algorithm == "halving" and not devices:
        devices, lanes = axes, ()  # as if the lanes were devices
    num_devices, num_lanes = num_workers(devices), num_workers(lanes)
    nodes = [gather_workers(vector, lanes) for vector in vectors]  # (k, m) each
    if algorithm != "gather" and not apart:
        subtrees, tree = whole_subtrees(num_lanes, tree)
        if tree.num_nodes == 1 and subtrees:
            tree = subtrees.pop()  # all that is left, which needs no other device
        own = present.reshape(num_devices, num_lanes)[lax.axis_index(devices)]
        for subtree in subtrees:
            nodes = fold_lanes(nodes, subtree, present=own)
            own = own.reshape(-1, subtree.num_nodes).any(1)
        present = present.reshape(tree.num_nodes, -1).any(1)
    if algorithm == "halving" and (
        tree.num_nodes > num_devices or tree.group_size > 1 or num_devices & (num_devices - 1)
    ):
        groups = f" in groups of {tree.group_size}" if tree.group_size > 1 else ""
        raise ValueError(
            f"algorithm={algorithm!r}: must be 'gram' or 'gather' for {num_devices} devices that hold "
            f"{tree.num_nodes // num_devices} subtrees each{groups}; it takes a power of two of devices, and of lanes"
        )

    def reduce(places: list[int], bucket: list[jax.Array]) -> list[tuple[jax.Array, Any]]:
        del places
        if algorithm == "halving":
            return halving(bucket, axes=devices)
        gather = functools.partial(gather_and_fold, axes=devices, tree=tree, present=present)
        if algorithm == "gather":
            return gather(bucket)
        exchange = functools.partial(exchange_slices, state=(), weigh=weigher(tree), axes=devices, present=present)
        return by_size(bucket, num_gradients=tree.num_nodes, small=gather, large=exchange)

    return in_buckets(reduce, nodes, axis_name=devices)
