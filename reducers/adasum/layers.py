"""What counts as one vector: a leaf, leaves whose paths match alike, or the whole model."""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from reducers.batches import cut, join


def check(granularity: str) -> None:
    """Raises ValueError for a granularity that is neither "layer", "model" nor a regular expression."""
    try:
        re.compile(granularity)
    except re.error as error:
        allowed = "must be layer, model or a regular expression"
        raise ValueError(f"granularity={granularity!r}: {allowed}: {error}") from None


def members(tree: Any, granularity: str) -> dict[str, list[int]]:
    """Returns name of each layer -> indices of its leaves; empty leaves belong to none.

    >>> members({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "c": jnp.ones(3)}, "layer")
    {'a/b': [0], 'a/w': [1], 'c': [2]}
    >>> members({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "c": jnp.ones(3)}, "^a")
    {'a': [0, 1], 'c': [2]}
    """
    layers: dict[str, list[int]] = {}
    of_match: set[str] = set()
    for i, (path, leaf) in enumerate(jax.tree.flatten_with_path(tree)[0]):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found = None if granularity in ("layer", "model") else re.search(granularity, name)
        if granularity == "model":
            name = "model"
        elif found:
            name = found[0]
            of_match.add(name)
        elif name in of_match:  # a leaf called as others match
            name = f"{name} (leaf)"
        if np.size(leaf):
            layers.setdefault(name, []).append(i)
    return layers


def split(tree: Any, granularity: str) -> tuple[dict[str, jax.Array], Callable[[dict[str, jax.Array]], Any]]:
    """Takes a tree apart into vectors.

    Returns:
      Name -> vector of each layer, [m], of the dtype that its leaves promote to; and a function that makes such vectors
      a tree again, of the old dtypes.
    """
    flat, treedef = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in flat]
    layers = members(tree, granularity)
    vectors = {name: join([leaves[i].ravel() for i in indices]) for name, indices in layers.items()}

    def restore(vectors: dict[str, jax.Array]) -> Any:
        results = [jnp.zeros_like(leaf) for leaf in leaves]  # what is empty stays so
        for name, indices in layers.items():
            for i, part in zip(indices, cut(vectors[name], [leaves[i].size for i in indices]), strict=True):
                results[i] = part.reshape(leaves[i].shape).astype(leaves[i].dtype)
        return jax.tree.unflatten(treedef, results)

    return vectors, restore


def wide(x: jax.Array) -> jax.Array:
    """x in float32 at least: what Adasum computes in."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
