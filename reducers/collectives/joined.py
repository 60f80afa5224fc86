"""Arrays that share a collective."""

import itertools
from collections.abc import Sequence

import jax
from jax import lax
from jax import numpy as jnp


def join(parts: Sequence[jax.Array], *, axis: int = 0) -> jax.Array:
    """Joins the parts, one after the other; returns a single one as it is."""
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]


def cut(joined: jax.Array, widths: Sequence[int], *, axis: int = -1) -> list[jax.Array]:
    """Takes joined parts apart again, along the last axis or another one.

    >>> cut(jnp.arange(3), [1, 2])
    [Array([0], dtype=int32), Array([1, 2], dtype=int32)]
    """
    ends = itertools.accumulate(widths)
    return [lax.slice_in_dim(joined, end - width, end, axis=axis) for width, end in zip(widths, ends, strict=True)]


def pad_axis(x: jax.Array, count: int, *, axis: int) -> jax.Array:
    """Pads an axis with so many zeros at its end."""
    return jnp.pad(x, [(0, count if i == axis else 0) for i in range(x.ndim)])
