"""Language models: counts, causality, padding, precision, rematerialisation; and the task of the next token."""

import functools
import re

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from models import bert, lstm, tasks, transformer
from models.layers import attention
from models.layers.dropout import Dropout
from models.tasks.causal_lm import causal_lm
from tests.hlo import operations
from tests.stepper import dtypes_of

TINY = {"vocab_size": 30, "num_layers": 1, "width": 16}
CAUSAL = {
    "transformer": transformer.Transformer(**TINY, num_heads=2, max_length=12),
    "lstm": lstm.LSTM(**{**TINY, "num_layers": 2}),
    "lstm-own": lstm.LSTM(**TINY, output="own"),
}


def tiny_bert(**kwargs) -> bert.BertBase:
    return bert.BertBase(**{**TINY, "num_heads": 2, "max_length": 12, **kwargs})


@functools.partial(jax.jit, static_argnums=0)
def apply(model: nn.Module, params, *inputs):
    """Compiled once for equal models and shapes, in whichever tests."""
    return model.apply({"params": params}, *inputs)


def random_params(model: nn.Module, *inputs):
    """Random parameters; from NumPy, so that nothing is compiled."""
    return random_like(jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"])


def random_like(shapes):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: 0.2 * rng.normal(size=x.shape).astype(np.float32), shapes)


def some_tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, TINY["vocab_size"], shape).astype(np.int32)


# ---- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "encoder"),
    [
        (bert.BertMini, 11_170_560),
        (bert.BertSmall, 28_763_648),
        (bert.BertBase, 109_482_240),
        (bert.BertLarge, 335_141_888),
    ],
)
def test_bert_has_two_heads(model, encoder):
    """The masked-LM head, a dense layer, a layer norm and the output bias; and the next-sentence head."""
    width = model.width
    (whole,) = re.findall(r"([\d,]+) parameters at a vocabulary of 30,522", model.__doc__)
    assert int(whole.replace(",", "")) - encoder == width**2 + 3 * width + 30_522 + 2 * width + 2
    assert f"{encoder:,}" in model.__doc__


def test_sizes_that_do_not_fit_are_refused():
    tokens = jnp.zeros((1, 13), jnp.int32)
    with pytest.raises(ValueError, match=r"max_length=12: must be at least the data's 13 tokens"):
        jax.eval_shape(CAUSAL["transformer"].init, jax.random.key(0), tokens)
    with pytest.raises(ValueError, match=r"max_length=12: must be at least the data's 13 tokens"):
        jax.eval_shape(tiny_bert().init, jax.random.key(0), tokens, tokens, tokens)
    with pytest.raises(ValueError, match=r"num_heads=3: must divide width=16"):
        jax.eval_shape(tiny_bert(num_heads=3).init, jax.random.key(0), *[tokens[:, :4]] * 3)


# ---- what depends on what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("changed", [0, 5, 11])
def test_the_future_is_not_seen(name, changed):
    model, tokens = CAUSAL[name], some_tokens(3, 12)
    params, other = random_params(model, tokens), tokens.copy()
    other[:, changed] = other[:, changed] % (TINY["vocab_size"] - 1) + 1
    before = apply(model, params, tokens)
    after = apply(model, params, other)
    assert before.shape == (3, 12, TINY["vocab_size"]) and before.dtype == jnp.float32
    np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
    assert (np.abs(before - after)[:, changed:].max((0, 2)) > 1e-7).all()  # all later ones see it


def bert_inputs(time: int = 12):
    positions = np.tile(np.arange(0, time, 2, dtype=np.int32), (3, 1))
    segments = (np.arange(time)[None] >= time // 2).astype(np.int8).repeat(3, 0)
    return some_tokens(3, time), segments, positions


def test_padding_changes_nothing_else_and_everything_else_does():
    model = tiny_bert()
    tokens, segments, positions = bert_inputs()
    params = random_params(model, tokens, segments, positions)
    padded = tokens.copy()
    padded[:, 8:] = 0
    short = apply(model, params, tokens[:, :8], segments[:, :8], positions[:, :4])
    long = apply(model, params, padded, segments, positions[:, :4])
    assert short[0].shape == (3, 4, TINY["vocab_size"]) and short[1].shape == (3, 2)
    assert_near(short, long)
    for other in (
        apply(model, params, tokens, segments, positions[:, :4]),
        apply(model, params, padded, 1 - segments, positions[:, :4]),
    ):
        assert all(np.abs(x - y).max() > 1e-5 for x, y in zip(other, long, strict=True))


def test_only_the_asked_positions_are_predicted():
    model = tiny_bert()
    tokens, segments, positions = bert_inputs()
    params = random_params(model, tokens, segments, positions)
    everywhere, _ = apply(model, params, tokens, segments, np.tile(np.arange(12), (3, 1)))
    asked = np.array([[3, 1], [11, 11], [0, 4]])
    some, _ = apply(model, params, tokens, segments, asked)
    np.testing.assert_allclose(some, np.take_along_axis(np.asarray(everywhere), asked[..., None], axis=1), rtol=1e-5)


@pytest.mark.parametrize("promotion", ["standard", "strict"])
def test_padding_only_is_finite_and_so_is_its_gradient(promotion):
    model = tiny_bert(dtype="bfloat16")
    tokens, segments, positions = bert_inputs()
    params = random_params(model, tokens, segments, positions)

    def total(params):
        return sum(x.sum(dtype=np.float32) for x in model.apply({"params": params}, 0 * tokens, segments, positions))

    with jax.numpy_dtype_promotion(promotion):
        found = jax.jit(jax.value_and_grad(total))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_lstm_layer_agrees_with_flax():
    x = jax.random.normal(jax.random.key(1), (3, 7, 5))
    ours = lstm.LSTMLayer(4, "float32")
    theirs = nn.RNN(nn.OptimizedLSTMCell(4))
    params = jax.jit(ours.init)(jax.random.key(0), x)["params"]
    assert params["input"]["bias"].tolist() == [0] * 4 + [1] * 4 + [0] * 8
    for part in np.split(np.asarray(params["recurrent"]), 4, axis=1):
        np.testing.assert_allclose(part @ part.T, np.eye(4), atol=1e-6)
    params["input"]["bias"] = jax.random.normal(jax.random.key(2), (16,))
    kernel, recurrent, bias = (
        jnp.split(leaf, 4, axis=-1)
        for leaf in (params["input"]["kernel"], params["recurrent"], params["input"]["bias"])
    )
    cell = {f"i{gate}": {"kernel": kernel[i]} for i, gate in enumerate("ifgo")}
    cell |= {f"h{gate}": {"kernel": recurrent[i], "bias": bias[i]} for i, gate in enumerate("ifgo")}
    expected = apply(theirs, {"cell": cell}, x)
    np.testing.assert_allclose(apply(ours, params, x), expected, atol=1e-6)


# ---- precision, memory, dropout ----------------------------------------------------------------------------------


def gradient_of(model: nn.Module, params, *inputs):
    def total(params):
        outputs = model.apply({"params": params}, *inputs, deterministic=False, rngs={"dropout": jax.random.key(3)})
        return sum((x**2).sum() for x in jax.tree.leaves(outputs))

    return jax.jit(jax.grad(total))(params)


def assert_near(one, other, *, tolerance=1e-5):
    """Leaf by leaf, within a share of the largest number of all: a bias of keys has a gradient of zero and rounding."""
    largest = max(np.abs(x).max() for x in jax.tree.leaves(one))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest), one, other)


def model_of(name: str, **fields):
    """A tiny model, and inputs for it."""
    tiny, inputs = (tiny_bert(), bert_inputs()) if name == "bert" else (CAUSAL[name], (some_tokens(3, 12),))
    return tiny.clone(**fields), inputs


def with_blocks(name: str, **fields):
    """A model of three blocks with dropout, its inputs and parameters."""
    model, inputs = model_of(name, **{"num_layers": 3, "dropout_rate": 0.2, **fields})
    return model, inputs, random_params(model, *inputs)


@pytest.mark.parametrize("name", ["bert", "transformer"])
@pytest.mark.parametrize("remat", ["none", "blocks"])
def test_a_loop_over_blocks_changes_nothing(name, remat):
    written_out, inputs, params = with_blocks(name, scan_blocks="off", remat=remat)
    loop = written_out.clone(scan_blocks="on")
    assert_near(apply(written_out, params, *inputs), apply(loop, params, *inputs))
    assert_near(gradient_of(written_out, params, *inputs), gradient_of(loop, params, *inputs))
    for model in (written_out, loop):  # each layer keeps leaves of its own, which begin alike
        init = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
        assert {"block_0", "block_1", "block_2"} <= init.keys()
        assert jax.tree.map(jnp.shape, init) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_a_loop_over_blocks_compiles_one(name):
    def products(num_layers: int, scan_blocks: str) -> int:
        model, inputs, params = with_blocks(name, num_layers=num_layers, scan_blocks=scan_blocks)

        def gradients_of_lanes(params, keys):
            def total(params, key):
                outputs = model.apply({"params": params}, *inputs, deterministic=False, rngs={"dropout": key})
                return sum(x.sum() for x in jax.tree.leaves(outputs))

            return jax.vmap(jax.grad(total), (None, 0))(params, keys)

        traced = jax.jit(gradients_of_lanes).trace(params, jax.random.split(jax.random.key(0), 8))
        return operations(traced.lower(lowering_platforms=("cuda",))).count(("stablehlo.dot_general", False))

    assert products(2, "on") == products(4, "on") == products(1, "on")
    assert products(2, "off") < products(4, "off")


def test_dropout_of_a_rate_near_1_keeps_some():
    drop = Dropout(1 - 2**-24, deterministic=False)
    y = drop.apply({}, jnp.ones((2**20,)), rngs={"dropout": jax.random.key(0)})
    assert set(np.unique(y)) == {0.0, 2.0**16}


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_dropout_keeps_the_mean_and_its_share(rate):
    x = jnp.full((64, 1001), 2.0)
    drop = jax.jit(lambda key: Dropout(rate, deterministic=False).apply({}, x, rngs={"dropout": key}))
    y = np.asarray(drop(jax.random.key(5)))
    kept = y > 0
    np.testing.assert_allclose(y[kept], 2 / (1 - rate), rtol=1e-4)
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(kept.mean() - (1 - rate)) < 4 * deviation
    neighbours = [(kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1]), (kept[:, 4:], kept[:, :-4])]
    for one, other in neighbours:  # independent
        assert abs((one & other).mean() - (1 - rate) ** 2) < 0.01


def test_dropout_of_lanes_is_that_of_each_alone():
    keys = jax.random.split(jax.random.key(1), 3)
    x = jnp.ones((5, 7))
    drop = lambda key: Dropout(0.5, deterministic=False).apply({}, x, rngs={"dropout": key})  # noqa: E731
    np.testing.assert_array_equal(jax.vmap(drop)(keys), [drop(key) for key in keys])


def test_dropout_of_nothing_needs_no_key():
    x = jnp.ones(3)
    for drop in (Dropout(0.0, deterministic=False), Dropout(0.5, deterministic=True)):
        np.testing.assert_array_equal(drop.apply({}, x), x)


# ---- attention ---------------------------------------------------------------------------------------------------


def attention_of(**kwargs) -> attention.SelfAttention:
    init = nn.initializers.normal(0.3)
    fields = {"num_heads": 2, "dropout_rate": 0.0, "kernel": "xla", "dtype": "float32"}
    return attention.SelfAttention(**{**fields, **kwargs}, kernel_init=init, output_init=init)


def attention_params(x, mask, **fields):
    init = functools.partial(attention_of(**fields).init, deterministic=True)
    return random_like(jax.eval_shape(init, jax.random.key(0), x, mask)["params"])


def attention_inputs():
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)[:, None, None]
    return np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32), mask


def test_attention_agrees_with_numpy():
    x, mask = attention_inputs()
    params = attention_params(x, mask)

    def project(name, x=x):
        return x @ params[name]["kernel"] + params[name]["bias"]

    query, key, value = (project(name).reshape(2, 5, 2, 4) for name in ("query", "key", "value"))
    scores = np.where(mask, np.einsum("bqhd,bkhd->bhqk", query, key) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = project("output", np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))
    found = attention_of().apply({"params": params}, x, mask, deterministic=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"dtype": "float32"}, "needs dtype='bfloat16' or 'float16', not 'float32'"),
        ({"dtype": "bfloat16", "dropout_rate": 0.1}, "has no dropout of attention weights"),
        ({"dtype": "bfloat16"}, "needs an NVIDIA GPU, this machine has cpu"),
    ],
)
def test_cudnn_is_refused_where_it_cannot_work(fields, needs):
    with pytest.raises(ValueError, match=f"attention_kernel='cudnn': {needs}"):
        attention_params(*attention_inputs(), kernel="cudnn", **fields)


@pytest.mark.gpu
def test_cudnn_agrees_with_xla():
    tokens, segments, _ = bert_inputs(time=64)
    positions = np.tile(np.arange(4), (3, 1))
    tokens[1, 40:] = 0
    fields = {"max_length": 64, "num_layers": 3, "width": 128, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    models = [tiny_bert(**fields, dtype="bfloat16", attention_kernel=kernel) for kernel in ("xla", "cudnn")]
    params = random_params(models[0], tokens, segments, positions)
    for compute in (apply, gradient_of):
        one, other = (compute(model, params, tokens, segments, positions) for model in models)
        assert_near(one, other, tolerance=0.03)


@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_rematerialisation_is_of_blocks(name):
    kept, inputs = model_of(name)
    again = kept.clone(remat="blocks")
    params = random_params(kept, *inputs)
    assert jax.tree.structure(params) == jax.tree.structure(random_params(again, *inputs))
    for model, expected in ((kept, False), (again, True)):
        program = jax.make_jaxpr(model.apply)({"params": params}, *inputs)
        assert ("remat" in str(program)) == expected


def test_bert_begins_as_its_authors_say():
    params = jax.jit(tiny_bert().init)(jax.random.key(0), *bert_inputs())["params"]
    for path, leaf in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        size = np.asarray(leaf)
        if "bias" in name or "scale" in name:
            assert (size == ("scale" in name)).all(), name
        else:  # normal, cut at two deviations
            assert np.abs(size).max() <= 0.04 and 0.013 < size.std() < 0.022, name


@pytest.mark.parametrize("name", ["bert", "transformer", "lstm", "lstm-own"])
def test_bfloat16_is_near_and_rounds(name):
    exact, inputs = model_of(name)
    rounded = exact.clone(dtype="bfloat16")
    params = random_params(exact, *inputs)
    near = jax.tree.leaves(apply(rounded, params, *inputs))
    assert dtypes_of(near) == {"float32"}
    for x, y in zip(near, jax.tree.leaves(apply(exact, params, *inputs)), strict=True):
        difference = np.abs(x - y).max() / np.abs(y).max()
        assert 1e-4 < difference < 0.05
    gradient = jax.eval_shape(functools.partial(gradient_of, rounded), params, *inputs)
    assert dtypes_of(gradient) == {"float32"}


# ---- the task of the next token ----------------------------------------------------------------------------------


def task_of(model: nn.Module) -> tasks.Task:
    example = {"tokens": jax.ShapeDtypeStruct((10,), jnp.int32)}
    return causal_lm(model=model, example=example, sizes={"vocab_size": TINY["vocab_size"]})


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_loss_agrees_with_numpy_and_padding_is_not_counted(name):
    task = task_of(CAUSAL[name].clone(dropout_rate=0.0))
    tokens = some_tokens(4, 10)
    tokens[1, 6:] = tokens[3] = 0
    shapes, state = jax.eval_shape(task.init, jax.random.key(0))
    params = random_params(CAUSAL[name], tokens[:, :-1])
    assert state == {} and jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    mean, (sums, _) = jax.jit(task.loss)(params, state, {"tokens": tokens}, jax.random.key(1))
    logits = apply(CAUSAL[name], params, tokens[:, :-1])
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
    each = [(b, t) for b in range(4) for t in range(9) if tokens[b, t + 1] != 0]
    assert sums["count"] == len(each) == 9 + 5 + 9
    np.testing.assert_allclose(mean, -np.mean([log_p[b, t, tokens[b, t + 1]] for b, t in each]), rtol=1e-5)
    assert int(sums["correct"]) == sum(log_p[b, t].argmax() == tokens[b, t + 1] for b, t in each)
    weighed = jax.jit(task.evaluate)(params, state, {"tokens": tokens}, jnp.array([0.0, 1, 0, 1]))
    assert weighed["count"] == 5
    expected = -sum(log_p[1, t, tokens[1, t + 1]] for t in range(5))
    np.testing.assert_allclose(weighed["loss"], expected, rtol=1e-5)


def test_metrics_on_arrays_and_on_numbers():
    task = task_of(CAUSAL["lstm"])
    sums = {"loss": 6.0, "correct": 1.0, "count": 4.0}
    for values in (sums, {name: jnp.float32(x) for name, x in sums.items()}):
        metrics = task.metrics(values)
        np.testing.assert_allclose(
            [metrics[name] for name in ("loss", "perplexity", "accuracy")], [1.5, np.exp(1.5), 0.25], rtol=1e-6
        )
    assert np.isfinite(task.metrics({**sums, "loss": 1e6})["perplexity"])  # a run that diverged is no warning
    assert np.isnan(task.metrics({**sums, "loss": np.nan})["perplexity"])
    assert task.best == ("perplexity", "min")


def test_padding_only_is_no_loss():
    task = task_of(CAUSAL["lstm"].clone(dropout_rate=0.0))
    batch = {"tokens": jnp.zeros((2, 10), jnp.int32)}
    params = random_params(CAUSAL["lstm"], batch["tokens"])
    gradient_of = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (mean, _), gradient = gradient_of(params, {}, batch, jax.random.key(1))
    assert mean == 0 and not any(map(np.any, jax.tree.leaves(gradient)))


def test_refuses_data_that_are_not_for_it():
    text = jax.ShapeDtypeStruct((9,), jnp.int32)
    one = jax.ShapeDtypeStruct((1,), jnp.int32)
    for example in ({"image": text}, {"tokens": text, "words": text}, {"tokens": one}):
        with pytest.raises(ValueError, match="name='causal_lm': needs data of running text"):
            causal_lm(model=CAUSAL["lstm"], example=example, sizes={"vocab_size": 9})
