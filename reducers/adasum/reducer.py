"""Adasum: gradients are summed where they are orthogonal and averaged where they are parallel."""

import functools
import math
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.fold import weigher
from reducers.adasum.gather import gather_and_fold
from reducers.adasum.halving import halving
from reducers.adasum.lanes import TOGETHER, LanePlan, fold_lanes, plan_lanes
from reducers.adasum.tree import Tree
from reducers.collectives import AxisName, axes_of, gather_workers, in_buckets, num_workers, too_small
from reducers.gram import groups
from reducers.gram.engine import Weighed, exchange_slices
from reducers.gram.reducer import split_axes
from reducers.gram.scales import wide
from reducers.gram.telemetry import initial_metrics, metrics_of
from reducers.options import check_options, check_static
from reducers.reducer import Reducer

Algorithm = Literal["auto", "gram", "halving", "gather"]


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
    algorithm: Algorithm = "auto",
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
        reference, and best for small layers. "auto" chooses "gram" or "gather" layer by layer, see
        ``adasum_algorithms``. Lanes are folded on their device first, where the tree allows it.
      group_size: how many neighbouring workers are combined first, before the groups are by Adasum; it divides the
        number of workers.
      within: how a group is combined. "mean" is what Horovod does inside a node of GPUs.
      telemetry: "on" keeps ``metrics`` of each layer and of the whole model in the state, see ``gram.Telemetry``. It
        works with "gram" and "gather" alone, and folds no lanes beforehand.

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
        present = jnp.ones(tree.num_nodes, bool)
        if contributes is not None:  # a zero gradient is neutral
            present = gather_workers(jnp.asarray(contributes, bool), axes)
            vectors = {name: jnp.where(contributes, vector, 0) for name, vector in vectors.items()}
        if within == "mean" and group_size > 1:  # the sum of shares
            share = _share(present, lax.axis_index(axes), group_size=group_size)
            vectors = {name: share * wide(vector) for name, vector in vectors.items()}
        results, weighed = _reduce(
            vectors, axes=axes, tree=tree, present=present, algorithm=algorithm, has_telemetry=has_telemetry
        )
        return restore(results), AdasumState(metrics_of(weighed)) if has_telemetry else state

    return Reducer(init_fn, update_fn, axis_name=axes, takes_mask=True, homogeneous=True)


def adasum_algorithms(
    updates: Any,
    *,
    num_devices: int,
    lanes: int = 1,
    granularity: str = "layer",
    algorithm: Algorithm = "auto",
    group_size: int = 1,
    within: Literal["mean", "sum", "adasum"] = "mean",
) -> dict[str, str]:
    """Returns which algorithm ``adasum`` takes for each layer, on devices with lanes.

    Args:
      updates: tree of arrays or ``jax.ShapeDtypeStruct``.
      num_devices: number of devices.
      lanes: workers on each device.
      granularity: as of ``adasum``.
      algorithm: as of ``adasum``.
      group_size: as of ``adasum``.
      within: as of ``adasum``.

    Returns:
      Name of each layer -> "gram", "halving" or "gather".

    Raises:
      ValueError: where ``adasum`` would.

    >>> adasum_algorithms({"b": np.zeros(10), "w": np.zeros((100, 100))}, num_devices=8)
    {'b': 'gather', 'w': 'gram'}
    """
    check_options(adasum, granularity=granularity, algorithm=algorithm, group_size=group_size, within=within)
    tree = Tree.of(num_devices * lanes, group_size=group_size, within=within)
    rest = _plan(lanes, tree, num_devices=num_devices, algorithm=algorithm).rest
    sizes = [math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(updates)]
    layers_of = groups.members(updates, granularity)
    chosen = functools.partial(_choose, algorithm=algorithm, num_devices=num_devices, tree=rest)
    return {name: chosen(sum(sizes[i] for i in leaves)) for name, leaves in layers_of.items()}


def _plan(num_lanes: int, tree: Tree, *, num_devices: int, algorithm: str, has_telemetry: bool = False) -> LanePlan:
    """Returns what each device combines of its own lanes before the algorithm runs between devices.

    It only adds lanes up where telemetry needs each worker's gradient, and where all workers are on one device and the
    algorithm is "gather", the reference, or they are few enough to be folded at once.
    """
    alone = num_devices == 1 and algorithm in ("auto", "gram", "gather")
    at_once = alone and (num_lanes <= TOGETHER or algorithm == "gather")
    return plan_lanes(num_lanes, tree, only_sums=has_telemetry or at_once)


def _choose(num_elements: int, *, algorithm: Algorithm, num_devices: int, tree: Tree) -> Algorithm:
    """Returns the algorithm for a layer; ``tree`` is what is left once each device has combined its lanes.

    Raises:
      ValueError: if the algorithm asked for cannot follow such a tree.
    """
    nodes = tree.num_nodes // num_devices
    if algorithm == "halving" and (nodes > 1 or tree.group_size > 1 or num_devices & (num_devices - 1)):
        groups = f" in groups of {tree.group_size}" if tree.group_size > 1 else ""
        raise ValueError(
            f"algorithm={algorithm!r}: must be 'gram' or 'gather' for {num_devices} devices that hold {nodes} subtrees "
            f"each{groups}; it takes a power of two of devices, and of lanes"
        )
    if algorithm in ("auto", "gram"):
        return "gather" if too_small(num_elements, num_gradients=tree.num_nodes) else "gram"
    return algorithm


def _share(present: jax.Array, worker: jax.Array, *, group_size: int) -> jax.Array:
    """Returns one over the number of workers that count in this worker's group."""
    return 1 / jnp.maximum(present.reshape(-1, group_size).sum(1)[worker // group_size], 1)


def _reduce(
    vectors: dict[str, jax.Array],
    *,
    axes: tuple[str, ...],
    tree: Tree,
    present: jax.Array,
    algorithm: Algorithm,
    has_telemetry: bool,
) -> tuple[dict[str, jax.Array], dict[str, Weighed]]:
    """Returns the result of every layer, [m], and how it combines the gradients if telemetry is asked for."""
    devices, lanes = split_axes(axes)
    if not devices and algorithm == "halving":
        devices, lanes = axes, ()  # as if the lanes were devices
    num_devices, num_lanes = num_workers(devices), num_workers(lanes)
    if num_devices == 1:
        devices = ()
    plan = _plan(num_lanes, tree, num_devices=num_devices, algorithm=algorithm, has_telemetry=has_telemetry)
    rest = plan.rest
    own = present.reshape(num_devices, num_lanes)[lax.axis_index(devices)]
    present = present.reshape(rest.num_nodes, -1).any(1)
    folded = fold_lanes([gather_workers(vector, lanes) for vector in vectors.values()], plan, present=own)
    nodes = dict(zip(vectors, folded, strict=True))  # (k, m) each
    if plan.folded and rest.num_nodes == 1:
        return {name: vector[0] for name, vector in nodes.items()}, {}

    def reduce(which: Algorithm, places: list[int], bucket: list[jax.Array]) -> list[tuple[jax.Array, Any]]:
        del places
        if which == "halving":
            return halving(bucket, axes=devices)
        if which == "gather":
            return gather_and_fold(bucket, axes=devices, tree=rest, present=present, has_telemetry=has_telemetry)
        return exchange_slices(bucket, (), weigh=weigher(rest), axes=devices, present=present)

    chosen: dict[Algorithm, list[str]] = {}
    for name, vector in vectors.items():
        which = _choose(vector.size, algorithm=algorithm, num_devices=num_devices, tree=rest)
        chosen.setdefault(which, []).append(name)
    results: dict[str, jax.Array] = {}
    weighed: dict[str, Weighed] = {}
    for which, names in chosen.items():
        done = in_buckets(functools.partial(reduce, which), [nodes[name] for name in names], axis_name=devices)
        for name, (result, how) in zip(names, done, strict=True):
            results[name] = result
            if has_telemetry:
                weighed[name] = how
    return results, weighed
