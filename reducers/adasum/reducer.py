"""Adasum: gradients are summed where they are orthogonal and averaged where they are parallel."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.adasum import layers
from reducers.adasum.choice import Algorithm, check, choose, plan_device
from reducers.adasum.gather import gather_and_fold
from reducers.adasum.gram import fold_slices
from reducers.adasum.lanes import fold_lanes
from reducers.adasum.messages import butterfly, halving
from reducers.adasum.pairs import Tree
from reducers.adasum.telemetry import Told, as_metrics
from reducers.axes import AxisName, gather_workers, lanes_of, num_workers
from reducers.batches import in_batches


class AdasumState(NamedTuple):
    """The same on all workers.

    Attributes:
      metrics: what ``telemetry`` tells of the last update.
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
) -> optax.GradientTransformationExtraArgs:
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
        log2(n) rounds, "butterfly" log2(n) times the gradient, both for powers of two. "gather" sends n - 1 times the
        gradient: the readable reference, and best for small layers. "auto" chooses layer by layer, as
        ``adasum_algorithms`` tells. Lanes are folded on their device first, where the tree allows it.
      group_size: so many neighbouring workers are combined first, then the groups by Adasum; it divides the workers.
      within: how a group is combined. "mean" is what Horovod does inside a node of GPUs.
      telemetry: "on" keeps in the state, of each layer, the step's length over the root of the summed squared lengths
        of what went in (1 if orthogonal), over the length of the mean, and the mean cosine of all pairs. It makes
        "auto" take "gram" or "gather", which alone know these, and folds no lanes beforehand.

    Returns:
      A reducer. Its update takes ``contributes``, optional: a bool of each worker, whether it is counted; a
      worker that is not counted is left out of the tree, whatever its values. Dtypes are kept, arithmetic is in
      float32 at least. NaN or Inf of a worker that counts makes its layer NaN, and no other.

    Raises:
      ValueError: for an unknown algorithm, or a granularity that is no regular expression; when traced, for an
        algorithm that the number of devices does not allow, or groups that do not divide the workers.

    >>> reducer = adasum("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[1.0, 0.0], [0.0, 2.0]]))[0]  # orthogonal: the sum
    Array([1., 2.], dtype=float32)

    Reference: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake, Barsoum, "Scaling Distributed
    Training with Adaptive Summation", arXiv 2006.02924. Differs from the paper in: any number of workers, not powers
    of two alone; in the Gram form a node that cancels out to rounding noise is added without a projection.
    """
    tells = telemetry == "on"
    check(algorithm, tells=tells)
    layers.check(granularity)
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name

    def init_fn(params):
        if not tells:
            return optax.EmptyState()
        return AdasumState(as_metrics({name: Told(0.0, 0.0, 0.0) for name in layers.members(params, granularity)}))

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        vectors, restore = layers.split(updates, granularity)
        tree = Tree.of(num_workers(axes), group_size=group_size, within=within)
        present = None if contributes is None else gather_workers(jnp.asarray(contributes), axes)  # (W,)
        if contributes is not None:  # a zero gradient is neutral
            vectors = {name: jnp.where(contributes, vector, 0) for name, vector in vectors.items()}
        if within == "mean" and group_size > 1:  # the sum of shares
            share = _share(present, lax.axis_index(axes), group_size=group_size)
            vectors = {name: share * layers.wide(vector) for name, vector in vectors.items()}
        results, told = _reduce(vectors, axes=axes, tree=tree, present=present, algorithm=algorithm, tells=tells)
        return restore(results), AdasumState(as_metrics(told)) if tells else state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _share(present: jax.Array | None, worker: jax.Array, *, group_size: int) -> jax.Array | float:
    """One over the number of workers that count in this worker's group."""
    if present is None:
        return 1 / group_size
    return 1 / jnp.maximum(present.reshape(-1, group_size).sum(1)[worker // group_size], 1)


def _reduce(
    vectors: dict[str, jax.Array],
    *,
    axes: tuple[str, ...],
    tree: Tree,
    present: jax.Array | None,
    algorithm: Algorithm,
    tells: bool,
) -> tuple[dict[str, jax.Array], dict[str, Told]]:
    """Returns the result of every layer, [m], and what it tells."""
    lanes = lanes_of(axes)
    devices = tuple(axis for axis in axes if axis not in lanes)
    if (*devices, *lanes) != axes:
        raise ValueError(f"axis_name={axes!r}: vmapped axes ({', '.join(lanes)}) must come after those of devices")
    if not devices and algorithm in ("halving", "butterfly"):
        devices, lanes = axes, ()  # as if the lanes were devices
    num_devices = num_workers(devices) if devices else 1
    if num_devices == 1:
        devices = ()
    num_lanes = num_workers(lanes) if lanes else 1
    plan = plan_device(num_lanes, tree, num_devices=num_devices, algorithm=algorithm, tells=tells)
    nodes = {name: gather_workers(vector, lanes) if lanes else vector[None] for name, vector in vectors.items()}
    own = None
    if present is not None:
        device = lax.axis_index(devices) if devices else 0
        own = present.reshape(num_devices, num_lanes)[device]
        present = present.reshape(plan.rest.num_nodes, -1).any(1)
    nodes = dict(zip(nodes, fold_lanes(list(nodes.values()), plan, present=own), strict=True))  # (k, m) each
    rest = plan.rest
    if plan.folded and rest.num_nodes == 1:
        return {name: vector[0] for name, vector in nodes.items()}, {}

    ways: dict[Algorithm, Callable[[list[jax.Array]], list[tuple[jax.Array, Any]]]] = {
        "gather": lambda batch: gather_and_fold(batch, axes=devices, tree=rest),
        "gram": lambda batch: fold_slices(batch, axes=devices, tree=rest, present=present),
        "halving": lambda batch: halving(batch, axes=devices),
        "butterfly": lambda batch: butterfly(batch, axes=devices),
    }
    chosen: dict[Algorithm, list[str]] = {}
    for name, vector in vectors.items():
        which = choose(vector.size, algorithm=algorithm, num_devices=num_devices, tree=rest)
        chosen.setdefault(which, []).append(name)
    results: dict[str, jax.Array] = {}
    told: dict[str, Told] = {}
    for which, names in chosen.items():
        stacked = [nodes[name] for name in names]
        done = in_batches(ways[which], stacked) if devices else ways[which](stacked)
        for name, (result, tell) in zip(names, done, strict=True):
            results[name] = result
            if tells:
                told[name] = tell()
    return results, told
