"""Adasum: gradients are summed where they are orthogonal and averaged where they are parallel."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import jax
from jax import lax
from jax import numpy as jnp

from reducers.adasum.fold import adasum_rule
from reducers.adasum.gather import gather_and_fold
from reducers.adasum.halving import halving
from reducers.adasum.tree import Tree
from reducers.backend import sum_neighbours
from reducers.collectives import AxisName, axes_of, by_size, gather_workers, in_buckets, num_workers
from reducers.gram.engine import exchange_slices
from reducers.gram.reducer import Telemetry, combining, split_axes
from reducers.gram.scales import wide
from reducers.options import check_options, check_static
from reducers.reducer import Reducer

Algorithm = Literal["gram", "halving", "gather"]


def adasum(
    axis_name: AxisName,
    *,
    granularity: str = "layer",
    algorithm: Algorithm = "gram",
    group_size: Annotated[int, "[1, inf)"] = 1,
    within: Literal["mean", "sum", "adasum"] = "mean",
    telemetry: Telemetry = "off",
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
    if telemetry == "on" and algorithm == "halving":
        allowed = ", ".join(repr(other) for other in get_args(Algorithm) if other != algorithm)
        raise ValueError(f"algorithm={algorithm!r}: must be one of {allowed} with telemetry")
    axes = axes_of(axis_name)

    def combine(vectors: list[jax.Array], state: Any, present: jax.Array) -> Sequence[tuple[jax.Array, Any]]:
        del state
        tree = Tree.of(len(present), group_size=group_size, within=within)
        if within == "mean" and group_size > 1:  # the sum of shares
            share = 1 / jnp.maximum(present.reshape(-1, group_size).sum(1)[lax.axis_index(axes) // group_size], 1)
            vectors = [share * wide(vector) for vector in vectors]
        whole = algorithm == "gather" or telemetry == "on"  # every worker is a leaf of the devices' tree
        return _fold(vectors, tree, axes=axes, present=present, algorithm=algorithm, at_once=whole)

    return combining(axes, combine, granularity=granularity, telemetry=telemetry)


def _fold(
    vectors: Sequence[jax.Array],
    tree: Tree,
    *,
    axes: tuple[str, ...],
    present: jax.Array,
    algorithm: Algorithm,
    at_once: bool,
) -> list[tuple[jax.Array, Any]]:
    """Folds this worker's vectors, [m], and those of all others; ``at_once`` without folding lanes before."""
    devices, lanes = split_axes(axes)
    if algorithm == "halving" and not devices:
        devices, lanes = axes, ()  # as if the lanes were devices
    subtrees, rest = ([], tree) if at_once else tree.on_one_device(num_workers(lanes))
    levels = [*((subtree, ()) for subtree in subtrees), (rest, devices)]
    if subtrees and rest.num_nodes == 1:
        levels.pop()
    nodes = [gather_workers(vector, lanes) for vector in vectors]  # (k, m) each
    for tree, over in levels:
        copies = () if over else devices  # each folds blocks of its own
        here = present.reshape(num_workers(copies), -1, tree.num_nodes)[lax.axis_index(copies)]  # (blocks, n)
        blocks = [x.reshape(len(here), -1, x.shape[-1]) for x in nodes]
        reduce = functools.partial(_fold_blocks, tree=tree, axes=over, present=here, algorithm=algorithm)
        folded = in_buckets(reduce, blocks, axis_name=over)
        nodes, present = [result for result, _ in folded], present.reshape(-1, tree.num_nodes).any(1)
    return folded


def _fold_blocks(
    places: list[int],
    vectors: list[jax.Array],
    *,
    tree: Tree,
    axes: tuple[str, ...],
    present: jax.Array,
    algorithm: Algorithm,
) -> list[tuple[jax.Array, Any]]:
    """Folds blocks of nodes, each along a copy of the tree, [blocks, k, m] -> [blocks, m]."""
    del places
    if algorithm == "halving" and axes:
        return halving(vectors, tree, axes=axes)
    if not axes and tree.within == "sum" and tree.group_size == tree.num_nodes:
        return [(sum_neighbours(wide(x), tree.num_nodes)[:, 0], None) for x in vectors]
    gather = functools.partial(gather_and_fold, axes=axes, tree=tree, present=present)
    if algorithm == "gather":
        return gather(vectors)
    exchange = functools.partial(exchange_slices, rule=adasum_rule(tree), axes=axes, present=present)
    return by_size(vectors, num_gradients=tree.num_nodes, small=gather, large=exchange)
