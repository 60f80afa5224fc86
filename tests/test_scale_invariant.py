"""Scale-invariant models: what may be multiplied, what it costs, and that they are trained by their optimizer."""

import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from configs import flags
from data.assumed import make_or_assume
from models import bert, transformer
from models.layers import attention
from tests import ROOT
from tests.in_process import DIGITS
from tests.test_language_models import apply, bert_inputs, random_params, some_tokens
from training.device_memory import step_bytes
from training.setup import make_setup

TINY = {"vocab_size": 30, "num_layers": 2, "num_heads": 2, "width": 16, "max_length": 12}
MODELS = {
    "transformer": (transformer.Transformer, (some_tokens(3, 12),)),
    "bert": (bert.BertBase, bert_inputs()),
}


def names_of(tree):
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]


def multiplied(params, factors):
    """The parameters, with a factor for each name."""
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(
        structure, [factors.get(n, 1.0) * x for n, x in zip(names_of(params), leaves, strict=True)]
    )


@pytest.mark.parametrize("name", MODELS)
def test_no_output_changes_when_an_invariant_leaf_is_multiplied(name):
    make, inputs = MODELS[name]
    model = make(**TINY, scale_invariant="on")
    params = random_params(model, *inputs)
    wanted = jax.tree.leaves(apply(model, params, *inputs))
    invariant = [leaf for leaf in names_of(params) if re.search(model.invariant_leaves, leaf)]
    assert len(invariant) == 2 * 6  # query, key, value, output; two layers of the feed-forward network
    for factors in (*({leaf: 10.0} for leaf in invariant), dict.fromkeys(invariant, 0.01)):
        found = jax.tree.leaves(apply(model, multiplied(params, factors), *inputs))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=2e-4)
    others = set(names_of(params)) - set(invariant)
    assert not any("block" in leaf and "kernel" in leaf for leaf in others)
    moved = apply(model, multiplied(params, dict.fromkeys(others, 10.0)), *inputs)
    assert np.abs(jax.tree.leaves(moved)[0] - wanted[0]).max() > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_model_is_not_invariant_and_says_so(name):
    make, inputs = MODELS[name]
    model = make(**TINY)
    assert model.invariant_leaves is None
    params = random_params(model, *inputs)
    kernels = {leaf: 10.0 for leaf in names_of(params) if re.search(attention.INVARIANT_LEAVES, leaf)}
    before = apply(model, params, *inputs)
    after = apply(model, multiplied(params, kernels), *inputs)
    assert np.abs(jax.tree.leaves(before)[0] - jax.tree.leaves(after)[0]).max() > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_finite_and_at_right_angles_to_invariant_leaves(name):
    make, inputs = MODELS[name]
    model = make(**TINY, scale_invariant="on")
    params = random_params(model, *inputs)

    def loss(params):
        return sum(jnp.sum(jnp.cos(out)) for out in jax.tree.leaves(model.apply({"params": params}, *inputs)))

    grads = jax.jit(jax.grad(loss))(params)
    for leaf, x, g in zip(names_of(params), jax.tree.leaves(params), jax.tree.leaves(grads), strict=True):
        assert np.isfinite(g).all()
        if re.search(model.invariant_leaves, leaf):
            assert np.abs(np.sum(x * g)) < 1e-4 * np.linalg.norm(x) * np.linalg.norm(g) + 1e-6, leaf


def test_a_query_whose_scores_are_all_negative_has_a_gradient_of_zero():
    scores = jnp.array([[-1.0, -2.0], [1.0, 3.0]])
    gradient = jax.grad(lambda scores: jnp.sum(attention.relu_weights(scores) ** 2))(scores)
    assert np.isfinite(gradient).all() and not np.any(gradient[0]) and np.any(gradient[1])


def test_cudnn_s_kernel_has_no_relu():
    model = transformer.Transformer(**TINY, scale_invariant="on", attention_kernel="cudnn", dropout_rate=0.0)
    with pytest.raises(ValueError, match=r"^attention_kernel='cudnn': "):
        jax.eval_shape(model.init, jax.random.key(0), *MODELS["transformer"][1])


@pytest.mark.parametrize(
    ("model", "plain", "fewer"),
    [
        # 9 D biases of each block; the norm after the last block has 2 D more.
        (bert.BertMini, 11_267_900, 4 * 9 * 256 - 2 * 256),
        (bert.BertBase, 110_106_428, 12 * 9 * 768 - 2 * 768),
        (bert.BertLarge, 336_226_108, 24 * 9 * 1024 - 2 * 1024),
    ],
)
def test_sizes_of_the_paper_are_traced(model, plain, fewer):
    sequence = jnp.zeros((1, 4), jnp.int32)
    built = model(vocab_size=30_522, dtype="bfloat16", scale_invariant="on")
    params = jax.eval_shape(built.init, jax.random.key(0), *[sequence] * 3)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == plain - fewer


def test_the_config_of_sibert_has_the_network_s_mask_and_no_moments_of_its_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    setup = make_setup(flags.load(f"{ROOT}/configs/sibert.py"), open_data=make_or_assume)
    model = bert.BertBase(vocab_size=8, scale_invariant="on")
    assert setup.config.optimizer.mask == model.invariant_leaves
    params = setup.worker_shapes.params
    others = zip(names_of(params), jax.tree.leaves(params), strict=True)
    rest = sum(leaf.size for name, leaf in others if not re.search(model.invariant_leaves, name))
    held = step_bytes(setup, lanes=1)["shared optimizer state"]
    assert 0 <= held - 2 * 4 * rest < 100  # LAMB's two moments of the other parameters, and counts


def test_the_dry_run_shows_the_four_buffers_of_maximal_variance():
    bytes_of = {}
    for name in ("adam", "madam", "lamadam", "diffgrad"):
        given = (f"--config.optimizer.name={name}", "--config.optimizer.learning_rate=0.01")
        setup = make_setup(flags.load(DIGITS, given))
        shown = step_bytes(setup, lanes=1)
        assert step_bytes(setup, lanes=3)["gradients"] == 3 * shown["parameters"]
        bytes_of[name] = round(shown["shared optimizer state"] / shown["parameters"], 3)
    assert bytes_of == {"adam": 2, "madam": 4, "lamadam": 4, "diffgrad": 3}
