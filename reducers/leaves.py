"""Names of a tree's leaves, and parts of a tree."""

from collections.abc import Sequence
from typing import Any

import jax


def num_bytes(tree: Any) -> int:
    """Returns the bytes of all leaves, arrays or their shapes.

    >>> num_bytes({"w": jax.ShapeDtypeStruct((3, 2), "float32")})
    24
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def leaf_names(tree: Any) -> list[str]:
    """Returns the name of each leaf, its path.

    >>> leaf_names({"Dense_0": {"bias": 1.0, "kernel": 2.0}})
    ['Dense_0/bias', 'Dense_0/kernel']
    """
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]


def kept(tree: Any, is_kept: Sequence[bool]) -> Any:
    """Returns the tree with None for each leaf that is not kept, so that paths stay the same.

    >>> kept({"a": 1.0, "b": 2.0}, [True, False])
    {'a': 1.0, 'b': None}
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [x if keep else None for x, keep in zip(leaves, is_kept, strict=True)])


def joined(*parts: Any) -> Any:
    """Joins such parts into one tree; the first part that has a leaf decides.

    >>> joined({"a": 1.0, "b": None}, {"a": None, "b": 2.0})
    {'a': 1.0, 'b': 2.0}
    """

    def first(*leaves):
        return next((x for x in leaves if x is not None), None)

    return jax.tree.map(first, *parts, is_leaf=lambda x: x is None)
