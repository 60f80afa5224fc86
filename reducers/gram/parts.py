"""The parts of vectors, which need not be joined, and which axes of a mesh may cut.

The dot products of a vector are the sums of its parts', over all devices that have one.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import as_own
from reducers.collectives.devices import Devices
from reducers.mesh import counts_here

# The axes that cut each part of every vector.
Cuts: TypeAlias = tuple[tuple[tuple[str, ...], ...], ...]


@dataclasses.dataclass(frozen=True)
class Parts:
    """Says which axes of a mesh cut each part of a vector, so that no copy of a part counts twice.

    Attributes:
      axes: all axes that cut a part; none where all leaves are whole. Then nothing is summed over a mesh, and the parts
        of a vector are multiplied as one.
      of_vectors: the axes that cut each part of every vector; () if there are none.
    """

    axes: tuple[str, ...] = ()
    of_vectors: Cuts = ()

    def at(self, places: Sequence[int]) -> "Parts":
        """Returns the parts of some of the vectors."""
        return Parts(self.axes, tuple(self.of_vectors[i] for i in places)) if self.axes else self

    def spread(self, tree: Any) -> Any:
        """Repeats arrays with a leading axis of vectors for each part of a vector."""
        if not self.axes:
            return tree
        vector_of_part = np.repeat(np.arange(len(self.of_vectors)), list(map(len, self.of_vectors)))
        return jax.tree.map(lambda x: x[vector_of_part], tree)

    def sum(self, numbers: jax.Array, devices: Devices) -> jax.Array:
        """Sums numbers of parts, [parts, ...], over the devices that have slices and parts: [vectors, ...]."""
        if not self.axes:
            return devices.sum(numbers)
        cuts = list(itertools.chain(*self.of_vectors))
        counts = counts_here(cuts, self.axes).reshape(-1, *[1] * (numbers.ndim - 1))
        axes = *devices.axes, *self.axes
        of_parts = lax.psum(as_own(jnp.where(counts, numbers, 0), axes), axes)
        starts = np.cumsum([0, *map(len, self.of_vectors)])
        if len(of_parts) == len(self.of_vectors):
            return of_parts
        return jnp.stack([jnp.add.reduce(of_parts[i:j]) for i, j in itertools.pairwise(starts)])


WHOLE = Parts()


def like(vectors: Sequence[Sequence[Any]], of_parts: Sequence[Any]) -> list[list[Any]]:
    """Groups something of all parts, one after the other, as the parts of each vector are grouped.

    >>> like([["a"], ["b", "c"]], [1, 2, 3])
    [[1], [2, 3]]
    """
    rest = iter(of_parts)
    return [list(itertools.islice(rest, len(parts))) for parts in vectors]
