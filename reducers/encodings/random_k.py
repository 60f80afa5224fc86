"""A random part of each leaf, the same for all workers."""

import functools
import math
from typing import Annotated

import jax
from jax import numpy as jnp

from reducers.collectives.backend import each
from reducers.dtypes import wide_dtype
from reducers.encodings.divided import leaving_small
from reducers.encodings.encoding import (
    Encoding,
    OnOff,
    initially,
    keys_of_leaves,
    nothing_kept,
    with_feedback,
    with_places,
)
from reducers.encodings.then import Then, following
from reducers.encodings.top_k import num_kept
from reducers.options import Count, Seed, check_options, check_static


def random_k(
    *,
    ratio: Annotated[float, "(0, 1]"] = 0.01,
    then: Then = None,
    error_feedback: OnOff = "on",
    min_elements: Count = 1024,
    seed: Seed = 0,
) -> Encoding:
    r"""Sends k numbers of each leaf, from places that all workers draw alike, so that values are summed as they are.

    .. math:: D(C(x))_j = \begin{cases} x_j & j \in S \\ 0 & \text{else} \end{cases}, \qquad P(j \in S) = \frac{k}{m}

    No places are sent, and the bytes do not grow with the number of workers. The leaf is read from a random place on,
    around its end, in k stretches; one number is drawn from each.

    Args:
      ratio: k over the numbers of a leaf; k is at least 1.
      then: how the k values are sent: "full", or an encoding of single numbers, such as "half". Its own error feedback
        has no effect; fewer values than its min_elements are not encoded.
      error_feedback: whether a worker keeps the error and adds it to its next gradient.
      min_elements: leaves with fewer numbers are sent as they are.
      seed: the places are a function of the seed and of the count of updates.

    Returns:
      An ``Encoding``.

    Raises:
      ValueError: for a value outside its range.

    >>> import reducers
    >>> mean = reducers.encoded(reducers.mean("worker"), random_k(ratio=0.5, min_elements=1), axis_name="worker")
    >>> combine = lambda g: mean.update(g, mean.init(g))[0]
    >>> jnp.sort(jax.jit(jax.vmap(combine, axis_name="worker"))(jnp.array([[1.0] * 4, [3.0] * 4]))[0])
    Array([0., 0., 2., 2.], dtype=float32)

    Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", arXiv 1809.07599 (from memory), as epfml/powersgd
    (read) has it: the same places on all workers. Differs from that code in: it draws any k places, which sorts the
    whole leaf; this draws one from each of k stretches.
    """
    check_options(random_k, ratio=ratio, error_feedback=error_feedback, min_elements=min_elements, seed=seed)
    check_static(ratio=ratio, min_elements=min_elements)
    follows, _ = following(then)

    def sent(leaves, kept, reduction, *, by):
        keys = keys_of_leaves(reduction.key(seed, of="all"), leaves)
        found = each(lambda key, x: random_places(key, x.size, ratio), [keys[name] for name in leaves], leaves.values())
        places = dict(zip(leaves, found, strict=True))

        def spread(values):
            zeros = [jnp.zeros_like(x, shape=leaves[name].shape) for name, x in values.items()]  # of the values' axes
            return dict(
                zip(values, each(_spread, zeros, [places[name] for name in values], values.values()), strict=True)
            )

        def send(whole):
            chosen = each(lambda x, at: x.ravel()[at], whole.values(), [places[name] for name in whole])
            values = dict(zip(whole, chosen, strict=True))
            found = by(follows)(values, nothing_kept(follows), reduction)
            own = {name: x - found.residuals[name] for name, x in values.items()}
            return spread(found.leaves), spread(own), ()

        return with_feedback(leaves, kept, reduction.contributes, send)

    def cost(leaves, state, n):
        del state
        sizes = {name: num_kept(math.prod(leaf.shape), ratio) for name, leaf in leaves.items()}
        values = {name: jax.ShapeDtypeStruct((sizes[name],), wide_dtype(leaf)) for name, leaf in leaves.items()}
        return follows.cost(values, nothing_kept(follows).state, n)

    made = Encoding(
        init=functools.partial(initially, error_feedback=error_feedback),
        mean=functools.partial(sent, by=lambda encoding: encoding.mean),
        own=functools.partial(sent, by=lambda encoding: encoding.own),
        cost=cost,
        homogeneous=error_feedback == "off" and follows.homogeneous,
    )
    return leaving_small(with_places(made, "random_k"), min_elements=min_elements)


def random_places(key: jax.Array, num_elements: int, ratio: float) -> jax.Array:
    """Returns the places of the k elements that are sent, [k] int32, each of the elements with the same probability.

    >>> random_places(jax.random.key(0), 6, 0.5) % 2  # one of each two neighbours, here from an even place on
    Array([...], dtype=int32)
    """
    count = num_kept(num_elements, ratio)
    width = num_elements // count
    first, within = jax.random.split(key)
    start = jax.random.randint(first, (), 0, num_elements).astype(jnp.int32)
    stretches = width * jnp.arange(count, dtype=jnp.int32)
    places = stretches + jax.random.randint(within, (count,), 0, width).astype(jnp.int32)
    # The sum of two numbers below num_elements may exceed 32 bits.
    return jnp.where(places < num_elements - start, places + start, places - (num_elements - start))


def _spread(zeros: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
    """Returns an array with the values at their places, and 0 elsewhere."""
    spread = zeros.ravel().at[places].set(values, unique_indices=True, mode="promise_in_bounds")
    return spread.reshape(zeros.shape)
