"""The order in which PixelCNN sees pixels, its likelihoods, and the task."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from models import likelihoods, pixelcnn
from models.likelihoods import LIKELIHOODS
from models.pixelcnn import PixelCNN
from models.tasks.density import density
from reducers.dtypes import mixing_dtypes
from tests.stepper import dtypes_of

BOTH = pytest.mark.parametrize("likelihood", LIKELIHOODS)


def tiny(likelihood, **kwargs):
    sizes = {"num_filters": 12, "num_layers": 2, "first_kernel_size": 5, "num_head_filters": 12, "num_mixtures": 2}
    return PixelCNN(likelihood=likelihood, **{**sizes, **kwargs})


def task_on(model, shape, dtype=jnp.uint8):
    return density(model=model, example={"image": jax.ShapeDtypeStruct(shape, dtype)}, sizes={})


@functools.cache
def initial(likelihood):
    """Parameters of the tiny model for three channels: the same for any size of image, remat, dtype and dropout."""
    return jax.jit(tiny(likelihood).init)(jax.random.key(0), jnp.zeros((1, 1, 1, 3), jnp.uint8))["params"]


def noise(shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


# ---- the network -------------------------------------------------------------------------------------------------


def seen_by(model, shape):
    """Which values of the image each output follows: bool [outputs, H * W * C], by exactly zero gradients."""
    image = noise((1, *shape)).astype(np.float32)  # the network casts: grey levels may be floats to differentiate by
    variables = jax.jit(model.init)(jax.random.key(1), image)
    size = jax.eval_shape(model.apply, variables, image).shape  # (1, H, W, ...), the last being of one value or pixel
    images = np.repeat(image, int(np.prod(size[:-1])), axis=0)  # an image for each output: one backward pass for all

    def outputs(images):  # a random mean of the outputs for one value
        found = model.apply(variables, images) @ jax.random.normal(jax.random.key(2), size[-1:])
        return jnp.trace(found.reshape(len(images), -1))

    return np.asarray(jax.jit(jax.grad(outputs))(images) != 0).reshape(len(images), -1)


@pytest.mark.parametrize("channels", [3, 1])
def test_categorical_sees_exactly_what_is_before(channels):
    model = tiny("categorical", num_layers=3, num_filters=24, num_head_filters=48)  # no group has ReLUs that are all 0
    seen = seen_by(model, (3, 4, channels))
    np.testing.assert_array_equal(seen, np.tril(np.ones_like(seen), -1))


def test_logistic_mixture_sees_exactly_the_pixels_before():
    seen = seen_by(tiny("logistic_mixture"), (3, 4, 3)).reshape(12, 12, 3)
    np.testing.assert_array_equal(seen, np.broadcast_to(np.tril(np.ones((12, 12), bool), -1)[..., None], seen.shape))


def test_receptive_field_is_a_rectangle_without_a_blind_spot():
    height, width, reach = 7, 11, 2 + 1  # 5 x 5, then 3 x 3
    seen = seen_by(tiny("categorical"), (height, width, 1)).reshape(height, width, height, width)
    seen = seen[height - 1, width // 2]
    down, right = np.indices((height, width)) - np.array([height - 1, width // 2])[:, None, None]
    above = (-1 - reach <= down) & (down <= -1) & (abs(right) <= reach)
    np.testing.assert_array_equal(seen, above | (down == 0) & (-reach <= right) & (right <= -1))


def test_remat_changes_nothing():
    image = noise((2, 4, 4, 3))
    tasks = [task_on(tiny("categorical", remat=remat), image.shape[1:]) for remat in ("none", "blocks")]
    params = initial("categorical")

    def gradient(task):
        loss = lambda params: task.loss(params, {}, {"image": image}, jax.random.key(0))[0]  # noqa: E731
        return jax.jit(jax.grad(loss))(params)

    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), *map(gradient, tasks))


def test_bfloat16_is_of_activations_only():
    image, outputs = noise((2, 4, 4, 3)), {}
    for dtype in ("float32", "bfloat16"):
        model = tiny("categorical", dtype=dtype)
        shapes = jax.eval_shape(model.init, jax.random.key(0), image)
        assert dtypes_of(shapes) == {"float32"}
        outputs[dtype] = jax.jit(model.apply)({"params": initial("categorical")}, image)
        assert outputs[dtype].dtype == dtype
        assert LIKELIHOODS["categorical"].log_prob(outputs[dtype], image).dtype == jnp.float32
    np.testing.assert_allclose(outputs["bfloat16"].astype(jnp.float32), outputs["float32"], atol=0.05)


# ---- likelihoods -------------------------------------------------------------------------------------------------


def every_image(channels):
    values = np.stack(np.meshgrid(*[np.arange(256)] * channels, indexing="ij"), -1)
    return values.reshape(-1, 1, 1, channels).astype(np.uint8)


@BOTH
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("spread", [0.3, 20.0])
def test_probabilities_of_a_pixel_sum_to_one(likelihood, channels, spread):
    chosen = LIKELIHOODS[likelihood]
    images = every_image(channels)
    outputs = spread * jax.random.normal(jax.random.key(2), (1, 1, 1, *chosen.shape(channels, 3)))
    log_prob = jax.jit(chosen.log_prob)(jnp.broadcast_to(outputs, (len(images), *outputs.shape[1:])), images)
    np.testing.assert_allclose(np.exp(np.asarray(log_prob, np.float64)).sum(), 1, rtol=1e-5)


def reference_mixture(outputs, image, mixtures):
    """The definition, in float64, by plain differences of sigmoids."""
    channels = image.shape[-1]
    outputs = np.asarray(outputs, np.float64).reshape(*image.shape[:3], mixtures, -1)
    weights = np.exp(outputs[..., 0]) / np.exp(outputs[..., 0]).sum(-1, keepdims=True)
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
    x = image / 127.5 - 1
    probability = weights
    pair = 1 + 2 * channels
    for c in range(channels):
        mean = outputs[..., 1 + c]
        for d in range(c):
            mean = mean + np.tanh(outputs[..., pair]) * x[..., None, d]
            pair = pair + 1
        scale = np.exp(outputs[..., 1 + channels + c])
        value = x[..., None, c]
        upper = np.where(image[..., None, c] == 255, 1, sigmoid((value + 1 / 255 - mean) / scale))
        lower = np.where(image[..., None, c] == 0, 0, sigmoid((value - 1 / 255 - mean) / scale))
        probability = probability * (upper - lower)
    return np.log(probability.sum(-1)).sum((1, 2))


def test_mixture_agrees_with_its_definition():
    image = noise((6, 3, 3, 3))
    image[0, 0], image[1, 0] = 0, 255
    outputs = jax.random.normal(jax.random.key(0), (*image.shape[:3], *likelihoods.logistic_mixture_shape(3, 4)))
    ours = jax.jit(likelihoods.logistic_mixture_log_prob)(outputs, image)
    np.testing.assert_allclose(ours, reference_mixture(outputs, image, 4), rtol=1e-5)


def test_categorical_agrees_with_its_definition():
    image = noise((3, 2, 2, 3))
    outputs = jax.random.normal(jax.random.key(0), (3, 2, 2, 3, 256))
    logits = np.asarray(outputs, np.float64)
    nats = np.take_along_axis(logits, image[..., None].astype(int), -1)[..., 0] - np.log(np.exp(logits).sum(-1))
    np.testing.assert_allclose(likelihoods.categorical_log_prob(outputs, image), nats.sum((1, 2, 3)), rtol=1e-5)


@BOTH
@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_extreme_outputs_give_finite_values_and_gradients(likelihood, size):
    image = np.array([0, 1, 127, 254, 255], np.uint8).reshape(5, 1, 1, 1)
    shape = LIKELIHOODS[likelihood].shape(1, 2)
    slope = jax.jit(jax.value_and_grad(lambda outputs: LIKELIHOODS[likelihood].log_prob(outputs, image).sum()))
    for seed in range(4):
        value, gradient = slope(size * jax.random.normal(jax.random.key(seed), (5, 1, 1, *shape)))
        assert np.isfinite(value) and np.isfinite(gradient).all() and value <= 0


# ---- the task ----------------------------------------------------------------------------------------------------


def test_sums_are_exact_for_any_split_and_padding():
    images = noise((5, 3, 3, 3))
    task = task_on(tiny("categorical"), images.shape[1:])
    evaluate = jax.jit(task.evaluate)
    params = initial("categorical")
    state = {}
    whole = evaluate(params, state, {"image": images}, jnp.ones(5))
    parts = [
        evaluate(params, state, {"image": images[:3]}, jnp.ones(3)),
        evaluate(params, state, {"image": images[[3, 4, 0]]}, jnp.array([1.0, 1, 0])),
    ]
    for name in whole:
        np.testing.assert_allclose(whole[name], parts[0][name] + parts[1][name], rtol=1e-6)
    assert whole["count"] == 5 * 27
    mean, (sums, _) = jax.jit(task.loss)(params, state, {"image": images}, jax.random.key(0))
    metrics = task.metrics(whole)
    np.testing.assert_allclose([mean, task.metrics(sums)["loss"]], metrics["loss"], rtol=1e-6)
    np.testing.assert_allclose(metrics["bits_per_dim"] * np.log(2), metrics["loss"], rtol=1e-6)
    assert task.best == ("bits_per_dim", "min")


def test_categorical_starts_at_about_eight_bits():
    images = noise((4, 8, 8, 3))
    task = task_on(tiny("categorical"), images.shape[1:])
    params, state = jax.jit(task.init)(jax.random.key(1))
    assert state == {}
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, initial("categorical"))
    bits = task.metrics(jax.jit(task.evaluate)(params, state, {"image": images}, jnp.ones(4)))["bits_per_dim"]
    assert 7.9 < bits < 8.2


def test_refusals():
    with pytest.raises(ValueError, match=r"needs raw images: config.data.normalise='none'"):
        task_on(tiny("categorical"), (4, 4, 3), jnp.float32)
    with pytest.raises(ValueError, match="needs raw images"):
        density(model=tiny("categorical"), example={"tokens": jax.ShapeDtypeStruct((8,), jnp.int32)}, sizes={})
    with pytest.raises(ValueError, match="needs a model with a likelihood"):
        task_on(pixelcnn.GatedLayer(3, 3, "A", 1, 0.0, True, "float32"), (4, 4, 3))


@BOTH
def test_learns_one_image(likelihood):
    image = np.broadcast_to(np.array([40, 200, 90], np.uint8), (1, 3, 3, 3))
    model = tiny(likelihood)
    task = task_on(model, image.shape[1:])
    optimizer = optax.adam(optax.exponential_decay(0.03, 50, 0.5))

    def loss(params):
        return task.loss(params, {}, {"image": image}, jax.random.key(0))[0]

    def step(carry, _):
        params, memory = carry
        mean, gradient = jax.value_and_grad(loss)(params)
        updates, memory = mixing_dtypes(optimizer.update)(gradient, memory)
        return (optax.apply_updates(params, updates), memory), mean

    learn = jax.jit(lambda params: jax.lax.scan(step, (params, optimizer.init(params)), length=300)[1])
    losses = learn(initial(likelihood))
    few = {"categorical": 0.02, "logistic_mixture": 3.0}[likelihood]  # nats; a mixture knows neighbours of a value too
    assert losses[-1] < few < 4 < losses[0]
