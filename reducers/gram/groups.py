"""Groups of leaves, each combined as one vector: every leaf, leaves whose paths match alike, or the whole model."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import cut, join
from reducers.dtypes import as_real, common_dtype
from reducers.gram.parts import Part
from reducers.leaves import leaf_names

# Regular expressions of the granularities that have a name: a match of the whole path, and one of nothing.
_PATTERNS = {"layer": "(?s).*", "model": ""}


def check(granularity: str) -> None:
    """Raises ValueError for a granularity that is neither "layer", "model" nor a regular expression."""
    try:
        re.compile(granularity)
    except re.error as error:
        allowed = "must be layer, model or a regular expression"
        raise ValueError(f"granularity={granularity!r}: {allowed}: {error}") from None


def members(tree: Any, granularity: str) -> dict[str, list[int]]:
    """Returns the indices of each group's leaves, by its name; empty leaves belong to no group.

    Raises:
      ValueError: for a pattern that matches no leaf.

    >>> members({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "c": jnp.ones(3)}, "layer")
    {'a/b': [0], 'a/w': [1], 'c': [2]}
    >>> members({"a": {"w": jnp.ones(2), "b": jnp.ones(1)}, "c": jnp.ones(3)}, "^a")
    {'a': [0, 1], 'c': [2]}
    """
    leaves = jax.tree.leaves(tree)
    names = leaf_names(tree)
    matches = [re.search(_PATTERNS.get(granularity, granularity), name) for name in names]
    of_match = {found[0] for found in matches if found}
    if names and not of_match:
        some = ", ".join([*map(repr, names[:3]), *["..."] * (len(names) > 3)])
        raise ValueError(f"granularity={granularity!r}: matches no leaf; the leaves are {some}")
    groups: dict[str, list[int]] = {}
    for i, (name, found) in enumerate(zip(names, matches, strict=True)):
        unmatched = f"{name} (leaf)" if name in of_match else name  # a leaf with the name that others match
        group = "model" if granularity == "model" else found[0] if found else unmatched
        if np.size(leaves[i]):
            groups.setdefault(group, []).append(i)
    return groups


def split(
    tree: Any, granularity: str, *, cuts: Sequence[tuple[str, ...]] = ()
) -> tuple[dict[str, jax.Array], tuple[tuple[Part, ...], ...], Callable[[Sequence[jax.Array]], Any]]:
    """Joins the leaves of each group to a vector.

    Args:
      tree: a tree of arrays.
      granularity: see ``from_gram``.
      cuts: the axes of the mesh that cut each leaf; a group's leaves that are cut alike stand together in its vector.

    Returns:
      The vector of each group by its name, [m], of the dtype that its leaves promote to, complex numbers as pairs of
      real ones; with ``cuts`` the parts of every vector that are cut alike; and a function that turns such vectors, in
      this order, back into a tree of the old dtypes.

    Raises:
      ValueError: for a pattern that matches no leaf.
    """
    flat, treedef = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in flat]
    groups = members(tree, granularity)
    if cuts:
        groups = {name: sorted(indices, key=lambda i: cuts[i]) for name, indices in groups.items()}
    real = [as_real(leaf) for leaf in leaves]

    def restore(vectors):
        results = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]  # empty leaves stay so
        for indices, vector in zip(groups.values(), vectors, strict=True):
            for i, part in zip(indices, cut(vector, [real[i].size for i in indices]), strict=True):
                part = part.reshape(real[i].shape).astype(real[i].dtype)
                results[i] = lax.complex(*part) if jnp.iscomplexobj(leaves[i]) else part
        return jax.tree.unflatten(treedef, results)

    of_groups: dict[str, list[jax.Array]] = {}
    parts: list[tuple[Part, ...]] = []
    for name, indices in groups.items():
        dtype = common_dtype(*(real[i].dtype for i in indices))
        of_groups[name] = [real[i].ravel().astype(dtype) for i in indices]
        if cuts:
            runs = itertools.groupby(indices, key=lambda i: cuts[i])
            parts.append(tuple((sum(real[i].size for i in run), axes) for axes, run in runs))
    vectors = {name: join(of_group) for name, of_group in of_groups.items()}
    return vectors, tuple(parts), restore
