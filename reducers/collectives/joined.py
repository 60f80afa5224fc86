"""Arrays that share a collective."""

import itertools
from collections.abc import Sequence

import jax
from jax import numpy as jnp


def join(parts: Sequence[jax.Array], *, axis: int = 0) -> jax.Array:
    """Joins the parts, one after the other; returns a single one as it is."""
    return jnp.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]


def cut(joined: jax.Array, widths: Sequence[int]) -> list[jax.Array]:
    """Takes joined parts apart again, along the last axis.

    >>> cut(jnp.arange(3), [1, 2])
    [Array([0], dtype=int32), Array([1, 2], dtype=int32)]
    """
    ends = itertools.accumulate(widths)
    return [joined[..., end - width : end] for width, end in zip(widths, ends, strict=True)]
