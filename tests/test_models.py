"""Parameter counts, and tasks with exact sums."""

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import numpy as jnp

import models
from models import tasks
from tests import inputs

# Shapes of an input.
DIGITS = (8, 8, 1)
MNIST = (28, 28, 1)
CIFAR = (32, 32, 3)
IMAGENET = (299, 299, 3)
BYTES = (4,)
GPT2 = {"vocab_size": 50_257, "num_layers": 12, "num_heads": 12, "width": 768, "max_length": 1024}
# name, fields, the shape of an input, the number of parameters
COUNTS = [
    ("lenet5", {"num_classes": 10}, MNIST, 1_663_370),
    ("mnist_cnn", {"num_classes": 10}, MNIST, 120_394),
    ("mlp", {"num_classes": 10}, DIGITS, 9_610),
    ("softmax", {"num_classes": 10}, MNIST, 7_850),
    ("resnet18", {"num_classes": 1000}, IMAGENET, 11_689_512),
    ("resnet34", {"num_classes": 1000}, IMAGENET, 21_797_672),
    ("resnet50", {"num_classes": 1000}, IMAGENET, 25_557_032),
    ("resnet20", {"num_classes": 10}, CIFAR, 269_722),
    ("resnet32", {"num_classes": 10}, CIFAR, 464_154),
    ("resnet44", {"num_classes": 10}, CIFAR, 658_586),
    ("resnet56", {"num_classes": 10}, CIFAR, 853_018),
    ("inception_v3", {"num_classes": 1000}, IMAGENET, 27_161_264),
    ("inception_v3", {"num_classes": 1000, "auxiliary": "off"}, IMAGENET, 23_834_568),
    ("pixelcnn", {"likelihood": "categorical"}, CIFAR, 5_856_128),
    ("pixelcnn", {"likelihood": "logistic_mixture"}, CIFAR, 5_171_428),
    ("transformer", {"vocab_size": 10_000}, BYTES, 5_785_088),
    ("transformer", GPT2, BYTES, 124_439_808),
    ("lstm", {"vocab_size": 10_000}, BYTES, 3_620_624),
    ("lstm", {"vocab_size": 10_000, "width": 650, "output": "own"}, BYTES, 19_775_200),
    ("bert_mini", {"vocab_size": 30_522}, BYTES, 11_267_900),
    ("bert_small", {"vocab_size": 30_522}, BYTES, 29_058_876),
    ("bert_base", {"vocab_size": 30_522, "dtype": "bfloat16"}, BYTES, 110_106_428),
    ("bert_large", {"vocab_size": 30_522}, BYTES, 336_226_108),
]


def test_every_model_is_counted():
    assert {name for name, *_ in COUNTS} == set(models.MODELS)


def inputs_of(name, shape, *, count):
    """The arguments with which a test applies a model."""
    dtype = jnp.int32 if shape == BYTES else jnp.float32
    if name == "pixelcnn":
        dtype = jnp.uint8
    return [jnp.ones((count, *shape), dtype)] * (3 if name.startswith("bert") else 1)


@pytest.mark.parametrize(("name", "fields", "shape", "count"), COUNTS)
def test_parameter_count(name, fields, shape, count):
    model = models.MODELS.find(name)(**fields)
    given = inputs_of(name, shape, count=2)
    variables = jax.eval_shape(model.init, jax.random.key(0), *given)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == count
    assert f"{count:,}" in type(model).__doc__
    if "num_classes" in fields:
        assert jax.eval_shape(model.apply, variables, *given).shape == (2, fields["num_classes"])


@pytest.mark.parametrize("name", ["lenet5", "mnist_cnn"])
def test_smallest_image(name):
    model = models.make(name, sizes={"num_classes": 10})
    with pytest.raises(ValueError, match=r"^image=9x3: .* at least 4x4 pixels"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 9, 3, 1)))
    jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4, 4, 1)))


@pytest.mark.parametrize("size", [28, 7])
def test_max_pool_equals_flax(size):
    image = jax.random.normal(jax.random.key(0), (2, size, size, 3))
    ours, theirs = models.layers.pooling.max_pool_2x2, lambda x: nn.max_pool(x, (2, 2), (2, 2))
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
    images = jax.random.normal(jax.random.key(0), (5, 2, 2, 1))
    labels = jnp.array([0, 1, 2, 0, 1])
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


TINY = {"vocab_size": 30, "num_layers": 1, "width": 16}
PIXELS = {"num_layers": 1, "num_filters": 12, "num_head_filters": 12}


@pytest.mark.parametrize(
    ("name", "fields", "shape"),
    [
        ("mlp", {"num_classes": 3, "dropout_rate": 0.5}, (2, 2, 1)),
        ("pixelcnn", {**PIXELS, "dropout_rate": 0.5}, (4, 4, 3)),
        ("lstm", {**TINY, "dropout_rate": 0.5}, BYTES),
        ("bert_mini", {**TINY, "num_heads": 2, "dropout_rate": 0.5, "attention_dropout_rate": 0.0}, BYTES),
        ("bert_mini", {**TINY, "num_heads": 2, "dropout_rate": 0.0, "attention_dropout_rate": 0.5}, BYTES),
    ],
)
def test_dropout_follows_the_key(name, fields, shape):
    model = models.MODELS.find(name)(**fields)
    given = inputs_of(name, shape, count=4)
    variables = jax.jit(model.init)(jax.random.key(0), *given)

    def outputs(**options):
        return jax.tree.leaves(model.apply(variables, *given, **options))[0]

    drop = jax.jit(lambda key: outputs(deterministic=False, rngs={"dropout": key}))
    first, same, other = (drop(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any() and (first != outputs(deterministic=True)).any()
