"""Adasum: gradients are summed where they are orthogonal and averaged where they are parallel."""

import re
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from reducers.axes import AxisName, gather_workers
from reducers.gram import Group, fold_coefficients
from reducers.pairs import fold, pair

Algorithm = Literal["gram", "gather"]

# Groups of fewer elements than this times the workers (and at least 64) are folded on the vectors themselves: the Gram
# matrix loses digits there (7e-6 at 8 workers in 2 dimensions), and gathering them costs less than exchanging slices.
_DIRECT_ELEMENTS_PER_WORKER = 8
_DIRECT_ELEMENTS = 64


def adasum(
    axis_name: AxisName, *, granularity: str = "layer", algorithm: Algorithm = "gram"
) -> optax.GradientTransformationExtraArgs:
    r"""Combines the workers' updates pairwise by Adasum along a tree, layer by layer.

    .. math:: R(g_1, \dots, g_n) = \mathrm{Adasum}(R(g_1, \dots, g_{n/2}), R(g_{n/2+1}, \dots, g_n))

    Any number of workers; the tree is that of ``fold``. Before the optimizer it combines gradients, after it the
    optimizer's deltas, which is what the paper does for Momentum-SGD, Adam and LAMB.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first. Axes after the first are gathered: make them lanes,
        where that is free.
      granularity: what counts as one vector: each "layer" (leaf), the whole "model", or a regular expression, and then
        the leaves in whose path, such as "Block_3/Conv_0/kernel", it matches the same text.
      algorithm: "gram" exchanges slices and folds the tree in the space of coefficients, which sends 2 (n - 1) / n of
        the gradient, as an all-reduce does; small groups are gathered. "gather" gathers all: the readable reference.

    Returns:
      A stateless reducer. Its update takes ``contributes``, optional: a bool of each worker, whether it is counted; a
      worker that is not counted is left out of the tree, whatever its values. Dtypes are kept, arithmetic is in
      float32 at least. NaN or Inf of a worker that counts makes its layer NaN, and no other.

    Raises:
      ValueError: for an unknown algorithm, or a granularity that is no regular expression.

    >>> reducer = adasum("worker")
    >>> combine = lambda g: reducer.update(g, reducer.init(g))[0]
    >>> jax.vmap(combine, axis_name="worker")(jnp.array([[1.0, 0.0], [0.0, 2.0]]))[0]  # orthogonal: the sum
    Array([1., 2.], dtype=float32)

    Reference: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake, Barsoum, "Scaling Distributed
    Training with Adaptive Summation", arXiv 2006.02924. Differs from the paper in: any number of workers, not powers
    of two alone; a node that cancels out to rounding noise is added without a projection.
    """
    if algorithm not in ("gram", "gather"):
        raise ValueError(f"algorithm={algorithm!r}: must be one of 'gram', 'gather'")
    try:
        re.compile(granularity)
    except re.error as error:
        allowed = "must be layer, model or a regular expression"
        raise ValueError(f"granularity={granularity!r}: {allowed}: {error}") from None
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name

    def update_fn(updates, state, params=None, *, contributes=None, **extra_args):
        del params, extra_args
        paths, treedef = jax.tree.flatten_with_path(updates)
        leaves = [jnp.asarray(leaf) for _, leaf in paths]
        wide = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves]
        if contributes is not None:
            wide = [jnp.where(contributes, leaf, 0) for leaf in wide]  # a zero gradient is neutral
        num_workers = lax.axis_size(axes)
        groups = _groups([jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths], granularity)
        direct, spanned = _choose(groups, [leaf.size for leaf in wide], num_workers=num_workers, algorithm=algorithm)
        reduced = fold_coefficients(wide, spanned, axes=axes)
        for batch in direct:
            reduced |= _fold_vectors(wide, batch, axes=axes)
        # What is left is empty, or of one worker: the same on all workers already, which pmean makes known to JAX.
        left = {i: lax.pmean(leaf, axes) for i, leaf in enumerate(wide) if i not in reduced}
        reduced |= left
        results = [reduced[i].reshape(leaf.shape).astype(leaf.dtype) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, results), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


def _groups(paths: Sequence[str], granularity: str) -> list[Group]:
    if granularity == "layer":
        return [(i,) for i in range(len(paths))]
    members: dict[str, list[int]] = {}
    for i, path in enumerate(paths):
        found = None if granularity == "model" else re.search(granularity, path)
        key = "model" if granularity == "model" else f"match {found[0]}" if found else f"leaf {path}"
        members.setdefault(key, []).append(i)
    return [tuple(group) for group in members.values()]


def _choose(
    groups: list[Group], sizes: list[int], *, num_workers: int, algorithm: Algorithm
) -> tuple[list[list[Group]], list[Group]]:
    """Which groups are folded as vectors, the small ones together, and which as coefficients.

    None, if there is nothing to combine.
    """
    total = {group: sum(sizes[i] for i in group) for group in groups}
    alive = [group for group in groups if total[group] and num_workers > 1]
    limit = max(_DIRECT_ELEMENTS, _DIRECT_ELEMENTS_PER_WORKER * num_workers)
    small = [group for group in alive if total[group] < limit]
    large = [group for group in alive if total[group] >= limit]
    together = [small] if small else []
    return ([*together, *([group] for group in large)], []) if algorithm == "gather" else (together, large)


def _fold_vectors(leaves: list[jax.Array], groups: list[Group], *, axes: Sequence[str]) -> dict[int, jax.Array]:
    """Gathers every worker's vectors, padded to one length, and folds them: the definition of Adasum."""
    vectors = [jnp.concatenate([leaves[i].ravel() for i in group]) for group in groups]
    longest = max(vector.size for vector in vectors)
    padded = jnp.stack([jnp.pad(vector, (0, longest - vector.size)) for vector in vectors])  # (G, longest)
    gathered = gather_workers(padded, axes)  # (W, G, longest)
    folded = fold(jax.vmap(pair), gathered, num_nodes=len(gathered))  # (G, longest)
    return _ungroup(leaves, groups, list(folded))


def _ungroup(leaves: list[jax.Array], groups: list[Group], vectors: list[jax.Array]) -> dict[int, jax.Array]:
    reduced = {}
    for group, vector in zip(groups, vectors, strict=True):
        ends = np.cumsum([leaves[i].size for i in group])
        for i, end in zip(group, ends, strict=True):
            reduced[i] = vector[end - leaves[i].size : end]
    return reduced
