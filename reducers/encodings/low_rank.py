"""Matrices of low rank in the place of gradients."""

import functools
import math
from collections import defaultdict
from typing import Any

import jax
from jax import numpy as jnp

from reducers.dtypes import wide, wide_dtype
from reducers.dynamic_scale import all_finite
from reducers.encodings.divided import leaving_small
from reducers.encodings.encoding import (
    Encoding,
    Leaves,
    OnOff,
    initially,
    keys_of_leaves,
    nothing_kept,
    total_cost,
    with_feedback,
)
from reducers.encodings.random_rounding import key_of
from reducers.encodings.then import Then, following
from reducers.gram.scales import unit
from reducers.options import Count, NonNegative, Seed, check_options, check_static


def low_rank(
    *,
    rank: Count = 4,
    then: Then = None,
    min_compression: NonNegative = 1.0,
    error_feedback: OnOff = "on",
    seed: Seed = 0,
) -> Encoding:
    r"""Sends two thin factors of each matrix, found by one step of subspace iteration on the mean of all workers.

    .. math:: P = \mathrm{orth}\Big( \frac{1}{n} \sum_i M_i Q \Big), \quad Q_i = M_i^T P, \quad
        Q \leftarrow \frac{1}{n} \sum_i Q_i, \quad R = P Q^T, \quad e_i \leftarrow M_i - P Q_i^T

    with the Q of the update before. M is a leaf as a matrix of its last dimension, the outputs of a layer, by all
    others. Two all-reduces average all factors; the first also has the leaves that are not matrices, or would not get
    smaller, as they are.

    Args:
      rank: columns of P and Q; fewer for a matrix with fewer rows or columns.
      then: how the factors and other leaves are encoded: "full", or an encoding of single numbers, such as "half". Its
        own error feedback has no effect; a factor with fewer numbers than its min_elements is not encoded.
      min_compression: matrices are sent as they are unless their elements are more than this many times those of their
        factors; 0 factors all matrices.
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      seed: the seed of the first Q, which is the same on all workers.

    Returns:
      An ``Encoding``, for the mean alone.

    Raises:
      ValueError: for a value outside its range.

    >>> import reducers
    >>> mean = reducers.encoded(reducers.mean("worker"), low_rank(rank=1, min_compression=0), axis_name="worker")
    >>> combine = jax.jit(jax.vmap(lambda g: mean.update(g, mean.init(g))[0], axis_name="worker"))
    >>> combine(jnp.array([[[1.0, 2.0], [2.0, 4.0]]] * 2))[0].round(3)  # of rank 1
    Array([[1., 2.],
           [2., 4.]], dtype=float32)

    Reference: Vogels, Karimireddy, Jaggi, "PowerSGD", arXiv 1905.13727 (from memory), and both versions of its code
    (epfml/powersgd, read). Q is kept from update to update, as there. The residual is that of the newer code, with the
    worker's own Q_i; that of the older one, M_i - P Q^T, has the same mean over the workers. Differs from the older
    code in: a QR decomposition orthonormalises; Q is scaled by a power of two, so that gradients of 1e-30 and 1e30
    work; a Q with a NaN or an Inf, which would never leave it, is not kept; outputs are the last dimension of a leaf,
    as in flax. Differs from the newer code in: both factors are renewed at every update, from the first one on.
    """
    check_options(low_rank, rank=rank, min_compression=min_compression, error_feedback=error_feedback, seed=seed)
    check_static(rank=rank, min_compression=min_compression)
    follows, _ = following(then)

    def ranks(leaves):
        """Returns the rank of the leaves that are sent as factors."""
        found = {name: min(rank, *matrix_shape(leaf)) for name, leaf in leaves.items() if len(leaf.shape) > 1}
        smaller = lambda leaf, r: math.prod(leaf.shape) > min_compression * r * sum(matrix_shape(leaf))  # noqa: E731
        return {name: r for name, r in found.items() if smaller(leaves[name], r)}

    def init(leaves):
        rights = {}
        keys = keys_of_leaves(key_of(seed), leaves)
        for name, r in ranks(leaves).items():
            _, columns = matrix_shape(leaves[name])
            rights[name] = jax.random.normal(keys[name], (columns, r), wide_dtype(leaves[name]))
        return initially(leaves, error_feedback=error_feedback)._replace(state=rights)

    def mean(leaves, kept, reduction):
        def send(whole):
            matrices = {name: whole[name].reshape(-1, leaves[name].shape[-1]) for name in kept.state}  # M^T
            rest = {name: whole[name].astype(leaf.dtype) for name, leaf in leaves.items() if name not in matrices}
            lefts = {f"{name} P": _product("co,cr->or", m, unit(kept.state[name])[1]) for name, m in matrices.items()}
            first = follows.mean({**lefts, **rest}, nothing_kept(follows), reduction)
            bases = orthonormal({name: first.leaves[f"{name} P"] for name in matrices})
            rights = {name: _product("co,or->cr", m, bases[name]) for name, m in matrices.items()}
            second = follows.mean(rights, nothing_kept(follows), reduction)

            def as_leaf(name, right):
                return _product("cr,or->co", right, bases[name]).reshape(leaves[name].shape)

            means = {name: first.leaves[name] for name in rest}
            sent = {name: wide(x) - first.residuals[name] for name, x in rest.items()}
            for name, right in rights.items():
                means[name] = as_leaf(name, second.leaves[name])
                sent[name] = as_leaf(name, right - second.residuals[name])
            renewed = {k: jnp.where(all_finite(q), q, kept.state[k]) for k, q in second.leaves.items()}
            return means, sent, renewed

        return with_feedback(leaves, kept, reduction.contributes, send)

    def cost(leaves, state, n):
        del state
        found = ranks(leaves)
        rest = {name: leaf for name, leaf in leaves.items() if name not in found}
        factors: tuple[Leaves, Leaves] = {}, {}
        for name, r in found.items():
            for side, length in zip(factors, matrix_shape(leaves[name]), strict=True):
                side[name] = jax.ShapeDtypeStruct((length, r), wide_dtype(leaves[name]))
        state = nothing_kept(follows).state
        return total_cost(follows.cost(sent, state, n) for sent in ({**factors[0], **rest}, factors[1]))

    encoding = Encoding(
        init=init, mean=mean, own=None, cost=cost, homogeneous=error_feedback == "off" and follows.homogeneous
    )
    return leaving_small(encoding, min_elements=1)


def matrix_shape(leaf: Any) -> tuple[int, int]:
    """Returns the rows and columns of a leaf as a matrix: the last dimension, which is that of outputs, by the others.

    >>> matrix_shape(jax.ShapeDtypeStruct((3, 3, 16, 32), jnp.float32))
    (32, 144)
    """
    return leaf.shape[-1], math.prod(leaf.shape[:-1])


def orthonormal(matrices: Leaves) -> Leaves:
    """Returns matrices, [rows, r], with orthonormal columns of the same span; those of one shape are made together.

    Columns that depend on the others, such as zeros, become any that are orthonormal, so that no direction is lost for
    good.
    """
    of_shape = defaultdict(list)
    for name, matrix in matrices.items():
        of_shape[matrix.shape, matrix.dtype].append(name)
    bases: Leaves = {}
    for names in of_shape.values():
        scaled = jnp.stack([unit(matrices[name])[1] for name in names])
        bases |= dict(zip(names, jnp.linalg.qr(scaled)[0], strict=True))
    return bases


_product = functools.partial(jnp.einsum, precision="highest")
