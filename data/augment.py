"""Operations on a worker's images on the device: random augmentation of bytes, then normalisation to floats."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Augmentation = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, images [B, H, W, C] uint8) -> images of the same shape and type; all randomness comes from the key."""

CROP_PADDING = 4  # pixels on each side


def normalise(images: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
    """Returns ``(images - mean) / std`` per channel.

    Args:
      images: [..., C] uint8.
      mean: [C], mean of each channel over the training images, in units of a pixel value (0 to 255).
      std: [C], standard deviation of each channel, in the same units.

    Returns:
      [..., C] float32.

    >>> normalise(jnp.full((1, 2, 2, 1), 30, jnp.uint8), jnp.array([10.0]), jnp.array([5.0])).ravel()
    Array([4., 4., 4., 4.], dtype=float32)
    """
    per_channel = (1,) * (images.ndim - 1) + (-1,)
    mean, std = (jnp.asarray(x, jnp.float32).reshape(per_channel) for x in (mean, std))
    return (images.astype(jnp.float32) - mean) / std


def unchanged(key: jax.Array, images: jax.Array) -> jax.Array:
    """Returns the images unchanged."""
    del key
    return images


def crop_flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Pads each image by 4 zero pixels, crops it back at a random place, and mirrors half of them.

    This is the standard augmentation of CIFAR. Each image has its own offsets, uniform over the 9 x 9 possible ones,
    and is mirrored left to right with probability 1/2.

    Args:
      key: Random key of this worker and batch.
      images: [B, H, W, C] uint8.

    Returns:
      [B, H, W, C] uint8.

    Reference: He et al. 2016, Deep Residual Learning for Image Recognition, section 4.2.
    """
    batch, height, width, _ = images.shape
    offset_key, flip_key = jax.random.split(key)
    offsets = jax.random.randint(offset_key, (batch, 2), 0, 2 * CROP_PADDING + 1)  # [B, 2]: down, right
    flips = jax.random.bernoulli(flip_key, 0.5, (batch, 1))
    sides = (CROP_PADDING, CROP_PADDING)
    padded = jnp.pad(images, ((0, 0), sides, sides, (0, 0)))
    # Crop and mirror are one gather: much faster than a slice per image.
    rows = offsets[:, :1] + jnp.arange(height)[None, :]  # [B, H]
    columns = jnp.arange(width)[None, :]
    columns = jnp.where(flips, width - 1 - columns, columns) + offsets[:, 1:]  # [B, W]
    which = jnp.arange(batch)[:, None, None]
    return padded.at[which, rows[:, :, None], columns[:, None, :]].get(mode="promise_in_bounds")


def as_inputs(
    batch: dict[str, jax.Array],
    constants: Mapping[str, jax.Array],
    *,
    augment: Augmentation = unchanged,
    key: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """Returns a batch as tasks take it: images are augmented, then normalised if there are statistics.

    Args:
      batch: name -> [B, ...], as the examples are stored.
      constants: "mean" and "std" [C], or {}.
      augment: Augmentation of training images.
      key: Random key of the augmentation; None augments nothing.
    """
    if "image" not in batch:
        return batch
    image = batch["image"] if key is None else augment(key, batch["image"])
    return {**batch, "image": normalise(image, constants["mean"], constants["std"]) if constants else image}


AUGMENTATIONS: dict[str, Augmentation] = {"crop_flip": crop_flip, "none": unchanged}
