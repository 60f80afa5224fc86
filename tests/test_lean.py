"""Parts of transformers with rules of differentiation of their own, against the plain forms that JAX differentiates."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from models.layers import lean
from models.layers.dropout import random_keeps
from reducers import targets

LANES = 3
FACTOR = 1.25
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)[:, None, None]  # [B, 1, 1, T]
CAUSAL = np.tril(np.ones((5, 5), bool))[None, None]


def plain_gelu(x, *, approximate):
    return nn.gelu(x, approximate=approximate)


def plain_product(x, bias, kernel):
    return nn.gelu(x + bias[None, None], approximate=False) @ kernel


def plain_norm(x, scale, bias):
    deviation = x - x.mean(-1, keepdims=True)
    return deviation / jnp.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-3) * scale[None, None] + bias[None, None]


def plain_attention(query, key, value, *, mask, keeps):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
    weights = weights if keeps is None else jnp.where(keeps, weights * FACTOR, 0)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, value)


def attention(query, key, value, *, mask, keeps):
    return lean.attend(query, key, value, mask, keeps, 1.0 if keeps is None else FACTOR)


HEADS = ((3, 2, 5, 4),) * 3  # [B, H, T, D] of query, key and value
KEEPS = np.asarray(random_keeps(jax.random.key(0), (3, 2, 5, 5), least=2**14))
# name -> (ours, the plain form, shapes of the arguments)
PARTS = {
    "gelu": (lambda x: lean.gelu(x, False), functools.partial(plain_gelu, approximate=False), ((4, 5),)),
    "gelu, tanh": (lambda x: lean.gelu(x, True), functools.partial(plain_gelu, approximate=True), ((4, 5),)),
    "gelu, product": (lambda x, b, k: lean.gelu_product(x, b, k, False), plain_product, ((2, 4, 5), (5,), (5, 5))),
    "layer norm": (lambda x, a, b: lean.layer_norm(x, a, b, 1e-3, x.dtype), plain_norm, ((2, 5, 6), (6,), (6,))),
    **{
        f"attention, {what}": (
            *(functools.partial(f, mask=mask, keeps=keeps) for f in (attention, plain_attention)),
            HEADS,
        )
        for what, mask, keeps in [
            ("padding", MASK, None),
            ("padding, dropout", MASK, KEEPS),
            ("causal", CAUSAL, None),
            ("causal, dropout", CAUSAL, KEEPS),
        ]
    },
}


def with_gradients(part, slope, *arguments):
    """Returns the value and the gradients of a part, which the slope weighs."""
    value, pull = jax.vjp(part, *arguments)
    return value, *pull(slope.astype(value.dtype))


MODES = {
    "one": lambda f, *x: f(*(a[0] for a in x)),
    "lanes": lambda f, *x: jax.vmap(f)(*x),
    "shared parameters": lambda f, slope, x, *rest: jax.vmap(f, (0, 0, *(None for _ in rest)))(
        slope, x, *(a[0] for a in rest)
    ),
    "recomputed": lambda f, *x: jax.vmap(jax.checkpoint(f))(*x),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PARTS)
def test_a_part_and_its_gradients_are_those_of_the_plain_form(name, mode, dtype):
    ours, plain, shapes = PARTS[name]
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal((LANES, *shape)) for shape in (shapes[0], *shapes)]
    tolerance = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 0.03}[dtype]
    with jax.enable_x64(True):
        arguments = [jnp.asarray(a, dtype) for a in arguments]
        exact = [a.astype("float64") for a in arguments]
        found = jax.jit(functools.partial(MODES[mode], functools.partial(with_gradients, ours)))(*arguments)
        expected = jax.jit(functools.partial(MODES[mode], functools.partial(with_gradients, plain)))(*exact)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a, "float64"), b, atol=tolerance * max(1, np.abs(b).max()), rtol=0)


@pytest.mark.parametrize("name", PARTS)
def test_the_backward_pass_keeps_no_more_than_the_plain_form(name):
    ours, plain, shapes = PARTS[name]
    arguments = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]

    def kept(part):
        """Bytes of what the backward pass of a part of a larger function keeps."""
        pull = jax.eval_shape(lambda *x: jax.vjp(part, *x)[1], *arguments)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pull))

    assert kept(ours) < kept(plain)


def test_a_row_that_sees_no_key_is_uniform():
    query, key, value = np.random.default_rng(0).standard_normal((3, *HEADS[0])).astype(np.float32)
    found = lean.attend(query, key, value, MASK, None, 1.0)[2]
    np.testing.assert_allclose(found, np.broadcast_to(value[2].mean(1, keepdims=True), found.shape), atol=1e-6)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (6,), (7, 15), (4, 2, 8)])
def test_decisions_of_dropout_are_those_of_the_hashes_of_all_words(shape):
    key = jax.random.key(7)
    size = np.prod(shape)
    words = np.asarray(
        jax.extend.random.threefry_2x32(jax.random.key_data(key), np.arange(-(-size // 2), dtype=np.uint32))
    )
    halves = words.astype("<u4").view("<u2")[:size].reshape(shape)
    np.testing.assert_array_equal(random_keeps(key, shape, least=30_000), halves >= 30_000)
    with targets.find("v5e:2x2").assumed():
        np.testing.assert_array_equal(random_keeps(key, shape, least=30_000), halves >= 30_000)


@pytest.mark.parametrize("shape", [(1,), (2, 3), (3, 5), (4, 2, 8)])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
def test_decisions_of_dropout_in_parts_are_those_of_the_whole(shape, parts):
    key = jax.random.key(7)
    whole = random_keeps(key, (parts * shape[0], *shape[1:]), least=30_000)
    own = [random_keeps(key, shape, least=30_000, part=part, parts=parts) for part in range(parts)]
    np.testing.assert_array_equal(jnp.concatenate(own), whole)
