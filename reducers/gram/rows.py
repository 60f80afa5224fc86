"""Gradients as rows that are multiplied with one another: vector by vector, or in chunks of one size.

On CPU each vector is multiplied by itself, slice by slice, in a cache. On a GPU that would be a kernel for each vector,
and on a TPU several operations. There a vector is a whole number of chunks, and all chunks are exchanged and multiplied
at once. A device then has any part of the chunks, not a slice of each vector.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import Devices, backend, cut, join, pad_axis, slice_size
from reducers.dtypes import common_dtype, wide
from reducers.gram.scales import nonzero, without_noise


class Owners(NamedTuple):
    """To which vectors the chunks of a block belong.

    Attributes:
      of_chunks: the index of each chunk's vector.
      num_vectors: how many vectors there are.
    """

    of_chunks: jax.Array
    num_vectors: int


# The widths of vectors, one after the other, or the owners of their chunks.
Places: TypeAlias = tuple[int, ...] | Owners


def arrange(
    vectors: Sequence[Sequence[jax.Array]], *, num_slices: int, apart: bool = False
) -> tuple[list[jax.Array], Places, Callable[[Sequence[jax.Array]], list[jax.Array]]]:
    """Arranges vectors as the backend exchanges and multiplies them; chunks begin with those of the smallest parts.

    Args:
      vectors: parts of [..., m].
      num_slices: into how many slices they are cut later.
      apart: whether each part counts as a vector.

    Returns:
      The parts one by one, [..., m], or all of them as one array of chunks, [..., chunks, C]; the places of the vectors
      in these arrays; and a function that returns the parts, [k, m] each, of such arrays with one leading axis.
    """
    parts = list(itertools.chain(*vectors))
    sizes = [x.shape[-1] for x in parts]
    size = backend.chunk_size(sum(sizes), num_vectors=len(parts), num_slices=num_slices)
    if not size:  # on CPU, where a vector has one part
        return parts, tuple(sizes), list
    of_vectors = [1] * len(parts) if apart else list(map(len, vectors))
    order = sorted(range(len(parts)), key=sizes.__getitem__)
    chunks, counts = join_chunks([parts[i] for i in order], size=size, num_slices=num_slices)
    of_parts = np.repeat(np.arange(len(of_vectors)), of_vectors)
    of_chunks = np.repeat(of_parts[order], counts)
    padded = np.pad(of_chunks, (0, chunks.shape[-2] - len(of_chunks)), mode="edge")  # zeros belong to any vector

    def restore(arrays):
        found = cut_chunks(arrays[0], counts, [sizes[i] for i in order])
        return [found[i] for i in np.argsort(order)]

    return [chunks], Owners(jnp.asarray(padded), len(of_vectors)), restore


def join_chunks(vectors: Sequence[jax.Array], *, size: int, num_slices: int) -> tuple[jax.Array, list[int]]:
    """Joins vectors, [..., m] each, as chunks of ``size`` elements; the last one of a vector is padded with zeros.

    Small vectors of one size that follow one another are padded together. ResNet-50 has 86 that are less than a chunk,
    and XLA would pad each by itself, and then join them all in two steps.

    Args:
      vectors: any number; they are joined in the dtype that all promote to.
      size: of a chunk.
      num_slices: into how many slices the chunks are cut later; chunks of zeros are added for it.

    Returns:
      The chunks, [..., chunks, size], and how many each vector has.

    >>> chunks, counts = join_chunks([jnp.arange(3.0), jnp.arange(1.0)], size=2, num_slices=1)
    >>> chunks[:4], counts
    (Array([[0., 1.],
           [2., 0.],
           [0., 0.],
           [0., 0.]], dtype=float32), [2, 1])
    """
    dtype = common_dtype(*(x.dtype for x in vectors))
    chunks = []
    for width, run in itertools.groupby(vectors, key=lambda x: x.shape[-1]):
        alike = [x.astype(dtype)[..., None, :] for x in run]
        for x in [join(alike, axis=-2)] if width < size else alike:  # [..., vectors, m]
            padded = pad_axis(x, -width % size, axis=x.ndim - 1)
            chunks.append(padded.reshape(*x.shape[:-2], -1, size))
    counts = [-(-x.shape[-1] // size) for x in vectors]
    num_missing = -sum(counts) % (num_slices * backend.CHUNKS_OF_TILE)
    missing = jnp.zeros_like(chunks[0], shape=(*chunks[0].shape[:-2], num_missing, size))
    return join([*chunks, missing], axis=-2), counts


def cut_chunks(chunks: jax.Array, counts: Sequence[int], sizes: Sequence[int]) -> list[jax.Array]:
    """Returns vectors, [k, m] each, of joined chunks, [k, chunks, size].

    >>> cut_chunks(jnp.arange(8.0).reshape(1, 4, 2), [2, 1], [3, 1])
    [Array([[0., 1., 2.]], dtype=float32), Array([[4.]], dtype=float32)]
    """
    of_vectors = cut(chunks[:, : sum(counts)], counts, axis=1)
    return [x.reshape(len(x), -1)[:, :size] for x, size in zip(of_vectors, sizes, strict=True)]


def slices_of(places: Places, devices: Devices) -> Places:
    """Returns the places in this device's slices."""
    if isinstance(places, Owners):
        length = len(places.of_chunks) // devices.count
        own = lax.dynamic_slice_in_dim(places.of_chunks, devices.place * length, length)
        return places._replace(of_chunks=own)
    return tuple(slice_size(width, devices.count) for width in places)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Groups of n gradients, or of this device's slices of them, as some vectors, one after the other.

    Numbers of the vectors have a leading axis with a row for each group, first those of the first vector.

    Attributes:
      blocks: arrays of consecutive vectors, [groups, n, M] each, or one of chunks, [groups, n, chunks, C]. Each branch
        of a condition cuts them for itself: XLA copies the arguments of a branch, and so a branch takes the one block
        of all vectors, not the parts that are cut from it.
      places: of the vectors.
    """

    blocks: Sequence[jax.Array]
    places: Places

    def gram(self, scales: jax.Array | None = None) -> jax.Array:
        """Returns the dot products of the gradients, over their scales if there are any, [vectors, n, n]."""
        multiply = backend.dot_products if scales is None else backend.dot_products_of_quotients
        of_pieces = join([multiply(x) for x in self._pieces(scales)])
        if not isinstance(self.places, Owners):
            return of_pieces
        owners, num_vectors = self.places
        is_own = owners[None] == jnp.arange(num_vectors)[:, None]
        return _added(is_own, of_pieces.reshape(len(owners), -1)).reshape(-1, *of_pieces.shape[1:])

    def weighted_sums(
        self, weights: jax.Array, scales: jax.Array | None = None, *, noiseless: bool = False
    ) -> list[jax.Array]:
        """Returns the weighted sums of the gradients, over their scales if there are any.

        Args:
          weights: [vectors, n].
          scales: [vectors, n]; with them NaN and Inf do not pass a weight of 0.
          noiseless: whether rounding noise of gradients that cancel out becomes 0.

        Returns:
          The sums in the form of the blocks, [groups, M] or [groups, M, C].
        """
        add = functools.partial(jnp.einsum, "pn,pnm->pm", precision="highest")
        pieces = self._pieces(scales)
        sums = []
        for w, x in zip(self._per_piece(weights, pieces), pieces, strict=True):
            kept = x if scales is None else jnp.where(w[..., None] == 0, 0, x)
            total = add(w, kept)
            sums.append(without_noise(total, add(jnp.abs(w), jnp.abs(kept))) if noiseless else total)
        return self._joined(sums)

    def _parts(self) -> Iterator[list[jax.Array]]:
        """Yields of each block its vectors, those of one width together, or its chunks: [groups, n, count, width]."""
        if isinstance(self.places, Owners):
            yield list(self.blocks)
            return
        widths = iter(self.places)
        for block in self.blocks:
            own: list[int] = []
            while sum(own) < block.shape[2]:
                own.append(next(widths))
            runs = [(width, len(list(run))) for width, run in itertools.groupby(own)]
            parts = cut(block, [count * width for width, count in runs])
            yield [x.reshape(*x.shape[:2], *reversed(run)) for x, run in zip(parts, runs, strict=True)]

    def _pieces(self, scales: jax.Array | None = None) -> list[jax.Array]:
        """Returns all parts in float32 at least, over their scales if there are any: [pieces, n, width]."""
        parts = itertools.chain(*self._parts())
        pieces = [wide(jnp.moveaxis(x, 2, 0)).reshape(-1, x.shape[1], x.shape[3]) for x in parts]
        if scales is None:
            return pieces
        return [x / s[..., None] for x, s in zip(pieces, self._per_piece(nonzero(scales), pieces), strict=True)]

    def _joined(self, pieces: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the blocks of pieces that are rows now, [pieces, width] each."""
        rest = iter(pieces)
        blocks = []
        for block, parts in zip(self.blocks, self._parts(), strict=True):
            own = [next(rest).reshape(part.shape[2], len(part), -1).swapaxes(0, 1) for part in parts]
            blocks.append(join([x.reshape(len(x), -1, *block.shape[3:]) for x in own], axis=1))
        return blocks

    def _per_piece(self, of_vectors: jax.Array, pieces: Sequence[jax.Array]) -> list[jax.Array]:
        """Splits numbers of vectors, [vectors, ...], as the pieces are."""
        if isinstance(self.places, Owners):
            owners, num_vectors = self.places
            spread = of_vectors.reshape(num_vectors, -1, *of_vectors.shape[1:])[owners]
            of_vectors = spread.reshape(-1, *of_vectors.shape[1:])
        return jnp.split(of_vectors, np.cumsum([len(x) for x in pieces])[:-1])


def _added(is_own: jax.Array, of_chunks: jax.Array) -> jax.Array:
    """Adds up numbers of each vector's chunks; NaN and Inf become NaN, of their vector alone."""
    add = functools.partial(jnp.dot, is_own.astype(of_chunks.dtype), precision="highest")
    known = jnp.isfinite(of_chunks)
    unknown = add((~known).astype(of_chunks.dtype)) > 0
    return jnp.where(unknown, jnp.nan, add(jnp.where(known, of_chunks, 0)))
