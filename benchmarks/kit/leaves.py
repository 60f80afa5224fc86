"""Shapes of gradients: those of known networks, and artificial ones of any size."""

import math
from collections.abc import Callable, Sequence

import jax
from jax import numpy as jnp

import models

Leaves = list[jax.ShapeDtypeStruct]


def plain(num_floats: int) -> Leaves:
    """Returns one leaf.

    >>> plain(3)
    [ShapeDtypeStruct(shape=(3,), dtype=float32)]
    """
    return _leaves([(num_floats,)])


def resnet50_like(num_floats: int) -> Leaves:
    """Returns the leaves of ResNet-50, with widths and number of classes scaled to be nearest to this size.

    Raises:
      ValueError: if the narrowest such network has more floats.

    >>> sum(leaf.size for leaf in resnet50_like(10_000_000))
    9998105
    """
    narrowest = _size(resnet50(1))
    if num_floats < narrowest:
        raise ValueError(f"sizes={num_floats}: resnet50_like has {narrowest} floats at least")
    widths = range(1, 2 + math.isqrt(num_floats // 3000))  # a network of width w has more than 6000 w^2 floats
    return resnet50(min(widths, key=lambda width: abs(_size(resnet50(width)) - num_floats)))


def lenet5() -> Leaves:
    """Returns the leaves of LeNet-5 in the MNIST recipe: 1,663,370 floats in 8 leaves."""
    model = models.make("lenet5", sizes={"num_classes": 10})
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    return jax.tree.leaves(variables["params"])


def resnet50(base: int = 64) -> Leaves:
    """Returns the leaves of ResNet-50: 25,557,032 floats in 161 leaves.

    They are 53 convolutions, each with the scale and bias of its normalization, and the head. ``base`` is the width of
    the first convolution; all widths and the number of classes scale with it.
    """
    convolutions = [(7, 7, 3, base)]
    width_in = base
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        width = base << stage
        for block in range(num_blocks):
            convolutions += [(1, 1, width_in, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            if block == 0:
                convolutions.append((1, 1, width_in, 4 * width))
            width_in = 4 * width
    shapes: list[tuple[int, ...]] = []
    for kernel in convolutions:
        shapes += [kernel, kernel[-1:], kernel[-1:]]
    classes = 1000 * base // 64
    return _leaves([*shapes, (width_in, classes), (classes,)])


def bert_large() -> Leaves:
    """Returns the leaves of BERT-Large with the vocabulary of ``configs/bert_lamb.py``: 336,232,258 floats.

    >>> len(bert_large())
    398
    """
    model = models.make("bert_large", sizes={"vocab_size": 30_528})
    token = jnp.zeros((1, 1), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), token, token, token)
    return jax.tree.leaves(variables["params"])


# Layouts of a given size, and layouts with a size of their own.
SIZED: dict[str, Callable[[int], Leaves]] = {"plain": plain, "resnet50_like": resnet50_like}
FIXED: dict[str, Callable[[], Leaves]] = {"lenet5": lenet5, "resnet50": resnet50, "bert_large": bert_large}
_SUFFIX = {"plain": " in one leaf", "resnet50_like": ""}


def sets(names: Sequence[str], *, sizes: Sequence[int]) -> list[tuple[str, Leaves]]:
    """Returns a description and the leaves of each layout in ``names``; those in ``SIZED`` come in each of ``sizes``.

    Raises:
      ValueError: if a name is unknown, or a layout cannot have a size.

    >>> [(what, len(leaves)) for what, leaves in sets(["plain", "lenet5"], sizes=[1000, 2_000_000])]
    [('0.001 M floats in one leaf', 1), ('2 M floats in one leaf', 1), ('lenet5', 8)]
    """
    chosen = []
    for name in names:
        if name in FIXED:
            chosen.append((name, FIXED[name]()))
        elif name in SIZED:
            chosen += [(f"{size / 1e6:g} M floats{_SUFFIX[name]}", SIZED[name](size)) for size in sizes]
        else:
            raise ValueError(f"layouts={name!r}: allowed: {', '.join((*SIZED, *FIXED))}")
    return chosen


def _size(leaves: Leaves) -> int:
    return sum(leaf.size for leaf in leaves)


def _leaves(shapes: Sequence[tuple[int, ...]]) -> Leaves:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
