"""Vectors as one array of chunks, which an accelerator exchanges and multiplies all at once."""

import itertools
from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.collectives import backend
from reducers.collectives.joined import cut, join, pad_axis
from reducers.dtypes import common_dtype


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
