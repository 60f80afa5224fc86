"""Inception-v3: sizes, its two heads, and its options; it runs at 1/32 of its width."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

from models import inception, tasks
from models.inception import InceptionV3
from tests import inputs
from tests.stepper import dtypes_of
from tests.vision_variables import variables_of


def image_of(size):
    return jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)


@functools.cache
def shapes_of(model, *, size=299):
    return jax.eval_shape(model.init, jax.random.key(0), image_of(size))


def outputs(model, *, size=299, training):
    """Shapes of what the model returns, and of what is between."""
    run = functools.partial(model.apply, deterministic=not training, capture_intermediates=True, mutable=True)
    rngs = {"dropout": jax.random.key(0)}
    return jax.eval_shape(lambda v, x: run(v, x, rngs=rngs), shapes_of(model, size=size), image_of(size))


def test_auxiliary_logits_are_for_training():
    logits = (2, 10)
    model = InceptionV3(num_classes=10)
    assert jax.tree.map(lambda x: x.shape, outputs(model, size=75, training=True)[0]) == (logits, logits)
    assert outputs(model, training=False)[0].shape == logits
    without = InceptionV3(num_classes=10, auxiliary="off")
    assert outputs(without, training=True)[0].shape == logits
    assert ["AuxLogits" in shapes_of(each)["params"] for each in (model, without)] == [True, False]


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_statistics_change_in_training_alone(mode):
    model = InceptionV3(num_classes=10)
    variables = shapes_of(model)
    rngs = {"dropout": jax.random.key(0)} if mode == "training" else None

    def statistics(batch_stats, params, image):
        options = {"deterministic": mode == "evaluation", "rngs": rngs, "mutable": ["batch_stats"]}
        return model.apply({"params": params, "batch_stats": batch_stats}, image, **options)[1]["batch_stats"]

    # An unchanged statistic is the same variable of the program. Evaluation has no key, so it draws nothing.
    program = jax.make_jaxpr(statistics)(variables["batch_stats"], variables["params"], image_of(299)).jaxpr
    statistics_in = program.invars[: len(program.outvars)]
    kept = [before is after for before, after in zip(statistics_in, program.outvars, strict=True)]
    assert len(kept) == len(jax.tree.leaves(variables["batch_stats"]))
    assert set(kept) == {mode == "evaluation"}


def test_maps_are_the_paper_s():
    seen = outputs(InceptionV3(num_classes=10), training=True)[1]["intermediates"]
    maps = {name: seen[name]["__call__"][0].shape[1:] for name in seen if name != "__call__"}
    assert maps["Conv2d_2a_3x3"] == (147, 147, 32) and maps["Conv2d_4a_3x3"] == (71, 71, 192)
    assert maps["Mixed_5b"] == (35, 35, 256) and maps["Mixed_5d"] == (35, 35, 288)
    assert {maps[name] for name in ("Mixed_6a", "Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e")} == {(17, 17, 768)}
    assert maps["Mixed_7a"] == (8, 8, 1280) and maps["Mixed_7b"] == maps["Mixed_7c"] == (8, 8, 2048)
    head = seen["AuxLogits"]
    assert head["conv0"]["__call__"][0].shape[1:] == (5, 5, 128)
    assert head["conv1"]["__call__"][0].shape[1:] == (1, 1, 768)


def test_smallest_image():
    with pytest.raises(ValueError, match=r"^image=80x74: Inception-v3 needs at least 75x75 pixels"):
        jax.eval_shape(InceptionV3(num_classes=10).init, jax.random.key(0), jnp.zeros((1, 80, 74, 3)))
    seen = outputs(InceptionV3(num_classes=10), size=inception.MIN_SIZE, training=True)[1]["intermediates"]
    assert seen["Mixed_7c"]["__call__"][0].shape[1:3] == (1, 1)


def test_bfloat16_computes_and_float32_keeps():
    model = InceptionV3(num_classes=10, dtype="bfloat16")
    assert dtypes_of(shapes_of(model)) == {"float32"}
    logits, seen = outputs(model, training=True)
    assert dtypes_of((logits, seen["intermediates"])) == {"bfloat16"}


def test_group_norm_has_no_statistics():
    assert set(shapes_of(InceptionV3(num_classes=10, norm="group"))) == {"params"}
    assert set(shapes_of(InceptionV3(num_classes=10))) == {"params", "batch_stats"}


def test_width_is_of_every_layer():
    full, half = (shapes_of(InceptionV3(num_classes=10, width=width))["params"] for width in (1.0, 0.5))
    kernels = [(a.shape, b.shape) for a, b in zip(jax.tree.leaves(full), jax.tree.leaves(half), strict=True)]
    for one, other in kernels:
        assert other[-1] == (one[-1] if one[-1] == 10 else one[-1] // 2)


def tiny(**kwargs):
    return InceptionV3(num_classes=3, width=1 / 32, **kwargs)


def small_task(**kwargs):
    return tasks.make("classification", model=tiny(), **inputs.images((75, 75, 3), num_classes=3), **kwargs)


def small_batch():
    image = np.random.default_rng(0).standard_normal((4, 75, 75, 3)).astype(np.float32)
    return {"image": image, "label": np.array([0, 1, 2, 0], np.int32)}


def test_initial_deviations():
    kernels = {
        "Mixed_7b/branch1x1/conv": 0.1,
        "AuxLogits/conv1/conv": 0.01,
        "AuxLogits/dense": 0.001,
        "dense": 0.01,
    }

    @jax.jit
    def some(key):  # alone, so that no other random number is compiled
        params = InceptionV3(num_classes=10, width=1 / 16).init(key, jnp.zeros((1, 75, 75, 3)))["params"]
        return {name: functools.reduce(dict.__getitem__, name.split("/"), params)["kernel"] for name in kernels}

    for name, kernel in some(jax.random.key(0)).items():
        # A normal distribution that is cut off at two standard deviations keeps 0.88 of its deviation.
        np.testing.assert_allclose(np.std(kernel), 0.88 * kernels[name], rtol=0.2)


def test_the_auxiliary_loss_counts():
    with_head = small_task(auxiliary_weight=0.4)
    without = small_task(auxiliary_weight=0.0)
    variables = variables_of(tiny(), size=75)
    params = variables["params"]
    state = {"batch_stats": variables["batch_stats"]}

    @jax.jit
    def both(params, state):
        return [task.loss(params, state, small_batch(), jax.random.key(1)) for task in (with_head, without)]

    (full, (sums, _)), (plain, _) = both(params, state)
    np.testing.assert_allclose(plain, sums["loss"] / sums["count"], rtol=1e-6)
    head = float(full - plain) / 0.4
    assert 0.1 < head < 20 and head != pytest.approx(float(plain))


@pytest.mark.parametrize(("remat", "least", "most"), [("none", 0, 0), ("blocks", 11, 99)])
def test_remat_is_of_every_block(remat, least, most):
    model = tiny(remat=remat, dropout_rate=0.0)
    image = jax.ShapeDtypeStruct((1, 75, 75, 3), np.float32)
    init = functools.partial(model.init, deterministic=True)
    program = str(jax.make_jaxpr(lambda image: init(jax.random.key(0), image))(image))
    assert least <= program.count("remat") <= most


def test_remat_keeps_the_order_of_channels():
    """A block alone and in evaluation: one dictionary between here and there would sort its branches."""
    layers = inception.Layers(lambda x, **_: x, "float32", 1 / 16)
    x = small_batch()["image"][:, :5, :5]
    for branches in (inception.block_a(32), inception.BLOCK_B):
        blocks = [make(layers, branches) for make in (inception.Block, nn.remat(inception.Block))]
        variables = variables_of(blocks[0], size=5)
        one, other = (jax.jit(block.apply)(variables, x) for block in blocks)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
