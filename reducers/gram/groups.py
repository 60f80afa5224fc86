"""Groups of leaves, each combined as one vector: every leaf, leaves whose paths match alike, or the whole model."""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.collectives import cut, join

# All other granularities are regular expressions.
_NOT_PATTERNS = ("layer", "model")


def check(granularity: str) -> None:
    """Raises ValueError for a granularity that is neither "layer", "model" nor a regular expression."""
    try:
        re.compile(granularity)
    except re.error as error:
        allowed = "must be layer, model or a regular expression"
        raise ValueError(f"granularity={granularity!r}: {allowed}: {error}") from None


def members(tree: Any, granularity: str) -> dict[str, list[int]]:
    """Returns name of each group -> indices of its leaves; empty leaves belong to none.

    Raises:
      ValueError: for a pattern that matches no leaf.

    >>> members({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "c": jnp.ones(3)}, "layer")
    {'a/b': [0], 'a/w': [1], 'c': [2]}
    >>> members({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "c": jnp.ones(3)}, "^a")
    {'a': [0, 1], 'c': [2]}
    """
    groups: dict[str, list[int]] = {}
    of_match: set[str] = set()
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree.flatten_with_path(tree)[0]
    ]
    for i, (name, leaf) in enumerate(leaves):
        found = None if granularity in _NOT_PATTERNS else re.search(granularity, name)
        if granularity == "model":
            name = "model"
        elif found:
            name = found[0]
            of_match.add(name)
        elif name in of_match:  # a leaf with the name that others match
            name = f"{name} (leaf)"
        if np.size(leaf):
            groups.setdefault(name, []).append(i)
    if leaves and not of_match and granularity not in _NOT_PATTERNS:
        some = ", ".join([*(repr(name) for name, _ in leaves[:3]), *["..."] * (len(leaves) > 3)])
        raise ValueError(f"granularity={granularity!r}: matches no leaf; the leaves are {some}")
    return groups


def split(tree: Any, granularity: str) -> tuple[dict[str, jax.Array], Callable[[dict[str, jax.Array]], Any]]:
    """Takes a tree apart into vectors.

    Returns:
      Name -> vector of each group, [m], of the dtype that its leaves promote to; and a function that makes such vectors
      a tree again, of the old dtypes.

    Raises:
      ValueError: for a pattern that matches no leaf.
    """
    flat, treedef = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in flat]
    groups = members(tree, granularity)
    vectors = {name: join([leaves[i].ravel() for i in indices]) for name, indices in groups.items()}

    def restore(vectors: dict[str, jax.Array]) -> Any:
        results = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]  # empty leaves stay so
        for name, indices in groups.items():
            for i, part in zip(indices, cut(vectors[name], [leaves[i].size for i in indices]), strict=True):
                results[i] = part.reshape(leaves[i].shape).astype(leaves[i].dtype)
        return jax.tree.unflatten(treedef, results)

    return vectors, restore
