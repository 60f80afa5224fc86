"""A batch that several devices compute together, each a part of it.

A layer draws the same random numbers for the examples of a batch, and measures the same statistics of them, however
many devices compute the batch. Inside of ``cut`` it sees the examples of this device alone; these functions tell it
about the others.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from jax import lax
from jax import numpy as jnp


class _Cut(NamedTuple):
    axis: str
    parts: int


_cut: contextvars.ContextVar[_Cut | None] = contextvars.ContextVar("batch in parts", default=None)


@contextlib.contextmanager
def cut(axis_name: str, count: int) -> Iterator[None]:
    """Says, while a model is traced, that its batch is one of ``count`` equal parts, in the order of a mesh axis."""
    token = _cut.set(_Cut(axis_name, count))
    try:
        with nn.intercept_methods(_drop_as_in_the_whole):
            yield
    finally:
        _cut.reset(token)


def _drop_as_in_the_whole(
    call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
) -> Any:
    """Lets flax's Dropout drop what it would drop of the whole batch."""
    if not isinstance(context.module, nn.Dropout) or context.method_name != "__call__":
        return call(*args, **kwargs)
    x, *others = args
    factors = call(jnp.ones_like(x, shape=(whole_size(len(x)), *x.shape[1:])), *others, **kwargs)
    return x * own(factors)


def axis_name() -> str | None:
    """Returns the axis over which the batch is cut; None for a whole one."""
    found = _cut.get()
    return found and found.axis


def whole_size(num_examples: int) -> int:
    """Returns the number of examples in the whole batch, given that of this device.

    >>> with cut("part", 4):
    ...     whole_size(8)
    32
    """
    found = _cut.get()
    return num_examples if found is None else found.parts * num_examples


def index() -> jax.Array | int:
    """Returns which part of the batch this device has, counted from 0."""
    axis = axis_name()
    return 0 if axis is None else lax.axis_index(axis)


def mean(number: jax.Array) -> jax.Array:
    """Returns the mean of a number over the parts.

    Parts' losses over the mean of their counts have the loss of the whole batch as their mean.
    """
    axis = axis_name()
    return number if axis is None else lax.pmean(number, axis)


def own(of_whole: jax.Array) -> jax.Array:
    """Returns this device's part of numbers of the whole batch, [B, ...]."""
    found = _cut.get()
    if found is None:
        return of_whole
    size = of_whole.shape[0] // found.parts
    return lax.dynamic_slice_in_dim(of_whole, index() * size, size)
