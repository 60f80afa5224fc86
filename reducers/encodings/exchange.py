"""How workers average encoded updates: all send all to all, or slices to their owners and back."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
from jax import lax
from jax import numpy as jnp

from reducers.collectives import Combined, cut, devices_and_lanes, gather_workers, in_buckets, join, num_workers
from reducers.collectives.backend import each
from reducers.dtypes import divided, wide, wide_dtype
from reducers.encodings.divided import leaving_small
from reducers.encodings.encoding import (
    Codec,
    Cost,
    Encoding,
    OnOff,
    Reduction,
    Sent,
    Width,
    corrected,
    initially,
    keys_of_leaves,
    remainder,
    residuals_of,
    total_cost,
    with_feedback,
)
from reducers.encodings.packing import WORD, from_words, num_words, pack, size_in_words, to_words, unpack
from reducers.encodings.random_rounding import derived, key_of
from reducers.options import Count, check_options, check_static
from reducers.traffic import SENT

Exchange: TypeAlias = Literal["auto", "gather", "scatter"]

# Up to so many workers their payloads are added up in one expression, which XLA on CPU computes in one pass.
_MAX_UNROLLED = 16

# (places, vectors) -> (mean, residual) of each, and None, since no telemetry says how.
Reduce: TypeAlias = Callable[[list[int], list[jax.Array]], Combined]


def exchanged(
    codec: Codec,
    *,
    exchange: Exchange,
    error_feedback: OnOff,
    min_elements: Count,
    seed: int = 0,
    homogeneous: bool = False,
    sized_as: Codec | None = None,
) -> Encoding:
    """Returns the encoding of leaves one by one, which are then averaged.

    Args:
      codec: encodes a leaf as a vector, or a slice of one.
      exchange: "gather" sends a leaf whole to all workers; "scatter" sends slices to their owners, which average,
        encode once more, and send to all; "auto" takes what sends fewer bytes, leaf by leaf.
      error_feedback: whether residuals are kept.
      min_elements: leaves with fewer are sent as they are.
      seed: the seed of random keys.
      homogeneous: whether the codec scales: D(C(a x)) = a D(C(x)).
      sized_as: the codec whose payloads "auto" compares; None for ``codec``.
    """

    check_options(exchanged, exchange=exchange, error_feedback=error_feedback, min_elements=min_elements)
    check_static(min_elements=min_elements)
    way_of = functools.partial(_chosen, sized_as or codec, exchange=exchange)

    def mean(leaves, kept, reduction):
        old = residuals_of(leaves, kept)
        devices, _ = devices_and_lanes(reduction.axes)
        keys = keys_of_leaves(reduction.key(seed), leaves)
        ways = {name: way_of(leaf, num_workers(reduction.axes)) for name, leaf in leaves.items()}
        results: dict[str, Any] = {}
        for way in (by_gather, by_scatter):
            names = [name for name in leaves if ways[name] is way]
            of_names = [old[name].ravel() for name in names]
            reduce = way(codec, of_names, [keys[name] for name in names], reduction)
            done, _ = in_buckets(reduce, [wide(leaves[name]).ravel() for name in names], axis_name=devices)
            results |= dict(zip(names, done, strict=True))
        shaped = {name: [x.reshape(leaves[name].shape) for x in both] for name, both in results.items()}
        return Sent(*({name: both[i] for name, both in shaped.items()} for i in (0, 1)))

    def own(leaves, kept, reduction):
        keys = keys_of_leaves(reduction.key(seed), leaves)

        def there_and_back(key, x):
            return codec.decode(codec.encode(key, x.ravel()), x.ravel()).reshape(x.shape)

        def send(whole):
            sent = dict(zip(whole, each(there_and_back, [keys[name] for name in whole], whole.values()), strict=True))
            return sent, sent, ()

        return with_feedback(leaves, kept, reduction.contributes, send)

    return leaving_small(
        Encoding(
            init=functools.partial(initially, error_feedback=error_feedback),
            mean=mean,
            own=own,
            cost=lambda leaves, state, n: total_cost(
                _cost(codec, leaf, n, way_of(leaf, n)) for leaf in leaves.values()
            ),
            homogeneous=homogeneous and error_feedback == "off",
            codec=codec,
        ),
        min_elements=min_elements,
    )


# ---- bytes ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 14)
def _words(codec: Codec, num_elements: int, dtype: Any) -> int:
    """Returns the number of words of an encoded vector."""
    return size_in_words(_payload(codec, jax.ShapeDtypeStruct((num_elements,), dtype)))


def _payload(codec: Codec, vector: Any) -> Any:
    """Returns the shapes of a vector's payload."""
    return jax.eval_shape(codec.encode, jax.eval_shape(lambda: key_of(0)), vector)


def _sizes(codec: Codec, leaf: Any, n: int) -> tuple[int, int]:
    """Returns the words of a leaf as a whole, and of one of n slices."""
    size = math.prod(leaf.shape)
    dtype = wide_dtype(leaf)
    return _words(codec, size, dtype), _words(codec, _slice_size(size, n), dtype)


def _chosen(codec: Codec, leaf: Any, n: int, exchange: Exchange) -> Callable:
    if exchange == "auto":
        whole, of_slice = _sizes(codec, leaf, n)
        exchange = "gather" if whole <= 2 * of_slice else "scatter"  # n - 1 whole ones, or 2 (n - 1) slices
    return by_gather if exchange == "gather" else by_scatter


def _cost(codec: Codec, leaf: Any, n: int, way: Callable) -> Cost:
    whole, of_slice = _sizes(codec, leaf, n)
    if way is by_gather:
        return Cost(4 * whole, SENT["all_gather"](n) * 4 * whole)
    return Cost(4 * n * of_slice, SENT["all_to_all"](n) * 4 * n * of_slice + SENT["all_gather"](n) * 4 * of_slice)


# ---- the two ways --------------------------------------------------------------------------------------------------


def by_gather(codec: Codec, residuals: Sequence[jax.Array], keys: Sequence[jax.Array], reduction: Reduction) -> Reduce:
    """Returns the exchange in which every worker sends its payloads to all others: n - 1 payloads.

    .. math:: p_i = g_i + e_i, \\quad c_i = C(p_i), \\quad e_i \\leftarrow p_i - D(c_i), \\quad
        R = \\frac{1}{n} \\sum_i D(c_i)
    """

    def encode(key, x, residual):
        p = corrected(x, residual, reduction.contributes)
        words = to_words(codec.encode(key, p))
        return words, remainder(p, Decoder(codec, p).decode(words), residual, reduction.contributes)

    def mean(x, rows):
        return divided(Decoder(codec, x).add_up(rows), reduction.num_counted())

    gather = functools.partial(gather_workers, axis_name=reduction.axes)

    def reduce(places, bucket):
        sent = each(encode, [keys[i] for i in places], bucket, [residuals[i] for i in places])
        words, rests = zip(*sent, strict=True)
        of_all = _send(gather, words, [x.size for x in bucket], codec.width)  # (W, words) each
        return list(zip(each(mean, bucket, of_all), rests, strict=True)), None

    return reduce


def by_scatter(codec: Codec, residuals: Sequence[jax.Array], keys: Sequence[jax.Array], reduction: Reduction) -> Reduce:
    """Returns the exchange in which worker k owns the k-th slice of every vector: 2 (n - 1) / n payloads.

    Every worker sends each slice to its owner, which averages them, encodes the mean, and sends it to all.

    .. math:: q_k = \\frac{1}{n} \\Big( g_k^{(k)} + \\sum_{i \\ne k} D(C(g_i^{(k)} + e_i^{(k)})) \\Big) + e_k^{(k)},
        \\quad R^{(k)} = D(C(q_k)), \\quad e_k^{(k)} \\leftarrow q_k - R^{(k)}

    An owner's part of its own slice is not sent, and so not encoded: in that slice its residual is that of the mean.
    An owner serves also while its own gradient is left out. Where nobody is counted it sends zeros, and its residual
    stays, as do those numbers of it that a NaN or an Inf would replace.
    """
    n = num_workers(reduction.axes)
    me = lax.axis_index(reduction.axes)
    is_mine = (jnp.arange(n, dtype=me.dtype) == me)[:, None]

    def encode(key, x, e):  # slices, (n, S) each
        p = corrected(x, jnp.where(is_mine, 0, e), reduction.contributes)
        words = jax.vmap(lambda key, p: to_words(codec.encode(key, p)))(key[:n], p)
        decoded = jax.vmap(Decoder(codec, p[0]).decode)(words)
        return words, remainder(p, decoded, e, reduction.contributes)

    def average(key, x, e, received, rest):
        own = corrected(x[me], jnp.zeros_like(e[me]), reduction.contributes)
        decoder = Decoder(codec, own)
        count = reduction.num_counted()
        is_counted = jnp.asarray(count > 0)
        q = jnp.where(is_counted, divided(decoder.add_up(received, own=(me, own)), count) + e[me], 0)
        words = to_words(codec.encode(key[n], q))
        of_mean = remainder(q, decoder.decode(words), e[me], is_counted)
        return words, jnp.where(is_mine, of_mean, rest)

    scatter = functools.partial(lax.all_to_all, axis_name=reduction.axes, split_axis=0, concat_axis=0)
    gather = functools.partial(gather_workers, axis_name=reduction.axes)

    def reduce(places, bucket):
        numbers = jnp.arange(n + 1)
        given = [
            each(lambda key: jax.vmap(derived, in_axes=(None, 0))(key, numbers), [keys[i] for i in places]),
            [_slices(x, n) for x in bucket],
            [_slices(residuals[i], n) for i in places],
        ]
        words, rests = zip(*each(encode, *given), strict=True)
        sizes = [x.shape[1] for x in given[1]]
        received = _send(scatter, words, sizes, codec.width)
        owned, rests = zip(*each(average, *given, received, rests), strict=True)
        gathered = _send(gather, owned, sizes, codec.width)  # (n, words) each
        means = each(lambda x, rows: jax.vmap(Decoder(codec, x[0]).decode)(rows), given[1], gathered)
        results = zip(means, rests, [x.size for x in bucket], strict=True)
        return [(mean.reshape(-1)[:size], rest.reshape(-1)[:size]) for mean, rest, size in results], None

    return reduce


def _send(
    collective: Callable[[jax.Array], jax.Array], words: Sequence[jax.Array], sizes: Sequence[int], width: Width | None
) -> list[jax.Array]:
    """Sends words of all vectors, [..., words] each, by one collective; codes with a ``width`` in the bits of now.

    Args:
      collective: keeps the last axis.
      words: of each vector.
      sizes: how many numbers each vector has.
      width: that of the codec.
    """
    if width is None:
        return cut(collective(join(words, axis=-1)), [x.shape[-1] for x in words])
    in_front = [num_words(size, width.most) for size in sizes]
    behind = [x.shape[-1] - count for x, count in zip(words, in_front, strict=True)]
    codes, others = zip(*(cut(x, both) for x, *both in zip(words, in_front, behind, strict=True)), strict=True)

    def of_bits(bits):
        def send(codes, others):
            given = {"bits": bits, "slot": width.most}
            sent = [jnp.vectorize(lambda x: pack(x, **given), signature="(m)->(k)")(codes), others]
            packed, others = cut(collective(join(sent, axis=-1)), [x.shape[-1] for x in sent])
            whole = jnp.vectorize(lambda x: unpack(x, codes.shape[-1], **given), signature="(k)->(m)")
            return whole(packed), others

        return send

    branches = [of_bits(bits) for bits in width.choices]
    codes, others = lax.switch(width.which, branches, join(codes, axis=-1), join(others, axis=-1))
    return [join(both, axis=-1) for both in zip(cut(codes, in_front), cut(others, behind), strict=True)]


def _slice_size(num_elements: int, n: int) -> int:
    """Returns the size of a slice, with padding: a number of whole words for every width, which XLA packs fast.

    >>> _slice_size(1000, 8)
    128
    """
    return -(-num_elements // (n * WORD)) * WORD


def _slices(x: jax.Array, n: int) -> jax.Array:
    """Returns a vector, padded with zeros, as n slices of one size."""
    return jnp.pad(x, (0, n * _slice_size(x.size, n) - x.size)).reshape(n, -1)


class Decoder:
    """Takes words of payloads apart and decodes them.

    Workers decode their own words, too: so they know to the bit what the others decode, and encode nothing twice.

    Args:
      codec: the codec of the payloads.
      like: [m], a vector that was encoded, or one of its dtype.
    """

    def __init__(self, codec: Codec, like: jax.Array):
        self.codec, self.like = codec, like
        self.payload = _payload(codec, like)

    def decode(self, words: jax.Array) -> jax.Array:
        """Unpacks and decodes a payload, [m]."""
        return self.codec.decode(from_words(words, self.payload), self.like)

    def add_up(self, rows: jax.Array, *, own: tuple[jax.Array, jax.Array] | None = None) -> jax.Array:
        """Returns the sum of the workers' payloads, decoded, in the order of the workers.

        Args:
          rows: [W, words].
          own: a worker and its vector, which takes the place of its payload.
        """

        def add(i, total):
            added = self.codec.add(total, from_words(rows[i], self.payload))
            return added if own is None else jnp.where(i == own[0], total + own[1], added)

        total = self.decode(rows[0])
        total = total if own is None else jnp.where(own[0] == 0, own[1], total)
        if len(rows) > _MAX_UNROLLED:
            return lax.fori_loop(1, len(rows), add, total)
        return functools.reduce(lambda total, i: add(i, total), range(1, len(rows)), total)
