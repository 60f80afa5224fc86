"""Groups of leaves, each combined as one vector: every leaf, leaves whose paths match alike, or the whole model.

On CPU the leaves of a group are joined to one array. On accelerators, where all vectors are joined to be sent, and
where leaves are cut over axes of a mesh, a vector has a part for each leaf.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from reducers.collectives import backend, cut, join
from reducers.dtypes import as_real, common_dtype
from reducers.gram.parts import Cuts
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
) -> tuple[dict[str, list[jax.Array]], Cuts, Callable[[Sequence[Sequence[jax.Array]]], Any]]:
    """Returns the leaves of each group as the parts of a vector.

    Args:
      tree: a tree of arrays.
      granularity: see ``from_gram``.
      cuts: the axes of the mesh that cut each leaf; () if there are none.

    Returns:
      The vector of each group by its name, parts of [m] each, of the dtype that its leaves promote to, complex numbers
      as pairs of real ones; the axes that cut its parts; and a function that turns such vectors, in this order, back
      into a tree of the old dtypes.

    Raises:
      ValueError: for a pattern that matches no leaf.
    """
    flat, treedef = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in flat]
    groups = members(tree, granularity)
    real = [as_real(leaf) for leaf in leaves]

    def restore(vectors):
        results = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]  # empty leaves stay so
        for indices, parts in zip(groups.values(), vectors, strict=True):
            of_leaves = parts if len(parts) == len(indices) else cut(parts[0], [real[i].size for i in indices])
            for i, part in zip(indices, of_leaves, strict=True):
                part = part.reshape(real[i].shape).astype(real[i].dtype)
                results[i] = lax.complex(*part) if jnp.iscomplexobj(leaves[i]) else part
        return jax.tree.unflatten(treedef, results)

    vectors: dict[str, list[jax.Array]] = {}
    for name, indices in groups.items():
        dtype = common_dtype(*(real[i].dtype for i in indices))
        of_group = [real[i].ravel().astype(dtype) for i in indices]
        vectors[name] = of_group if cuts or not backend.is_cpu() else [join(of_group)]
    of_vectors = tuple(tuple(cuts[i] for i in indices) for indices in groups.values()) if cuts else ()
    return vectors, of_vectors, restore
