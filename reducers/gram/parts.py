"""Vectors whose leaves are cut over axes of a mesh: their dot products are sums over the devices that have a part."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import as_own, cut, join
from reducers.collectives.devices import Devices
from reducers.mesh import counts_here

# The elements of a part on this device, and the axes that cut it.
Part: TypeAlias = tuple[int, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of vectors, each cut over axes of its own, which are summed apart so that no copy counts twice.

    Attributes:
      axes: all axes that cut a part; none where all leaves are whole, and then nothing is cut or summed.
      of_vectors: the parts of every vector, one after the other.
    """

    axes: tuple[str, ...] = ()
    of_vectors: tuple[tuple[Part, ...], ...] = ()

    def at(self, places: Sequence[int]) -> "Parts":
        """Returns the parts of some of the vectors."""
        return Parts(self.axes, tuple(self.of_vectors[i] for i in places)) if self.axes else self

    def cut(self, vectors: Sequence[jax.Array]) -> list[jax.Array]:
        """Cuts vectors, [..., m], into their parts, all of them one after the other."""
        if not self.axes:
            return list(vectors)
        pairs = zip(vectors, self.of_vectors, strict=True)
        return [part for x, parts in pairs for part in cut(x, [size for size, _ in parts])]

    def joined(self, parts: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns vectors, [..., m], of their parts."""
        if not self.axes:
            return list(parts)
        rest = iter(parts)
        return [join(list(itertools.islice(rest, len(own))), axis=-1) for own in self.of_vectors]

    def spread(self, tree: Any) -> Any:
        """Repeats arrays with a leading axis of vectors for each part of a vector."""
        return jax.tree.map(lambda x: x[self._vector_of_part], tree) if self.axes else tree

    def sum(self, numbers: jax.Array, devices: Devices) -> jax.Array:
        """Sums numbers of parts, [parts, ...], over the devices that have slices and parts: [vectors, ...]."""
        if not self.axes:
            return devices.sum(numbers)
        cuts = [axes for parts in self.of_vectors for _, axes in parts]
        counts = counts_here(cuts, self.axes).reshape(-1, *[1] * (numbers.ndim - 1))
        axes = *devices.axes, *self.axes
        of_parts = lax.psum(as_own(jnp.where(counts, numbers, 0), axes), axes)
        return self._per_vector(jnp.add, of_parts)

    def largest(self, numbers: jax.Array, devices: Devices) -> jax.Array:
        """Returns the elementwise maximum over the devices over which ``sum`` adds up."""
        if not self.axes:
            return devices.largest(numbers)
        axes = *devices.axes, *self.axes
        return self._per_vector(jnp.maximum, lax.pmax(as_own(numbers, axes), axes))

    @property
    def _vector_of_part(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.of_vectors)), [len(parts) for parts in self.of_vectors])

    def _per_vector(self, combine: Any, of_parts: jax.Array) -> jax.Array:
        starts = np.cumsum([0, *(len(parts) for parts in self.of_vectors)])
        if len(of_parts) == len(self.of_vectors):
            return of_parts
        return jnp.stack([combine.reduce(of_parts[i:j]) for i, j in itertools.pairwise(starts)])


WHOLE = Parts()
