"""Which algorithm works a layer of Adasum out."""

import functools
import math
from typing import Any, Literal, get_args

import jax
import numpy as np

from reducers.adasum.gram import too_small
from reducers.adasum.lanes import TOGETHER, LanePlan, plan_lanes
from reducers.adasum.layers import members
from reducers.adasum.pairs import Tree

Algorithm = Literal["auto", "gram", "halving", "butterfly", "gather"]


def check(algorithm: str, *, tells: bool) -> None:
    """Raises ValueError for an unknown algorithm, or one that knows no telemetry."""
    allowed = [a for a in get_args(Algorithm) if not tells or a not in ("halving", "butterfly")]
    if algorithm not in allowed:
        why = " with telemetry" if algorithm in get_args(Algorithm) else ""
        raise ValueError(f"algorithm={algorithm!r}: must be one of {', '.join(map(repr, allowed))}{why}")


def plan_device(num_lanes: int, tree: Tree, *, num_devices: int, algorithm: str, tells: bool = False) -> LanePlan:
    """Returns what a device combines of its own lanes before an algorithm is asked.

    Nothing but sums where telemetry is to tell of each worker, nor where all of them are on one device and the
    algorithm is "gather", the reference, or has so few that it does them at once.
    """
    alone = num_devices == 1 and algorithm in ("auto", "gram", "gather")
    at_once = alone and (num_lanes <= TOGETHER or algorithm == "gather")
    return plan_lanes(num_lanes, tree, only_sums=tells or at_once)


def choose(num_elements: int, *, algorithm: Algorithm, num_devices: int, tree: Tree) -> Algorithm:
    """Returns the algorithm for a layer.

    Args:
      num_elements: of the layer.
      algorithm: what is asked for.
      num_devices: between which it runs.
      tree: what is left of it once each device has combined its lanes.

    Raises:
      ValueError: if that algorithm cannot work such a tree out.
    """
    nodes = tree.num_nodes // num_devices
    if algorithm in ("halving", "butterfly") and (nodes > 1 or tree.group_size > 1 or num_devices & (num_devices - 1)):
        groups = f" in groups of {tree.group_size}" if tree.group_size > 1 else ""
        raise ValueError(
            f"algorithm={algorithm!r}: must be 'gram' or 'gather' for {num_devices} devices that hold {nodes} subtrees "
            f"each{groups}; it takes a power of two of devices, and of lanes"
        )
    if algorithm in ("auto", "gram"):
        return "gather" if too_small(num_elements, num_nodes=tree.num_nodes) else "gram"
    return algorithm


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
    """Tells which algorithm ``adasum`` takes for each layer, on devices with lanes.

    Args:
      updates: tree of arrays or ``jax.ShapeDtypeStruct``.
      num_devices: between which it runs.
      lanes: workers on each device.
      granularity: as of ``adasum``.
      algorithm: as of ``adasum``.
      group_size: as of ``adasum``.
      within: as of ``adasum``.

    Returns:
      Name of each layer -> "gram", "halving", "butterfly" or "gather".

    Raises:
      ValueError: where ``adasum`` would.

    >>> adasum_algorithms({"b": np.zeros(10), "w": np.zeros((100, 100))}, num_devices=8)
    {'b': 'gather', 'w': 'gram'}
    """
    tree = Tree.of(num_devices * lanes, group_size=group_size, within=within)
    rest = plan_device(lanes, tree, num_devices=num_devices, algorithm=algorithm).rest
    sizes = [math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(updates)]
    layers_of = members(updates, granularity)
    chosen = functools.partial(choose, algorithm=algorithm, num_devices=num_devices, tree=rest)
    return {name: chosen(sum(sizes[i] for i in leaves)) for name, leaves in layers_of.items()}
