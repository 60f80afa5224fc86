"""Leaves in parts: each device of a node has one of K, an even part of all of a leaf's numbers in their order.

A part keeps the leaf's number of dimensions, for masks that ask for it: [3, 5] in 4 parts are four [1, 4], the last of
which ends with a zero. Zeros are neutral in sums, dot products and norms.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

PART_AXIS = "part"  # the devices of a node: each takes a part of a batch, and may have a part of each leaf

# A TPU's tile of float32. Where parts are not whole tiles, XLA sums on all devices there and cuts afterwards, for which
# devices send twice as much; also on the way back through a gathering.
TILE = (8, 128)

PartitionOf = Literal["none", "state", "parameters"]


# ---- shapes, and what of a state is cut --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a leaf of a state lies on the devices: in even parts over the devices of each node.

    Attributes:
      axis: None for a shared leaf, 0 for one of each worker's own.
      leading: the number of dimensions, after the worker's, that no cut goes through; the others are cut as one.
      shape: that of the whole leaf of one worker.
    """

    axis: int | None
    leading: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, axis: int | None, *, whole: tuple[int, ...], part: tuple[int, ...], count: int) -> "Cut":
        """Finds how a whole leaf is cut into ``count`` parts of a shape.

        Raises:
          ValueError: if these are no even parts of it.
        """
        for leading in reversed(range(len(whole) + 1)):
            if whole[:leading] == part[:leading] and part[leading:] == part_shape(whole[leading:], count):
                return cls(axis, leading, whole)
        raise ValueError(f"has shape {part} where the whole has {whole}")


def part_shape(whole: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the shape of one of ``count`` even parts of a leaf, with as many dimensions, or 1.

    >>> part_shape((3, 5), 4), part_shape((), 4)
    ((1, 4), (1,))
    """
    return (*(1 for _ in whole[1:]), -(-math.prod(whole) // count))


def in_rows(flat: Any, count: int, *, into: Any = np) -> Any:
    """Returns [..., size] as [..., count, ceil(size / count)], filled up with zeros.

    >>> in_rows(np.arange(3), 2).tolist()
    [[0, 1], [2, 0]]
    """
    *leading, size = flat.shape
    each = -(-size // count)
    missing = [(0, 0)] * len(leading) + [(0, each * count - size)]
    return into.pad(flat, missing).reshape(*leading, count, each)


# ---- inside of a step --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Partition:
    """What of a worker lies in parts on the devices of its node; its functions are for the mapped step.

    Attributes:
      what: "none": each device has everything. "state": the states of optimizers and of the reducer are in parts; so
        are gradients and updates between the backward pass and the update of the parameters. "parameters": so are the
        parameters and their average, which the forward and the backward pass gather.
      count: K.
    """

    what: PartitionOf = "none"
    count: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the mesh that cut gradients and updates: ``sharded_over`` of the reducer."""
        return () if self.what == "none" else (PART_AXIS,)

    def own(self, params: Any) -> Any:
        """Returns this device's parts of parameters, given in the form in which the state has them."""
        return jax.tree.map(self.cut, params) if self.what == "state" else params

    def like_params(self, parts: Any, params: Any) -> Any:
        """Returns this device's parts in the form in which the state has parameters."""
        return self.gather(parts, params) if self.what == "state" else parts

    def whole(self, params: Any, shapes: Any) -> Any:
        """Returns whole parameters. Their gradients go the other way: each device gets the sum of its own parts.

        Args:
          params: in the form in which the state has them.
          shapes: those of whole parameters.
        """
        return self.gather(params, shapes) if self.what == "parameters" else params

    def scatter_sum(self, wholes: Any) -> Any:
        """Sums whole leaves over the devices, each of which gets its own parts of the sum."""

        def scatter(rows: jax.Array) -> jax.Array:
            return lax.psum_scatter(rows.reshape(-1, TILE[1]), PART_AXIS, tiled=True).reshape(-1)

        leaves, treedef = jax.tree.flatten(wholes)
        parts = _in_tiles(scatter, [self._rows(leaf) for leaf in leaves])
        shapes = [part_shape(leaf.shape, self.count) for leaf in leaves]
        return jax.tree.unflatten(treedef, [x.reshape(shape) for x, shape in zip(parts, shapes, strict=True)])

    def gather(self, parts: Any, like: Any) -> Any:
        """Returns whole leaves, of the shapes of others."""

        def gather(part: jax.Array) -> jax.Array:
            return lax.all_gather(part.reshape(-1, TILE[1]), PART_AXIS, tiled=True).reshape(self.count, -1)

        leaves, treedef = jax.tree.flatten(parts)
        wholes = zip(_in_tiles(gather, [leaf.reshape(-1) for leaf in leaves]), jax.tree.leaves(like), strict=True)
        return jax.tree.unflatten(treedef, [x.reshape(-1)[: leaf.size].reshape(leaf.shape) for x, leaf in wholes])

    def cut(self, whole: jax.Array) -> jax.Array:
        """Returns this device's part of a leaf that all devices have."""
        own = lax.dynamic_index_in_dim(self._rows(whole), lax.axis_index(PART_AXIS), keepdims=False)
        return own.reshape(part_shape(whole.shape, self.count))

    def _rows(self, whole: jax.Array) -> jax.Array:
        """Returns the parts of a leaf below one another, [K, size of a part]."""
        return in_rows(whole.reshape(-1), self.count, into=jnp)


def _in_tiles(move: Callable[[jax.Array], jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Applies a collective along parts to arrays of parts, [..., size of a part], each of which is whole tiles.

    Those that are not, such as biases, share one collective for each dtype, with zeros at its end.

    Args:
      move: [..., size] -> [..., size].
      arrays: of any sizes.
    """
    tile = math.prod(TILE)
    groups: dict[Any, list[int]] = {}
    for place, x in enumerate(arrays):
        groups.setdefault(x.dtype if x.shape[-1] % tile else place, []).append(place)
    moved: dict[int, jax.Array] = {}
    for places in groups.values():
        joined = jnp.concatenate([arrays[place] for place in places], axis=-1)
        ends = np.cumsum([arrays[place].shape[-1] for place in places])
        missing = [(0, 0)] * (joined.ndim - 1) + [(0, -ends[-1] % tile)]
        *parts, _ = jnp.split(move(jnp.pad(joined, missing)), ends, axis=-1)
        moved |= zip(places, parts, strict=True)
    return [moved[place] for place in range(len(arrays))]


WHOLE = Partition()
