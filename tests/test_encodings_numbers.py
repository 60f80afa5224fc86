"""What encodings compute: float64 oracles, limits, bytes, and the wrong variants that these reject."""

import dataclasses
import importlib
import math

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from benchmarks.kit import leaves, reducer_times
from benchmarks.kit.candidates import Candidate
from compilers import program
from parallel import Layout
from reducers.encodings import (
    Encoding,
    Reduction,
    as_it_is,
    by_pattern,
    dynamic_bits,
    float8,
    half,
    low_rank,
    named_leaves,
    quantised,
    random_k,
    sign,
    top_k,
)
from reducers.encodings.dynamic_bits import width_at
from reducers.encodings.encoding import initially, with_feedback
from reducers.encodings.packing import num_words, pack, unpack
from reducers.encodings.random_k import random_places
from reducers.encodings.random_rounding import derived, uniform
from tests.test_reducers import WORKER, over_steps, tree_of

# The modules, which functions hide.
DYNAMIC_BITS, QUANTISED = (
    importlib.import_module(f"reducers.encodings.{name}") for name in ("dynamic_bits", "quantised")
)


def encoded(encoding, axis_name=WORKER):
    return reducers.encoded(reducers.mean(axis_name), encoding, axis_name=axis_name)


def updates(reducer, gradients):
    """Results [T, ...] of updates by gradients [T, W, ...], as one worker has them, and all last states [W, ...]."""
    results, _, states = measured_updates(reducer, gradients)
    return results, states


def measured_updates(reducer, gradients):
    """The same, and between them one worker's metrics of each update, [T]."""
    results, states = over_steps(reducer, gradients)
    found = jax.tree.map(lambda x: np.asarray(x[:, 0]), (results, reducers.report(states).metrics))
    return *found, jax.tree.map(lambda x: x[-1], states)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# ---- packing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(1, 33))
def test_packing_of_every_width(bits):
    """Numbers come back, from as many words as each part of their bits needs, around every multiple of a word's."""
    rng = np.random.default_rng(bits)
    counts = [*range(1, 34), 63, 64, 65, 100]
    given = [rng.integers(0, 2**bits, count, dtype=np.uint64).astype(np.uint32) for count in counts]
    for values in given:
        values[0], values[-1] = 2**bits - 1, 0 if values.size > 1 else 2**bits - 1
    there = jax.jit(lambda given: [pack(values, bits) for values in given])
    back = jax.jit(lambda packed: [unpack(words, x.size, bits) for words, x in zip(packed, given, strict=True)])
    packed = there(given)
    for values, words, found in zip(given, packed, back(packed), strict=True):
        np.testing.assert_array_equal(found, values)
        assert words.size == num_words(values.size, bits) <= math.ceil(values.size * bits / 32) + bits.bit_count() - 1
    assert num_words(32 * 7, bits) == 7 * bits


# ---- random numbers ----------------------------------------------------------------------------------------------


def test_numbers_are_uniform_and_independent_of_places_keys_and_workers():
    def key(count, worker):
        return derived(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), count), worker), 7)

    def of_places(count):
        return uniform(key(count, 3), 40)

    def of_workers(count):
        return jax.vmap(lambda worker: uniform(key(count, worker), 1)[0])(jnp.arange(8))

    for draw in (of_places, of_workers):
        found = np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(10_000)), np.float64)  # (counts, places or workers)
        n, k = found.shape
        assert np.abs(found.mean(0) - 0.5).max() < 4 * np.sqrt(1 / 12 / n)
        assert np.abs(found.var(0) * 12 - 1).max() < 5 * np.sqrt(0.8 / n)
        assert np.abs(np.corrcoef(found.T)[np.triu_indices(k, 1)]).max() < 4.5 / np.sqrt(n)
    one = np.asarray(uniform(jax.random.key(5), 1 << 20), np.float64)
    counted = np.bincount((one * 1024).astype(int), minlength=1024)
    assert abs(((counted - 1024) ** 2 / 1024).sum() - 1023) < 4 * np.sqrt(2 * 1023)
    for lag in (1, 2, 8, 32, 1024):
        assert abs(np.corrcoef(one[:-lag], one[lag:])[0, 1]) < 4 / np.sqrt(one.size)


VECTOR = normal(60, seed=3).astype(np.float32) * np.logspace(-2, 0, 60, dtype=np.float32)


def draws_of(codec, count=10_000):
    keys = jax.vmap(lambda i: derived(jax.random.key(0), i))(jnp.arange(count))
    decoded = jax.jit(jax.vmap(lambda key: codec.decode(codec.encode(key, VECTOR), VECTOR)))(keys)
    return np.asarray(decoded, np.float64)


def check_unbiased(codec):
    found = draws_of(codec)
    error = np.abs(found.mean(0) - VECTOR)
    assert (error <= 4 * found.std(0) / 100 + 1e-7).all()


@pytest.mark.parametrize(("bits", "norm"), [(2, "inf"), (4, "inf"), (4, "l2"), (8, "l2")])
def test_quantised_numbers_have_their_mean_and_their_variance(bits, norm):
    codec = quantised(bits=bits, norm=norm).codec
    check_unbiased(codec)
    s = 2 ** (bits - 1) - 1
    size = np.abs(VECTOR).max() if norm == "inf" else np.linalg.norm(VECTOR.astype(np.float64))
    f = np.modf(s * np.abs(VECTOR.astype(np.float64)) / size)[0]
    variance = (size / s) ** 2 * (f * (1 - f)).sum()
    found = draws_of(codec).var(0).sum()
    assert found == pytest.approx(variance, rel=0.03)
    common = VECTOR.size / (6 * s**2) * size**2  # as if places within a level were uniform
    assert bits == 8 or found != pytest.approx(common, rel=0.2)


def test_rounding_to_the_nearest_is_not_unbiased(monkeypatch):
    monkeypatch.setattr(QUANTISED, "round_at_random", lambda key, x: jnp.round(x))
    with pytest.raises(AssertionError):
        check_unbiased(quantised(bits=4).codec)


FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
every_format = pytest.mark.parametrize("format", FORMATS)


def in_8_bits(x, format, bucket):
    """Numbers that are rounded to the nearest by ml_dtypes, over the power of two nearest to the largest of a block."""
    last = 2.0 ** (ml_dtypes.finfo(FORMATS[format]).maxexp - 1)
    rows = np.pad(x, (0, -x.size % bucket)).reshape(-1, bucket)
    mantissas, exponents = np.frexp(np.abs(rows).max(1, keepdims=True))
    scales = np.ldexp(1.0, exponents - (mantissas < 0.75)) / last
    return ((rows / scales).astype(FORMATS[format]).astype(np.float64) * scales).ravel()[: x.size]


def numbers_of(format):
    """The numbers of a format up to its last power of two, of both signs."""
    found = np.arange(256, dtype=np.uint8).view(FORMATS[format]).astype(np.float32)
    return found[np.abs(found) <= 2.0 ** (ml_dtypes.finfo(FORMATS[format]).maxexp - 1)]


def sent(encoding, x):
    codec = encoding.codec
    return np.asarray(jax.jit(lambda x: codec.decode(codec.encode(jax.random.key(0), x), x))(x))


@every_format
@pytest.mark.parametrize("rounding", ["nearest", "random"])
def test_numbers_that_8_bits_hold_are_sent_as_they_are(format, rounding):
    found = numbers_of(format)
    for scale in (1.0, 2.0**-60, 2.0**60):
        given = np.float32(scale) * found
        np.testing.assert_array_equal(sent(float8(format=format, rounding=rounding, bucket=None), given), given)


@every_format
def test_numbers_of_8_bits_are_the_nearest_ones(format):
    """Halves of steps, to the even one, and their neighbours; then numbers of any scale."""
    ordered = np.unique(numbers_of(format))
    halves = (ordered[1:] + ordered[:-1]) / 2
    given = np.concatenate([ordered, halves, np.nextafter(halves, np.float32(9e9)), np.nextafter(halves, -halves)])
    given = np.where(np.abs(given) < 2.0**-126, 0, given)
    np.testing.assert_array_equal(sent(float8(format=format, bucket=None), given), in_8_bits(given, format, given.size))
    drawn = (normal(3000) * 10.0 ** np.random.default_rng(1).uniform(-12, 12, 3000)).astype(np.float32)
    for bucket in (1, 32, 128):
        np.testing.assert_array_equal(
            sent(float8(format=format, bucket=bucket), drawn), in_8_bits(drawn, format, bucket)
        )


@every_format
def test_floats_that_are_rounded_at_random_have_their_mean_and_their_variance(format):
    codec = float8(format=format, rounding="random", bucket=20).codec
    check_unbiased(codec)
    _, exponents = np.frexp(VECTOR.astype(np.float64))
    least = ml_dtypes.finfo(FORMATS[format])
    last = np.repeat(np.frexp(np.abs(VECTOR).reshape(-1, 20).max(1) / 0.75)[1] - 1, 20)  # the scale's exponent
    steps = least.eps * np.maximum(
        np.ldexp(1.0, exponents - 1), float(least.tiny) * np.ldexp(1.0, last - least.maxexp + 1)
    )
    f = np.modf(np.abs(VECTOR.astype(np.float64)) / steps)[0]
    assert draws_of(codec).var(0).sum() == pytest.approx((steps**2 * f * (1 - f)).sum(), rel=0.03)
    with pytest.raises(AssertionError):
        check_unbiased(float8(format=format, rounding="nearest", bucket=20).codec)


@every_format
@pytest.mark.parametrize("rounding", ["nearest", "random"])
def test_blocks_of_8_bits_know_nothing_of_each_other(format, rounding):
    """Of zeros, the largest and the least numbers, NaN, and Inf, none leaves its block."""
    blocks = [[0, 0, -0.0], [3.4e38, -3e38, 0], [1.2e-38, -2e-38, 0], [np.nan, 1, 2], [1, -np.inf, 0], [1, -2, 3]]
    found = sent(float8(format=format, rounding=rounding, bucket=3), np.array(blocks, np.float32).ravel()).reshape(
        -1, 3
    )
    most = {"nearest": 1, "random": 2}[rounding] / {"e4m3": 16, "e5m2": 8}[format]
    for row in (0, 1, 2, 5):
        np.testing.assert_allclose(found[row], np.float32(blocks[row]), rtol=most, atol=0)
    np.testing.assert_array_equal(np.isnan(found).any(1), [False, False, False, True, True, False])
    assert np.isnan(found[3]).all() and np.isnan(found[4, 1])
    assert not sent(float8(format=format, rounding=rounding), np.zeros(200, np.float32)).any()


OF_ONE_NUMBER = {  # each sends equal numbers as they are, to its rounding
    "half": (half(), 1e-3),
    "quantised": (quantised(), 1e-5),
    "quantised l2": (quantised(norm="l2", bits=16), 1e-3),
    "quantised in buckets": (quantised(bits=2, bucket=10), 1e-5),
    "float8": (float8(), 1 / 16),
    "float8 e5m2": (float8(format="e5m2"), 1 / 8),
    "sign": (sign(), 1e-5),
    "top_k": (top_k(ratio=1.0, then=quantised()), 1e-5),
}


@pytest.mark.parametrize(("encoding", "tolerance"), OF_ONE_NUMBER.values(), ids=OF_ONE_NUMBER)
def test_numbers_of_every_scale_are_sent(encoding, tolerance):
    values = np.array([1.2e-38, 2e-38, 1e-37, 1e-30, 1e-20, 1.0, 1e20, 8e37, 1e38, -2e38, 3.4e38], np.float32)
    seen = jax.vmap(lambda key, x: encoding.codec.decode(encoding.codec.encode(key, x), x))
    keys = jax.vmap(lambda seed: derived(jax.random.key(0), seed))(jnp.arange(len(values)))
    found = np.asarray(jax.jit(seen)(keys, np.tile(values[:, None], 50)), np.float64)
    wide = values[:, None].astype(np.float64)
    allowed = np.where(abs(wide) < 1e-35, 2 * tolerance, tolerance)  # a level of the least numbers is rounded, too
    assert (abs(found.mean(1, keepdims=True) - wide) <= (allowed * abs(wide))).all(), found[:, 0] / values


@pytest.mark.parametrize("scale", [1e-35, 1e25, 1e37])
def test_the_error_of_an_encoding_knows_no_scale(scale):
    gradients = np.float32(scale) * normal(1, 4, 50)
    _, measured, _ = measured_updates(encoded(sign(min_elements=1, exchange="gather")), gradients)
    one, *_ = gradients[0].astype(np.float64) / scale
    error = np.linalg.norm(one - abs(one).mean() * np.where(one < 0, -1, 1)) / np.linalg.norm(one)
    assert measured["compression_error"][0] == pytest.approx(error, rel=1e-3)


def check_workers_round_apart(encoding):
    """The mean of eight workers with the same gradient has an eighth of the variance of one."""
    same = np.broadcast_to(VECTOR, (1000, 8, 60))
    of_eight, _ = updates(encoded(encoding), same)
    of_one, _ = updates(encoded(encoding), same[:, :1])
    assert of_eight.var(0).sum() == pytest.approx(of_one.var(0).sum() / 8, rel=0.15)


def test_workers_round_apart():
    check_workers_round_apart(quantised(bits=3, exchange="gather", min_elements=1))


def test_that_check_rejects_keys_that_are_alike_on_all_workers(monkeypatch):
    key = Reduction.key
    monkeypatch.setattr(Reduction, "key", lambda self, seed, *, of="worker": key(self, seed, of="all"))
    with pytest.raises(AssertionError):
        check_workers_round_apart(quantised(bits=3, exchange="gather", min_elements=1))


def test_seeds_and_updates_and_leaves_draw_apart():
    same = {"a": np.broadcast_to(VECTOR, (2, 4, 60)), "b": np.broadcast_to(VECTOR, (2, 4, 60))}
    one, other = (updates(encoded(quantised(bits=3, min_elements=1, seed=s)), same)[0] for s in (0, 1))
    drawn = [one["a"][0], one["a"][1], one["b"][0], other["a"][0]]
    assert all(not np.array_equal(drawn[i], drawn[j]) for i in range(4) for j in range(i))


def test_random_places_are_distinct_and_each_as_likely():
    keys = jax.vmap(lambda i: derived(jax.random.key(2), i))(jnp.arange(20_000))
    for size, ratio, count in ((10, 0.3, 3), (7, 1.0, 7), (5, 0.01, 1)):
        found = np.asarray(jax.jit(jax.vmap(lambda key, s=size, r=ratio: random_places(key, s, r)))(keys))
        assert found.shape[1] == count and (np.diff(np.sort(found, axis=1), axis=1) > 0).all()
        share = np.bincount(found.ravel(), minlength=size) / len(found)
        assert np.abs(share - count / size).max() < 4 * 0.5 / np.sqrt(len(found)) and len(share) == size


# ---- limits ------------------------------------------------------------------------------------------------------


def identity():
    """Sends what it is given, by the error feedback of all others."""

    def mean(leaves, kept, reduction):
        def send(whole):
            return dict(zip(whole, reduction.mean(list(whole.values())), strict=True)), whole, ()

        return with_feedback(leaves, kept, reduction.contributes, send)

    return dataclasses.replace(as_it_is(), init=lambda leaves: initially(leaves, error_feedback="on"), mean=mean)


LIMITS = {
    "identity": (identity(), 0),
    "full": (as_it_is(), 0),
    "top_k": (top_k(ratio=1.0, min_elements=1), 1e-6),
    "top_k scattered": (top_k(ratio=1.0, min_elements=1, exchange="scatter"), 1e-6),
    "random_k": (random_k(ratio=1.0, min_elements=1), 1e-6),
    # The condition of the random first Q multiplies the rounding of the first update, and error feedback returns it in
    # the second one; after that Q is the gradients' own.
    "low_rank": (low_rank(rank=100, min_compression=0.0), 3e-5),
    "quantised": (quantised(bits=16, min_elements=1), 1e-4),
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_limits_are_the_mean(limit):
    encoding, tolerance = limit
    gradients = jax.tree.map(lambda *steps: np.stack(steps), *(tree_of(8, seed=seed) for seed in range(5)))
    expected, _ = updates(reducers.mean(WORKER), gradients)
    found, states = updates(encoded(encoding), gradients)
    is_exact = np.asarray(states.report.metrics["compression_error"]) <= tolerance
    is_low_rank = encoding is LIMITS["low_rank"][0]
    assert is_exact.all() or is_low_rank  # a worker's own columns differ from those of the mean
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        if not tolerance:
            np.testing.assert_array_equal(one, other)
        assert np.abs(one - other).max(initial=0) <= tolerance * max(np.abs(other).max(initial=0), 1)
        if is_low_rank:
            assert np.abs(one - other)[2:].max(initial=0) <= 1e-6


# ---- error feedback ----------------------------------------------------------------------------------------------


def outstanding(residual, exchange):
    """What all workers, [W, m], owe to the mean: as owners of a slice all of it, else their share."""
    n, size = residual.shape[0], residual[0].size
    residual = residual.reshape(n, size)
    if exchange == "gather":
        return residual.mean(0)
    width = -(-size // (32 * n)) * 32
    slices = np.pad(residual, ((0, 0), (0, n * width - size))).reshape(n, n, width)
    own = np.einsum("iis->is", slices)
    return ((slices.sum(0) - own) / n + own).reshape(-1)[:size]


WITH_FEEDBACK = {
    "quantised": (quantised(bits=2, error_feedback="on", exchange="gather"), "gather"),
    "quantised scattered": (quantised(bits=3, error_feedback="on", exchange="scatter"), "scatter"),
    "top_k": (top_k(ratio=0.05), "gather"),
    "top_k of 4 bits": (top_k(ratio=0.05, then=quantised(bits=4)), "gather"),
    "top_k scattered": (top_k(ratio=0.05, exchange="scatter"), "scatter"),
    "random_k": (random_k(ratio=0.05), "gather"),
    "random_k of 4 bits": (random_k(ratio=0.3, then=quantised(bits=4, exchange="gather", min_elements=1)), "gather"),
    "sign": (sign(exchange="gather"), "gather"),
    "sign scattered": (sign(exchange="scatter"), "scatter"),
    "half": (half(error_feedback="on", exchange="gather"), "gather"),
    "float8": (float8(error_feedback="on", exchange="gather"), "gather"),
    "float8 scattered": (float8(rounding="random", error_feedback="on", exchange="scatter"), "scatter"),
    "top_k of 8 bits": (top_k(ratio=0.05, then=float8(format="e5m2", bucket=None)), "gather"),
    "low_rank": (low_rank(rank=2), "gather"),
    "low_rank in half": (low_rank(rank=2, then=half(exchange="gather")), "gather"),
}


def check_telescopes(reducer, exchange, *, num_workers=4, num_updates=100):
    """What was sent and what is still owed add up to all gradients."""
    with jax.enable_x64(True):
        gradients = {
            "matrix": normal(num_updates, num_workers, 50, 30),
            "vector": normal(num_updates, num_workers, 1031),
        }
        results, states = updates(reducer, gradients)
        for name, given in gradients.items():
            owed = outstanding(np.asarray(residuals(states)[name]), exchange) if name in residuals(states) else 0
            found = results[name].sum(0).ravel() + owed
            total = given.mean(1).sum(0).ravel()
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, total, rtol=0, atol=1e-12 * np.abs(owed).max(initial=1))


def residuals(states):
    return states.kept.residuals


@pytest.mark.parametrize("given", WITH_FEEDBACK.values(), ids=WITH_FEEDBACK)
def test_what_is_sent_and_what_is_owed_add_up_to_all_gradients(given):
    encoding, exchange = given
    check_telescopes(encoded(encoding), exchange)


def holding_the_rate(encoding):
    """A reducer with the learning rate in its residuals, which falls from update to update."""
    reducer = encoded(encoding)

    def update(updates, state, params=None, **extra):
        rate = 1 / (1 + state.num_updates)
        results, state = reducer.update(
            jax.tree.map(lambda g: rate.astype(g.dtype) * g, updates), state, params, **extra
        )
        return jax.tree.map(lambda x: x / rate.astype(x.dtype), results), state

    return reducer.like(reducer.init, update)


def test_that_check_rejects_residuals_that_hold_the_learning_rate():
    with pytest.raises(AssertionError):
        check_telescopes(holding_the_rate(top_k(ratio=0.05)), "gather")


def oracle(gradients, decoded):
    """Results of error feedback, [T, m], for gradients [T, W, m] and what a receiver makes of one worker's p."""
    e, results = np.zeros_like(gradients[0]), []
    for g in gradients:
        p = g + e
        sent = np.stack([decoded(row) for row in p])
        e = p - sent
        results.append(sent.mean(0))
    return np.stack(results)


def signs(p):
    return np.abs(p).mean() * np.where(p >= 0, 1, -1)


def largest(p, k):
    return np.where(np.isin(np.arange(p.size), np.argsort(-np.abs(p))[:k]), p, 0)


def scattered(gradients, decoded, width):
    """The same where worker k owns slice k: it takes its own part as it is, and owes what it has not sent back."""
    num_updates, n, size = gradients.shape
    is_there = (np.arange(n * width) < size).reshape(n, width)  # the others fill up the slices, and owe nothing
    given = np.pad(gradients, ((0, 0), (0, 0), (0, n * width - size))).reshape(num_updates, n, n, width)
    e = np.zeros((n, n, width))
    owed = np.zeros((n, width))
    results = []
    for g in given:
        means = np.zeros((n, width))
        for worker in range(n):
            for owner in range(n):
                p = g[worker, owner] + e[worker, owner]
                sent = p if worker == owner else decoded(p)
                e[worker, owner] = is_there[owner] * (p - sent)
                means[owner] += sent / n
        q = means + owed
        back = np.stack([decoded(row) for row in q])
        owed = is_there * (q - back)
        results.append(back.reshape(-1)[:size])
    return np.stack(results)


ORACLES = {
    "sign": (sign(exchange="gather", min_elements=1), lambda g: oracle(g, signs)),
    "sign scattered": (sign(exchange="scatter", min_elements=1), lambda g: scattered(g, signs, 64)),
    "top_k": (top_k(ratio=0.1, min_elements=1), lambda g: oracle(g, lambda p: largest(p, 22))),
    "top_k scattered": (
        top_k(ratio=0.1, min_elements=1, exchange="scatter"),
        lambda g: scattered(g, lambda p: largest(p, 6), 64),
    ),
    "half": (
        half(error_feedback="on", exchange="gather", dtype="bfloat16"),
        lambda g: oracle(g, lambda p: np.asarray(jnp.asarray(p).astype(jnp.bfloat16).astype(jnp.float64))),
    ),
    "float8": (
        float8(error_feedback="on", exchange="gather", bucket=32, min_elements=1),
        lambda g: oracle(g, lambda p: in_8_bits(p, "e4m3", 32)),
    ),
    "float8 scattered": (
        float8(error_feedback="on", exchange="scatter", format="e5m2", bucket=64, min_elements=1),
        lambda g: scattered(g, lambda p: in_8_bits(p, "e5m2", 64), 64),
    ),
}


@pytest.mark.parametrize(("encoding", "expected"), ORACLES.values(), ids=ORACLES)
def test_twenty_updates_agree_with_a_float64_oracle(encoding, expected):
    with jax.enable_x64(True):
        gradients = normal(20, 4, 223)
        found, _ = updates(encoded(encoding), gradients)
        np.testing.assert_allclose(found, expected(gradients), rtol=0, atol=1e-12)


def power_sgd(gradients, right):
    """The pseudo-code of PowerSGD in float64: gradients [T, W, rows, columns], the first Q [columns, r]."""
    e, results = np.zeros_like(gradients[0]), []
    for g in gradients:
        m = g + e
        left = np.linalg.qr(np.mean(m @ right, axis=0))[0]
        rights = np.swapaxes(m, 1, 2) @ left
        right = rights.mean(0)
        results.append(left @ right.T)
        e = m - left @ np.swapaxes(rights, 1, 2)
    return np.stack(results)


def check_power_sgd(encoding):
    with jax.enable_x64(True):
        shared = normal(1, 1, 12, 3) @ normal(1, 1, 3, 30, seed=1)
        gradients = {"kernel": 5 * shared + normal(20, 4, 12, 30), "bias": normal(20, 4, 6)}
        found, _ = updates(encoded(encoding), gradients)
        (right,) = jax.tree.leaves(
            encoding.init({"kernel": jnp.zeros((12, 30))}).state
        )  # of outputs, the last dimension
        expected = power_sgd(np.swapaxes(gradients["kernel"], 2, 3), np.asarray(right))
        np.testing.assert_allclose(found["kernel"], np.swapaxes(expected, 1, 2), rtol=0, atol=1e-9)
        np.testing.assert_allclose(found["bias"], gradients["bias"].mean(1), rtol=0, atol=1e-12)


def test_low_rank_agrees_with_the_pseudo_code_of_powersgd():
    check_power_sgd(low_rank(rank=2))


def test_that_check_rejects_a_q_that_is_drawn_anew_at_each_update():
    encoding = low_rank(rank=2)

    def mean(leaves, kept, reduction):
        def anew(q):
            return jax.random.normal(reduction.key(0, of="all"), q.shape, q.dtype)

        return encoding.mean(leaves, kept._replace(state=jax.tree.map(anew, kept.state)), reduction)

    with pytest.raises(AssertionError):
        check_power_sgd(dataclasses.replace(encoding, mean=mean))


def test_low_rank_finds_a_direction_after_a_gradient_of_zeros():
    rank_one = np.outer(np.arange(1.0, 9), np.ones(6)).astype(np.float32)
    gradients = np.stack([np.zeros((4, 8, 6)), *[np.broadcast_to(rank_one, (4, 8, 6))] * 3]).astype(np.float32)
    found, _ = updates(encoded(low_rank(rank=1, error_feedback="off")), gradients)
    np.testing.assert_allclose(found[-1], rank_one, rtol=1e-5)


# ---- dynamic bits ------------------------------------------------------------------------------------------------


def widths(norms, *, decay=1.0, start_bits=4):
    """The widths of the updates, the first of which knows no norm."""
    encoding = dynamic_bits(start_bits=start_bits, decay=decay)
    state, found = encoding.init({}).state, []
    for norm in norms:
        found.append(int(width_at(state[0], start_bits=start_bits, decay=decay)))
        state = encoding.observe(state, {"w": jnp.array([norm, 0.0])})
    return found


def test_widths_are_constant_where_norms_are():
    for start_bits in (2, 3, 9, 16):
        assert set(widths([0.37] * 50, start_bits=start_bits)) == {start_bits}
    wobbling = 0.37 * (1 + 0.1 * np.random.default_rng(0).uniform(-1, 1, 50))
    assert set(widths(wobbling)) == {4}


def test_widths_follow_the_rule():
    norms = 3.0 * 0.9 ** np.arange(60)
    k = (2**4.5 - 1) / norms[0]
    expected = np.ceil(np.log2(k * norms + 1)) + 1
    assert widths(norms, start_bits=6)[1:] == np.clip(expected, 2, 16)[:-1].tolist()
    k = (2**4.5 - 1) / (0.9 ** (59 / 2))
    expected = np.ceil(np.log2(k * 0.9 ** ((60 - np.arange(1, 60)) / 2) + 1)) + 1  # of norms that stay
    assert widths([1.0] * 60, start_bits=6, decay=0.9)[1:] == np.clip(expected, 2, 16).tolist()
    assert widths([0.0, 0.0, np.nan, 2.0, 2.0]) == [4] * 5 and widths([1.0, 1e-9, 1e30])[2] == 2


def test_dynamic_bits_are_bits_of_their_width(monkeypatch):
    """The norm that is known is that of the update before; metrics say of each update what was sent."""
    monkeypatch.setattr(DYNAMIC_BITS, "WIDTHS", (2, 4, 16))  # fewer branches to compile
    scales = np.float32([1, 1, 0.1, 0.1])[:, None, None]
    gradients = scales * normal(8, 2000).astype(np.float32)
    found, metrics, _ = measured_updates(encoded(dynamic_bits(start_bits=4)), gradients)
    for bits, steps in ((4, (0, 1, 2)), (2, (3,))):
        fixed = encoded(quantised(bits=bits))
        expected, expected_metrics, _ = measured_updates(fixed, gradients)
        sent = reducers.traffic(fixed, gradients[0, 0], axis_sizes={WORKER: 8}).bytes_per_worker
        for step in steps:
            np.testing.assert_array_equal(found[step], expected[step])
            assert metrics["bytes_per_worker"][step] == sent
            assert metrics["bits"][step] == expected_metrics["bits"][step] == pytest.approx(bits, abs=0.3)
            assert metrics["compression_error"][step] == pytest.approx(expected_metrics["compression_error"][step])


# ---- different leaves, different encodings -----------------------------------------------------------------------


def test_the_first_rule_that_matches_counts():
    plain = as_it_is()
    signs = sign(min_elements=1)
    bits = quantised(bits=8, min_elements=1)
    rules = (("bias", plain), ("Dense", signs), ("", bits))
    expected = {"Dense/bias": plain, "Dense/kernel": signs, "Conv/bias": plain, "Conv/kernel": bits}
    gradients = {name: normal(1, 4, 40).astype(np.float32) for name in expected}
    found, states = updates(encoded(by_pattern(rules=rules)), gradients)
    assert set(states.kept.residuals) == {"Dense/kernel"}
    for name, encoding in expected.items():
        alone, _ = updates(encoded(encoding), {name: gradients[name]})
        np.testing.assert_array_equal(found[name], alone[name])


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((), r"rules=\(\): must be one pair"),
        ((("(", sign()),), r"rules\['\('\]: must be a regular expression"),
        ((("a", "sign"),), r"rules\['a'\]: must be an Encoding, not str"),
    ],
)
def test_rules_without_sense_are_refused(rules, said):
    with pytest.raises(ValueError, match=said):
        by_pattern(rules=rules)


@pytest.mark.parametrize("then", [top_k(), low_rank(), random_k(), dynamic_bits()])
def test_what_cannot_follow_is_refused(then):
    for first in (top_k, random_k, low_rank):
        with pytest.raises(ValueError, match="then: must encode numbers one by one, as float8, full, half, quantised"):
            first(then=then)


# ---- who is left out ---------------------------------------------------------------------------------------------


def test_a_worker_that_is_left_out_keeps_its_residual():
    """By a mask around the mean, and by another rule's own choice; the others' residuals change."""
    gradients = tree_of(8, scale=1.0)
    seconds = np.ones((2, 8, 8), np.float32)
    seconds[1, :, [0, 5]] = 9.0  # are late in the second update
    encoding = top_k(ratio=0.1, min_elements=6)
    backup = reducers.backup_workers(WORKER, num_required=6, combine=encoded(encoding))
    krum = reducers.encoded(reducers.krum(WORKER, num_byzantine=1), encoding, axis_name=WORKER)
    for reducer, state_of in ((backup, lambda state: state.combine), (krum, lambda state: state)):
        twice = jax.tree.map(lambda g: np.stack([g, 2 * g]), gradients)
        _, states = over_steps(reducer, twice, arrival_seconds=seconds)
        counted = np.asarray(reducers.report(states).counted[1])
        before, after = np.asarray(state_of(states).kept.residuals["large"])
        assert not counted.all() and counted.any() and counted.dtype == bool
        same = np.array([np.array_equal(x, y) for x, y in zip(before, after, strict=True)])
        np.testing.assert_array_equal(same, ~counted)


@pytest.mark.parametrize(
    "encoding",
    [
        quantised(bits=4, min_elements=6, error_feedback="on", exchange="scatter"),
        quantised(bits=4, min_elements=6, error_feedback="on"),
        sign(min_elements=6, exchange="scatter"),
        low_rank(rank=1),
        random_k(ratio=0.2, min_elements=6),
        top_k(ratio=0.1, min_elements=6),
    ],
)
def test_where_nobody_is_counted_the_mean_is_zero_and_residuals_stay(encoding):
    twice = {"large": np.stack([tree_of(8)["large"]] * 2)}
    found, states = over_steps(encoded(encoding), twice, contributes=np.repeat([[True], [False]], 8, axis=1))
    (before, after) = states.kept.residuals["large"]
    assert not found["large"][1].any() and before.any()
    np.testing.assert_array_equal(after, before)


def test_an_update_that_is_void_leaves_residuals_and_widths():
    """Two workers with top_k of one of two numbers, whose sum overflows in half precision at the second update."""
    half = reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER, initial_scale=1.0)
    reducer = reducers.encoded(half, top_k(ratio=0.5, min_elements=1), axis_name=WORKER)
    gradients = np.array([[2.0, 1.0], [63000.0, 1.0], [0.0, 0.0]], np.float32)
    found, metrics, states = measured_updates(reducer, np.stack([gradients, gradients], axis=1))
    np.testing.assert_array_equal(found, [[2, 0], [0, 0], [0, 1]])
    assert metrics["communication_scale"].tolist() == [1, 0.5, 0.5]
    assert metrics["compression_error"][1] == metrics["compression_error"][0] > 0
    assert not any(x.any() for x in jax.tree.leaves(states.kept.residuals))
    bits = reducers.encoded(half, dynamic_bits(), axis_name=WORKER)
    _, _, states = measured_updates(bits, np.stack([gradients[:2]] * 2, axis=1))
    assert states.kept.state[0].num_updates[0] == 1 and 2 < states.kept.state[0].norm[0] < 4


# ---- bytes -------------------------------------------------------------------------------------------------------

MANY = {
    **{name: encoding for name, (encoding, _) in (LIMITS | WITH_FEEDBACK).items() if name != "identity"},
    "l2": quantised(bits=5, norm="l2", bucket=100, min_elements=100),
    "bits": dynamic_bits(start_bits=6),
    "pattern": by_pattern(rules=(("large", sign()), ("", quantised(bits=4, min_elements=20)))),
}
SHAPES = {"matrix": (64, 80), "long": (3000,), "large": (17, 70, 3), "scalar": ()}


@pytest.mark.parametrize("encoding", MANY.values(), ids=MANY)
@pytest.mark.parametrize("num_workers", [1, 2, 8, 20])
def test_bytes_are_those_of_the_traced_program(encoding, num_workers):
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    cost = encoding.cost(shapes, encoding.init(shapes).state, num_workers)
    if encoding.varies:
        fixed = quantised(bits=6)
        assert cost == tuple(map(float, fixed.cost(shapes, fixed.init(shapes).state, num_workers)))
        return
    assert reducers.traffic(encoded(encoding), shapes, axis_sizes={WORKER: num_workers}).bytes_per_worker == cost.sent


@pytest.mark.parametrize("name", ["quantised scattered", "top_k", "random_k", "sign scattered", "low_rank"])
def test_bytes_are_those_of_the_compiled_program(name):
    encoding, _ = WITH_FEEDBACK[name]
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES.values()]
    candidate = Candidate(name, lambda axis_name: encoded(encoding, axis_name))
    compiled = reducer_times.compile_reducer(candidate, shapes, Layout.of(8, num_devices=8))
    sent = program.read(compiled.call.as_text()).traffic().bytes_per_worker
    assert sent == formula(encoding, shapes, num_workers=8)


def formula(encoding: Encoding, shapes: leaves.Leaves, *, num_workers: int) -> float:
    """The bytes that a worker sends, as the encoding counts them: scales, places and small leaves included."""
    named = named_leaves(shapes)
    return float(encoding.cost(named, jax.eval_shape(encoding.init, named).state, num_workers).sent)


def of_resnet50(encoding: Encoding) -> float:
    """The bytes of an encoding over those of the mean, for ResNet-50's leaves and 8 workers."""
    shapes = leaves.resnet50()
    sent, sent_by_mean = (formula(one, shapes, num_workers=8) for one in (encoding, as_it_is()))
    return sent / sent_by_mean


def test_bytes_of_resnet50():
    """Scales, places, small leaves and padding included."""
    assert 0.25 < of_resnet50(quantised(bits=8)) <= 0.256
    assert 0.125 < of_resnet50(quantised(bits=4)) <= 0.13
    assert 0.25 + 1 / 128 < of_resnet50(float8()) <= 0.263
    assert 1 / 32 < of_resnet50(sign()) <= 0.035
    assert of_resnet50(top_k(ratio=0.01)) <= 0.01 * 8
    shapes = [leaf.shape for leaf in leaves.resnet50()]
    matrices = {shape: (shape[-1], math.prod(shape[:-1])) for shape in shapes if len(shape) > 1}
    factors = sum(4 * sum(matrices[shape]) if shape in matrices else math.prod(shape) for shape in shapes)
    assert of_resnet50(low_rank(rank=4)) == pytest.approx(factors / sum(map(math.prod, shapes)), rel=1e-3)
