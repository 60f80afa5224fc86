"""Parameter counts, and tasks with exact sums."""

import re

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

import models
from models import tasks
from tests import inputs

COUNTS = {"lenet5": 1_663_370, "mnist_cnn": 120_394, "mlp": 9_610, "softmax": 7_850}  # 10 classes


@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_says_its_count(name):
    assert re.search(r"\d,\d{3} parameters", models.MODELS.find(name).__doc__)  # and its own tests count


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name):
    model, size = models.make(name, sizes={"num_classes": 10}), 8 if name == "mlp" else 28  # of digits, or of MNIST
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, size, size, 1)))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == COUNTS[name]
    assert f"{COUNTS[name]:,}" in models.MODELS.find(name).__doc__


@pytest.mark.parametrize("name", ["lenet5", "mnist_cnn"])
def test_smallest_image(name):
    model = models.make(name, sizes={"num_classes": 10})
    with pytest.raises(ValueError, match=r"^image=9x3: .* at least 4x4 pixels"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 9, 3, 1)))
    jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4, 4, 1)))


@pytest.mark.parametrize("size", [28, 7])
def test_max_pool_equals_flax(size):
    image = jax.random.normal(jax.random.key(0), (2, size, size, 3))
    ours, theirs = models.pooling.max_pool_2x2, lambda x: nn.max_pool(x, (2, 2), (2, 2))
    np.testing.assert_array_equal(ours(image), theirs(image))
    gradient = lambda pool: jax.grad(lambda x: (pool(x) ** 2).sum())(image)  # noqa: E731
    np.testing.assert_allclose(gradient(ours), gradient(theirs), rtol=1e-6)


def task_on(images, **kwargs):
    data = inputs.images(images.shape[1:], num_classes=3)
    return tasks.make("classification", model=models.make("softmax", sizes=data["sizes"]), **data, **kwargs)


def test_a_model_for_other_sizes_is_no_model_of_the_task():
    softmax = models.make("softmax", sizes={"num_classes": 4})
    transformer = models.make("transformer", sizes={"vocab_size": 4}, num_layers=1, width=4, num_heads=1)
    tokens = {"tokens": jax.ShapeDtypeStruct((6,), jnp.int32)}
    for task, message in (
        (tasks.make("classification", model=softmax, **inputs.images((2, 2, 1), num_classes=3)), r"\(1, 4\).*\(1, 3\)"),
        (tasks.causal_lm(model=transformer, example=tokens, sizes={"vocab_size": 3}), r"\(1, 5, 4\).*\(1, 5, 3\)"),
    ):
        with pytest.raises(tasks.MisfitError, match=f"returns {message}"):
            jax.eval_shape(task.init, jax.random.key(0))


def test_sums_are_exact_for_any_split_and_padding():
    images = jax.random.normal(jax.random.key(0), (7, 2, 2, 1))
    labels = jnp.array([0, 1, 2, 0, 1, 2, 0])
    task = task_on(images)
    params, state = task.init(jax.random.key(1))
    whole = task.evaluate(params, state, {"image": images, "label": labels}, jnp.ones(7))
    padded = [jnp.concatenate([x[4:], x[:1]]) for x in (images, labels)]
    parts = [
        task.evaluate(params, state, {"image": images[:4], "label": labels[:4]}, jnp.ones(4)),
        task.evaluate(params, state, dict(zip(("image", "label"), padded, strict=True)), jnp.array([1.0, 1, 1, 0])),
    ]
    for key in whole:
        np.testing.assert_allclose(whole[key], parts[0][key] + parts[1][key], rtol=1e-6)
    assert whole["count"] == 7


def test_loss_agrees_with_numpy_and_smoothing_is_for_training_only():
    images, labels = jax.random.normal(jax.random.key(0), (5, 2, 2, 1)), jnp.array([0, 1, 2, 0, 1])
    task = task_on(images, label_smoothing=0.3)
    params, state = task.init(jax.random.key(1))
    logits = np.asarray(images.reshape(5, 4), np.float64) @ np.asarray(params["Dense_0"]["kernel"])
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = 0.7 * np.eye(3)[np.asarray(labels)] + 0.1
    loss, (sums, _) = task.loss(params, state, {"image": images, "label": labels}, jax.random.key(0))
    np.testing.assert_allclose(loss, -(target * log_probability).sum(-1).mean(), rtol=1e-5)
    assert int(sums["correct"]) == (logits.argmax(-1) == np.asarray(labels)).sum()
    evaluated = task.evaluate(params, state, {"image": images, "label": labels}, jnp.ones(5))
    np.testing.assert_allclose(evaluated["loss"], -log_probability[np.arange(5), np.asarray(labels)].sum(), rtol=1e-5)


def test_dropout_follows_the_key():
    model = models.make("mlp", sizes={"num_classes": 3}, dropout_rate=0.5)
    task = tasks.make("classification", model=model, **inputs.images((2, 2, 1), num_classes=3))
    params, state = task.init(jax.random.key(0))
    batch = {"image": jnp.ones((4, 2, 2, 1)), "label": jnp.zeros(4, jnp.int32)}
    losses = [float(task.loss(params, state, batch, jax.random.key(seed))[0]) for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_unknown_names():
    with pytest.raises(ValueError, match="did you mean 'lenet5'"):
        models.make("lenet", sizes={"num_classes": 10})
    with pytest.raises(ValueError, match="allowed: causal_lm, classification"):
        tasks.make("regression", model=None, example={}, sizes={})
