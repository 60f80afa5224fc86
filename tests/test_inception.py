"""Inception-v3: sizes, its two heads, and its options; of 1/32 of its width where it is run."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from models import inception, tasks
from models.inception import InceptionV3


def image_of(size, *, count=2):
    return jax.ShapeDtypeStruct((count, size, size, 3), jnp.float32)


def shapes_of(model, *, size=299):
    return jax.eval_shape(model.init, jax.random.key(0), image_of(size))


def outputs(model, *, size=299, training):
    """Shapes of what the model returns, and of what is between."""
    run = functools.partial(model.apply, deterministic=not training, capture_intermediates=True, mutable=True)
    rngs = {"dropout": jax.random.key(0)}
    return jax.eval_shape(lambda v, x: run(v, x, rngs=rngs), shapes_of(model, size=size), image_of(size))


@pytest.mark.parametrize(("auxiliary", "count"), [("on", 27_161_264), ("off", 23_834_568)])
def test_parameter_count(auxiliary, count):
    params = shapes_of(InceptionV3(num_classes=1000, auxiliary=auxiliary))["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
    assert f"{count:,}" in InceptionV3.__doc__
    assert ("AuxLogits" in params) == (auxiliary == "on")


@pytest.mark.parametrize("size", [75, 299])
def test_auxiliary_logits_are_for_training(size):
    logits = (2, 10)
    model = InceptionV3(num_classes=10)
    assert jax.tree.map(lambda x: x.shape, outputs(model, size=size, training=True)[0]) == (logits, logits)
    assert outputs(model, size=size, training=False)[0].shape == logits
    assert outputs(InceptionV3(num_classes=10, auxiliary="off"), size=size, training=True)[0].shape == logits


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
    with pytest.raises(ValueError, match=r"^image=80x74: Inception-v3 needs at least 75x75 pixels$"):
        jax.eval_shape(InceptionV3(num_classes=10).init, jax.random.key(0), jnp.zeros((1, 80, 74, 3)))
    seen = outputs(InceptionV3(num_classes=10), size=inception.MIN_SIZE, training=True)[1]["intermediates"]
    assert seen["Mixed_7c"]["__call__"][0].shape[1:3] == (1, 1)


def test_bfloat16_computes_and_float32_keeps():
    model = InceptionV3(num_classes=10, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes_of(model))} == {jnp.dtype("float32")}
    logits, seen = outputs(model, training=True)
    assert {leaf.dtype for leaf in jax.tree.leaves((logits, seen["intermediates"]))} == {jnp.dtype("bfloat16")}


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
    example = {"image": jax.ShapeDtypeStruct((75, 75, 3), jnp.float32), "label": jax.ShapeDtypeStruct((), jnp.int32)}
    return tasks.make("classification", model=tiny(), example=example, sizes={"num_classes": 3}, **kwargs)


def small_batch():
    image = np.random.default_rng(0).standard_normal((4, 75, 75, 3)).astype(np.float32)
    return {"image": image, "label": np.array([0, 1, 2, 0], np.int32)}


def test_evaluation_changes_no_statistics_and_drops_nothing():
    model, image = tiny(), small_batch()["image"]
    variables = jax.jit(model.init)(jax.random.key(0), image)
    logits, kept = jax.jit(functools.partial(model.apply, mutable=True))(variables, image)
    assert logits.shape == (4, 3) and np.isfinite(logits).all()
    jax.tree.map(np.testing.assert_array_equal, kept["batch_stats"], variables["batch_stats"])


@pytest.mark.slow
def test_training_changes_statistics_and_the_auxiliary_loss_counts():
    with_head, without = small_task(auxiliary_weight=0.4), small_task(auxiliary_weight=0.0)
    params, state = jax.jit(with_head.init)(jax.random.key(0))
    deviations = {
        "AuxLogits": (params["AuxLogits"]["dense"]["kernel"], 0.001),
        "conv1": (params["AuxLogits"]["conv1"]["conv"]["kernel"], 0.01),
        "Mixed_7b": (params["Mixed_7b"]["branch3x3_1"]["conv"]["kernel"], 0.1),
    }
    for kernel, stddev in deviations.values():
        # What is cut off at two standard deviations has 0.88 of the normal's.
        np.testing.assert_allclose(np.std(kernel), 0.88 * stddev, rtol=0.25)
    run = lambda task: jax.jit(task.loss)(params, state, small_batch(), jax.random.key(1))  # noqa: E731
    (full, (sums, changed)), (plain, _) = run(with_head), run(without)
    np.testing.assert_allclose(plain, sums["loss"] / sums["count"], rtol=1e-6)
    assert 0.4 * 0.5 < full - plain < 0.4 * 2.5  # about log 3 of a head that starts near zero
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), changed, state)
    assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.slow
def test_remat_gives_the_same():
    variables = jax.jit(tiny().init)(jax.random.key(0), small_batch()["image"])

    def run(remat):
        model = tiny(remat=remat, dropout_rate=0.0)

        def loss(params):
            all_logits, changed = model.apply(
                {**variables, "params": params}, small_batch()["image"], deterministic=False, mutable=True
            )
            return sum(jnp.square(logits).mean() for logits in all_logits), changed["batch_stats"]

        assert ("remat" in str(jax.make_jaxpr(loss)(variables["params"]))) == (remat == "blocks")
        return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"])

    one, other = run("none"), run("blocks")
    assert jax.tree.structure(one) == jax.tree.structure(other)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(one[1]))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * largest)
