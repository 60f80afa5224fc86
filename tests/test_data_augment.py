import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data import sources
from data.augment import AUGMENTATIONS, CROP_PADDING, as_inputs, crop_flip, normalise

NUM_OFFSETS = 2 * CROP_PADDING + 1


def images(batch=16, shape=(8, 9, 3), seed=0):
    return np.random.default_rng(seed).integers(1, 256, (batch, *shape), dtype=np.uint8)


def candidates(image):
    """Every image that pad-crop-flip may make: {(down, right, mirrored): image}."""
    height, width, _ = image.shape
    padded = np.pad(image, ((CROP_PADDING, CROP_PADDING), (CROP_PADDING, CROP_PADDING), (0, 0)))
    crops = {}
    for down in range(NUM_OFFSETS):
        for right in range(NUM_OFFSETS):
            crop = padded[down : down + height, right : right + width]
            crops[down, right, False] = crop
            crops[down, right, True] = crop[:, ::-1]
    return crops


def choices(augment, key, batch):
    """Which of the candidates each image became; fails if it became none of them."""
    out = np.asarray(jax.jit(augment)(key, batch))
    assert out.dtype == np.uint8 and out.shape == batch.shape
    found = []
    for before, after in zip(batch, out, strict=True):
        (choice,) = [name for name, crop in candidates(before).items() if (crop == after).all()]
        found.append(choice)
    return np.array(found)  # [B, 3]


def assert_uniform_and_independent(augment):
    """The law: both offsets uniform over 9, mirrored half the time, each image for itself."""
    found = choices(augment, jax.random.key(0), images(1800, shape=(6, 7, 1)))
    for column in (0, 1):
        counts = np.bincount(found[:, column], minlength=NUM_OFFSETS)  # expected 200, sigma 13
        assert abs(counts - 200).max() < 67
    assert abs(found[:, 2].sum() - 900) < 106  # sigma 21
    assert abs(np.corrcoef(found.T) - np.eye(3)).max() < 0.12  # sigma 0.024
    assert len(np.unique(found, axis=0)) == NUM_OFFSETS**2 * 2


def test_crop_flip():
    assert_uniform_and_independent(crop_flip)


def same_for_all(key, batch):
    return jax.vmap(crop_flip, (None, 0))(key, batch[:, None])[:, 0]


def never_mirrors(key, batch):
    down, right = jax.random.randint(key, (2, len(batch)), 0, NUM_OFFSETS)
    padded = jnp.pad(batch, ((0, 0), (CROP_PADDING, CROP_PADDING), (CROP_PADDING, CROP_PADDING), (0, 0)))
    return jax.vmap(lambda x, i, j: jax.lax.dynamic_slice(x, (i, j, 0), batch.shape[1:]))(padded, down, right)


def wraps_around(key, batch):
    return jnp.roll(batch, (2, 3), axis=(1, 2))


@pytest.mark.parametrize("wrong", [same_for_all, never_mirrors, wraps_around, AUGMENTATIONS["none"]])
def test_the_law_rejects(wrong):
    with pytest.raises((AssertionError, ValueError)):
        assert_uniform_and_independent(wrong)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_key_is_all_the_randomness(name):
    augment, batch = jax.jit(AUGMENTATIONS[name]), images()
    first, again, other = (np.asarray(augment(jax.random.key(seed), batch)) for seed in (1, 1, 2))
    assert first.dtype == np.uint8 and first.shape == batch.shape
    np.testing.assert_array_equal(first, again)
    assert (first == other).all() == (first == batch).all() == (name == "none")


def test_lanes_give_what_each_worker_gives_alone():
    keys = jax.random.split(jax.random.key(0), 3)
    batch = images(12).reshape(3, 4, 8, 9, 3)
    lanes = jax.jit(jax.vmap(crop_flip))(keys, batch)
    for lane in range(3):
        np.testing.assert_array_equal(lanes[lane], jax.jit(crop_flip)(keys[lane], batch[lane]))


def test_normalise():
    batch = images()
    mean = np.array([10, 20, 30], np.float32)
    std = np.array([1, 2, 4], np.float32)
    out = jax.jit(normalise)(batch, mean, std)  # the tests raise on implicit rank promotion
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, (batch.astype(np.float64) - mean) / std, rtol=1e-6, atol=1e-6)


# ---- as tasks take a batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", ["channels", "symmetric", "none"])
def test_a_source_is_normalised_as_it_says(normalise):
    source = sources.make("digits", normalise=normalise)
    dataset = source.load(0)
    assert {name: (x.shape, x.dtype) for name, x in dataset.constants.items()} == {
        name: (part.shape, part.dtype) for name, part in source.info.constants.items()
    }
    batch = dataset.train.gather(np.arange(1437)[None], np.array([0]))
    image = as_inputs({name: part[0] for name, part in batch.items()}, dataset.constants)["image"]
    if normalise == "none":
        assert image.dtype == np.uint8
    elif normalise == "symmetric":
        np.testing.assert_allclose([image.min(), image.max()], [-1, 16 / 127.5 - 1], rtol=1e-6)
    else:
        np.testing.assert_allclose([image.mean(), image.std()], [0, 1], atol=1e-5)


def test_only_images_are_augmented_and_only_with_a_key():
    tokens = {"tokens": jnp.arange(6).reshape(2, 3)}
    assert as_inputs(tokens, {}, augment=lambda key, image: image * 0, key=jax.random.key(0)) is tokens
    image = {"image": jnp.full((2, 4, 4, 1), 7, jnp.uint8)}
    assert (as_inputs(image, {}, augment=lambda key, image: image * 0)["image"] == 7).all()
    assert (as_inputs(image, {}, augment=lambda key, x: x * 0, key=jax.random.key(0))["image"] == 0).all()
