"""Vectors as one array of chunks, which an accelerator exchanges and multiplies all at once."""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from reducers.collectives import backend
from reducers.collectives.joined import cut, join, pad_axis
from reducers.dtypes import common_dtype


def join_chunks(vectors: Sequence[jax.Array], *, size: int, num_slices: int) -> tuple[jax.Array, list[int]]:
    """Joins vectors, [..., m] each, as chunks of ``size`` elements; the last one of a vector is padded with zeros.

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
    padded = [pad_axis(x.astype(dtype), -x.shape[-1] % size, axis=x.ndim - 1) for x in vectors]
    chunks = [x.reshape(*x.shape[:-1], -1, size) for x in padded]
    counts = [x.shape[-2] for x in chunks]
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
