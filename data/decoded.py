"""Sets whose images have one size, decoded once: scikit-learn's digits, or a prepared TFDS set."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from data import cache as caches
from data import folders, tfds_sets
from data.examples import Arrays, Columns, Dataset, Info

DIGITS_SPLIT_SEED = 0  # chooses the test images; not the run's seed, so that all runs have the same
DIGITS_TEST_FRACTION = 0.2
EXAMPLES_PER_CHUNK = 512


def describe(
    image_shape: tuple[int, int, int], num_classes: int, num_train: int, num_test: int, *, fingerprint: str = ""
) -> Info:
    """Returns the shapes and sizes of a set of images [H, W, C] with one label each."""
    shape = jax.ShapeDtypeStruct
    per_channel = shape(image_shape[-1:], np.float32)
    return Info(
        example={"image": shape(image_shape, np.uint8), "label": shape((), np.int32)},
        sizes={"num_classes": num_classes},
        num_train=num_train,
        num_test=num_test,
        constants={"mean": per_channel, "std": per_channel},
        fingerprint=fingerprint,
    )


# Written out, because scikit-learn takes a second to import; a test compares it with the set.
DIGITS = describe((8, 8, 1), 10, num_train=1437, num_test=360)


def check(name: str, *, directory: str = "") -> Info:
    """Returns a set's shapes and makes sure that ``load`` will find it; decodes nothing.

    Args:
      name: "digits", or a TFDS set as "set", "set/config" or "set:version".
      directory: Folder of prepared TFDS sets; "" means TFDS_DATA_DIR, or else TFDS's own default.

    Raises:
      ValueError: One line; no such set, not an image classification set, or not prepared in that folder.
    """
    if name == "digits":
        return DIGITS
    prepared = tfds_sets.open_set(name, directory=directory)
    return describe(prepared.image_shape, prepared.num_classes, *prepared.counts, fingerprint=prepared.fingerprint)


def load(name: str, *, directory: str = "") -> Dataset:
    """Returns a decoded set. TFDS sets are decoded once, then mapped from a cache on disk.

    The constants are "mean" and "std" [C] float32 of each channel over the pixels of the training images, in units of
    a pixel value (0 to 255). A constant channel has standard deviation 1.

    Args:
      name: As for ``check``.
      directory: As for ``check``.

    Raises:
      ValueError: As for ``check``; or the set's files are damaged.

    >>> load("digits").train.columns["image"].shape
    (1437, 8, 8, 1)
    """
    if name == "digits":
        splits = _digits()
        histogram = count_pixels(splits["train"]["images"])
    else:
        found = _load_prepared(tfds_sets.open_set(name, directory=directory))
        splits = found.splits
        histogram = np.array(found.notes["histogram"], np.int64)
    mean, std = statistics(histogram)
    train, test = (
        Arrays({"image": splits[key]["images"], "label": splits[key]["labels"]}) for key in ("train", "test")
    )
    return Dataset(name, train, test, {"mean": mean, "std": std})


def _load_prepared(prepared: tfds_sets.Prepared) -> caches.Stored:
    label = re.sub(r"[^\w.-]+", "-", prepared.builder.info.full_name)
    fingerprint = tfds_sets.fingerprint(prepared.builder, prepared.splits.values())
    folder = folders.root() / f"{label}-{fingerprint}"
    histogram = np.zeros((prepared.image_shape[-1], 256), np.int64)  # of the training images

    def chunks(split: str) -> Iterator[Columns]:
        if split == "train":
            histogram[:] = 0
        for images, labels in decode(prepared, split):
            if split == "train":
                np.add(histogram, count_pixels(images), out=histogram)
            yield {"images": images, "labels": labels}

    shapes: dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]] = {}
    for split, count in zip(("train", "test"), prepared.counts, strict=True):
        images = (count, *prepared.image_shape), np.dtype(np.uint8)
        shapes[split] = {"images": images, "labels": ((count,), np.dtype(np.int32))}
    made = caches.stored(folder)
    return made or caches.store(folder, shapes, chunks=chunks, notes=lambda: {"histogram": histogram.tolist()})


def count_pixels(images: np.ndarray) -> np.ndarray:
    """Returns how often each value occurs in each channel of uint8 images: [C, 256] int64."""
    return np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[-1])])


def statistics(histogram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel from how often each value occurs: [C, 256] -> [C], [C].

    >>> statistics(np.eye(256)[:1] + np.eye(256)[2:3])
    (array([1.], dtype=float32), array([1.], dtype=float32))
    """
    values = np.arange(256.0)
    counts = histogram.sum(axis=1)
    mean = histogram @ values / counts
    squares = (values - mean[:, None]) ** 2
    std = np.sqrt((histogram * squares).sum(axis=1) / counts)
    std[std == 0] = 1.0
    return mean.astype(np.float32), std.astype(np.float32)


def decode(prepared: tfds_sets.Prepared, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the examples of "train" or "test" in order, in chunks: [n, H, W, C] uint8 and [n] int32.

    Two and four threads were no faster: most of the work holds the interpreter's lock.

    Raises:
      ValueError: If an example does not fit the set's description, or cannot be read.
    """
    channels = prepared.image_shape[-1]
    image_feature = prepared.builder.info.features["image"]

    def example(feature: Any) -> tuple[np.ndarray, int]:
        # Always Pillow, even if OpenCV is installed: their JPEG decoders differ in bits.
        image = image_feature.decode_example_np_with_pil(feature["image"].bytes_list.value[0], channels)
        if image.shape != prepared.image_shape:
            raise ValueError(f"an image of shape {image.shape} instead of {prepared.image_shape}")
        label = feature["label"].int64_list.value[0]
        if not 0 <= label < prepared.num_classes:
            raise ValueError(f"label {label} is not in [0, {prepared.num_classes})")
        return image, label

    key = f"data.name={prepared.name!r}"
    name = prepared.splits[split]
    chunks = tfds_sets.read(prepared.builder, name, key=key, parse=example, size=EXAMPLES_PER_CHUNK, unit="images")
    for chunk in chunks:
        images, labels = zip(*chunk, strict=True)
        yield np.stack(images), np.array(labels, np.int32)


def _digits() -> dict[str, Columns]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits: Any = load_digits()
    images = digits.images.astype(np.uint8)[..., None]  # [1797, 8, 8, 1], values 0 to 16
    labels = digits.target.astype(np.int32)
    parts = train_test_split(
        np.arange(len(labels)), test_size=DIGITS_TEST_FRACTION, stratify=labels, random_state=DIGITS_SPLIT_SEED
    )
    names = ("train", "test")
    return {name: {"images": images[part], "labels": labels[part]} for name, part in zip(names, parts, strict=True)}
