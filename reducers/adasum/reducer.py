"""Adasum: gradients are summed where they are orthogonal and averaged where they are parallel."""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.fold import adasum_rule
from reducers.adasum.levels import DEVICES_TOGETHER, LAST_TOGETHER, fold_levels, gather_and_fold, levels_of
from reducers.adasum.tree import Tree, add_up
from reducers.collectives import (
    AxisName,
    Combined,
    Devices,
    by_size,
    gather_workers,
    in_buckets,
    num_workers,
    split_axes,
)
from reducers.dtypes import wide
from reducers.gram.engine import exchange_slices
from reducers.gram.parts import WHOLE, Parts
from reducers.gram.products import Weighed
from reducers.gram.reducer import Telemetry, combining
from reducers.mesh import ShardedOver, axes_that_cut
from reducers.options import check_options, check_static
from reducers.reducer import Reducer

Algorithm = Literal["gram", "halving", "gather"]
# How many lanes of a device, and how many devices, are folded at once. With all pairs of n lanes, each lane takes part
# in n dot products; eight at a time, each lane costs the same whatever their number.
_TOGETHER = 8, DEVICES_TOGETHER, LAST_TOGETHER


def adasum(
    axis_name: AxisName,
    *,
    granularity: str = "layer",
    algorithm: Algorithm = "gram",
    group_size: Annotated[int, "[1, inf)"] = 1,
    within: Literal["mean", "sum", "adasum"] = "mean",
    telemetry: Telemetry = "off",
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Combines the workers' updates pairwise by Adasum along a tree, layer by layer.

    .. math:: R(g_1, \dots, g_n) = \mathrm{Adasum}(R(g_1, \dots, g_{n/2}), R(g_{n/2+1}, \dots, g_n))

    Any number of workers; the tree is that of ``tree.fold``. Before the optimizer it combines gradients, after it the
    optimizer's deltas, which is what the paper does for Momentum-SGD, Adam and LAMB.

    Args:
      axis_name: the worker axis or axes, lanes last.
      granularity: what counts as one vector: each "layer" (leaf), the whole "model", or a regular expression, and then
        the leaves in whose path, such as "Block_3/Conv_0/kernel", it matches the same text.
      algorithm: how the devices work the tree out; all give the same. "gram" exchanges slices and folds in the space
        of coefficients, by up to 16 neighbouring devices at once, and then their neighbours: 2 (n - 1) / n of the
        gradient, as an all-reduce sends, and 255 numbers a layer and level. "halving" does so by two at once: the
        paper's algorithm. "gather" sends n - 1 times the gradient: the readable reference. All but "gather" fold lanes
        on their device first, where the tree allows it, and gather small layers, whose dot products lose digits.
      group_size: how many neighbouring workers are combined first, before the groups are by Adasum; it divides the
        number of workers.
      within: how a group is combined. "mean" is what Horovod does inside a node of GPUs.
      telemetry: "on" keeps ``metrics`` of each layer and of the whole model in the state, see ``gram.Telemetry``. It
        measures the workers' gradients, in groups too. It works with all but "halving", folds no lanes beforehand, and
        sends n (n + 1) / 2 numbers a layer.
      sharded_over: the other manual axes of the mesh over which leaves are cut, see ``from_gram``. With axes all
        layers are folded by "gram", at once, which sends n (n + 1) / 2 numbers a layer; "halving" and "gather" fold
        vectors whose dot products no device knows.

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
    >>> jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[1.0, 0.0], [0.0, 2.0]]))[0]  # orthogonal: the sum
    Array([1., 2.], dtype=float32)

    Reference: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake, Barsoum, "Scaling Distributed
    Training with Adaptive Summation", arXiv 2006.02924. Differs from the paper in: any number of workers, not powers
    of two alone; in the Gram form a node that cancels out to rounding noise is added without a projection.
    """
    check_options(adasum, granularity=granularity, algorithm=algorithm, within=within, telemetry=telemetry)
    check_options(adasum, group_size=group_size)
    check_static(group_size=group_size)
    if telemetry == "on" and algorithm == "halving":
        allowed = ", ".join(repr(other) for other in get_args(Algorithm) if other != algorithm)
        raise ValueError(f"algorithm={algorithm!r}: must be one of {allowed} with telemetry")
    if axes_that_cut(sharded_over) and algorithm != "gram":
        raise ValueError(f"algorithm={algorithm!r}: must be 'gram' with sharded_over={sharded_over!r}")

    def combine(
        vectors: list[list[jax.Array]], state: Any, counted: jax.Array, shares: jax.Array, parts: Parts
    ) -> Combined:
        del state, shares
        takes_means = within == "mean" and group_size > 1
        tree = Tree.of(len(counted), group_size=group_size, within=within)
        if takes_means:  # the sum of shares
            share = 1 / _num_counted(counted, group_size)[lax.axis_index(axis_name)]
            vectors = jax.tree.map(lambda x: share * wide(x), vectors)
        devices, lanes = split_axes(axis_name)
        nodes = _Nodes(jax.tree.map(lambda x: gather_workers(x, lanes), vectors), tree, counted, devices)
        if algorithm == "gather":
            results, how = _by_gathering(nodes)
        elif telemetry == "on" or parts.axes:
            results, how = _by_products(nodes, parts)
        else:
            results, how = _by_levels(nodes, at_most=(2, 2, 2) if algorithm == "halving" else _TOGETHER)
        if telemetry == "on" and takes_means:
            how = _of_gradients(how, _num_counted(counted, group_size))
        return results, how

    return combining(axis_name, combine, granularity=granularity, telemetry=telemetry, sharded_over=sharded_over)


def _num_counted(counted: jax.Array, group_size: int) -> jax.Array:
    """Returns how many workers are counted in each worker's group, at least 1, [n]."""
    return jnp.repeat(jnp.maximum(counted.reshape(-1, group_size).sum(1), 1), group_size)


def _of_gradients(of_shares: Weighed, num_counted: jax.Array) -> Weighed:
    """Returns how gradients were combined, for telemetry, given how their shares of the groups' means were.

    Units and weights stay as they are. The scales become those of the gradients, which are no powers of two any more.

    Args:
      of_shares: of gradients divided by ``num_counted``.
      num_counted: [n], as ``_num_counted`` returns it.
    """
    products = of_shares.products
    return of_shares._replace(
        products=products._replace(scales=products.scales * num_counted[None].astype(products.scales.dtype))
    )


class _Nodes(NamedTuple):
    """The leaves of a tree, which the devices hold.

    Attributes:
      vectors: this device's nodes of every layer, parts of [k, m].
      tree: over the nodes of all devices, in device order.
      counted: which of all nodes are counted, [n] bool.
      devices: their axes, outer first; none for one device alone.
    """

    vectors: list[list[jax.Array]]
    tree: Tree
    counted: jax.Array
    devices: tuple[str, ...]

    def in_buckets(self, fold: Callable[[list[int], list[list[jax.Array]]], Combined]) -> Combined:
        """Folds layers bucket by bucket, by a function of their places in ``vectors`` and of parts of [1, k, m]."""
        one_block = jax.tree.map(lambda x: x[None], self.vectors)
        return in_buckets(fold, one_block, axis_name=self.devices, together=True)


def _by_gathering(nodes: _Nodes) -> Combined:
    """Every device folds the whole vectors of all."""
    given: dict[str, Any] = {"tree": nodes.tree, "devices": Devices(nodes.devices), "counted": nodes.counted[None]}
    return nodes.in_buckets(lambda _, vectors: gather_and_fold(vectors, **given))


def _by_products(nodes: _Nodes, parts: Parts = WHOLE) -> Combined:
    """The whole tree at once, in the space of coefficients: all dot products are known, for telemetry and for parts."""
    given: dict[str, Any] = {"tree": nodes.tree, "devices": Devices(nodes.devices), "counted": nodes.counted[None]}
    return nodes.in_buckets(lambda places, vectors: _fold_products(vectors, **given, parts=parts.at(places)))


def _by_levels(nodes: _Nodes, *, at_most: tuple[int, int, int]) -> Combined:
    """Neighbouring lanes of a device first, then neighbouring devices, and then their neighbours.

    Args:
      nodes: to be folded.
      at_most: how many lanes, how many devices, and how many devices of the last level, are folded at once.
    """
    lanes_at_most, devices_at_most, last_at_most = at_most
    nodes = _fold_lanes(nodes, at_most=lanes_at_most)
    if nodes.tree.num_nodes == 1:
        return nodes.vectors, None
    if not nodes.devices:
        return _by_products(nodes)
    levels = levels_of(nodes.tree, nodes.devices, at_most=devices_at_most, last=last_at_most)
    return nodes.in_buckets(lambda _, vectors: fold_levels(vectors, levels=levels, counted=nodes.counted))


def _fold_lanes(nodes: _Nodes, *, at_most: int) -> _Nodes:
    """Folds each device's whole subtrees, and returns the nodes that remain."""
    vectors, tree, counted, devices = nodes
    while (size := tree.neighbours(len(counted) // num_workers(devices), at_most=at_most)) > 1:
        here = counted.reshape(num_workers(devices), -1, size)[lax.axis_index(devices)]  # (blocks, size)
        blocks = jax.tree.map(lambda x, size=size: x.reshape(-1, size, x.shape[1]), vectors)
        if tree.adds:
            vectors = jax.tree.map(lambda x, size=size: add_up(wide(x), size)[:, 0], blocks)
        else:
            vectors, _ = _fold_products(blocks, tree=Tree(size), devices=Devices(()), counted=here, goes_on=True)
        tree, counted = tree.above(size), counted.reshape(-1, size).any(1)
    return _Nodes(vectors, tree, counted, devices)


def _fold_products(
    vectors: Sequence[Sequence[jax.Array]],
    *,
    tree: Tree,
    devices: Devices,
    counted: jax.Array,
    parts: Parts = WHOLE,
    goes_on: bool = False,
) -> Combined:
    """Folds small layers as ``gather_and_fold`` does, and large ones in the space of coefficients, at once.

    Layers of parts, whose vectors no device has, are all folded in the space of coefficients.
    """
    gather = functools.partial(gather_and_fold, tree=tree, devices=devices, counted=counted)
    given: dict[str, Any] = {"rule": adasum_rule(tree), "devices": devices, "counted": counted}
    exchange = functools.partial(exchange_slices, **given, goes_on=goes_on)
    if parts.axes:
        return exchange(vectors, parts=parts)
    return by_size(vectors, num_gradients=tree.num_nodes, small=gather, large=exchange)
