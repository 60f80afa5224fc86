"""Image sets by name: scikit-learn's digits, or any image classification set that TFDS has prepared."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data import cache as caches
from data import tfds_sets
from data.cache import Split
from data.examples import Arrays, Dataset, Info

DIGITS_SPLIT_SEED = 0  # which digits are for testing: never the run's seed, so that runs can be compared
DIGITS_TEST_FRACTION = 0.2
EXAMPLES_PER_CHUNK = 512


def describe(image_shape: tuple[int, int, int], num_classes: int, num_train: int, num_test: int) -> Info:
    """Returns what is known of a set of images [H, W, C] with one label each."""
    shape = jax.ShapeDtypeStruct
    of_channels = shape(image_shape[-1:], np.float32)
    return Info(
        example={"image": shape(image_shape, np.uint8), "label": shape((), np.int32)},
        sizes={"num_classes": num_classes},
        num_train=num_train,
        num_test=num_test,
        constants={"mean": of_channels, "std": of_channels},
    )


# Stated, because scikit-learn takes a second to import; a test compares them with the set.
DIGITS = describe((8, 8, 1), 10, num_train=1437, num_test=360)


def check(name: str, *, directory: str = "") -> Info:
    """Returns a set's shapes, having made sure that ``load`` will find it; decodes nothing.

    Args:
      name: "digits", or a TFDS set as "set", "set/config" or "set:version".
      directory: folder of prepared TFDS sets; "" means TFDS_DATA_DIR, and where that is not set TFDS's own default.

    Raises:
      ValueError: one line; no such set, not an image classification set, or not prepared in that folder.
    """
    if name == "digits":
        if directory:  # of no use to digits, but a folder that was named must be one
            tfds_sets.data_directory(directory)
        return DIGITS
    return _info(tfds_sets.open_set(name, directory=directory))


def load(name: str, *, directory: str = "", cache: str = "") -> Dataset:
    """Returns a decoded set. TFDS sets are decoded once, then mapped from a cache on disk.

    Its constants are "mean" and "std" [C] float32, of each channel over the pixels of the training images, in units of
    a pixel value (0 to 255); a channel that never changes has 1 for "std".

    Args:
      name: as for ``check``.
      directory: as for ``check``.
      cache: folder of decoded sets; "" means syncsum/data in XDG_CACHE_HOME or ~/.cache.

    Raises:
      ValueError: as ``check``; or the set's files are damaged.

    >>> load("digits").train.columns["image"].shape
    (1437, 8, 8, 1)
    """
    if name == "digits":
        info, splits = check(name, directory=directory), _digits()
        histogram = caches.count_pixels(splits["train"].images)
    else:
        prepared = tfds_sets.open_set(name, directory=directory)
        info = _info(prepared)
        label = re.sub(r"[^\w.-]+", "-", prepared.builder.info.full_name)
        folder = (Path(cache).expanduser() if cache else caches.root()) / f"{label}-{tfds_sets.fingerprint(prepared)}"
        shape = info.example["image"].shape
        sizes = {"train": (info.num_train, *shape), "test": (info.num_test, *shape)}
        decoded = caches.load(folder, sizes, decode=functools.partial(decode, prepared))
        splits, histogram = decoded.splits, decoded.histograms["train"]
    mean, std = statistics(histogram)
    train, test = (Arrays({"image": splits[key].images, "label": splits[key].labels}) for key in ("train", "test"))
    return Dataset(name, train, test, {"mean": mean, "std": std})


def statistics(histogram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel from how often each value occurs: [C, 256] -> [C], [C].

    >>> statistics(np.eye(256)[:1] + np.eye(256)[2:3])
    (array([1.], dtype=float32), array([1.], dtype=float32))
    """
    values, counts = np.arange(256.0), histogram.sum(axis=1)
    mean = histogram @ values / counts
    std = np.sqrt((histogram * (values - mean[:, None]) ** 2).sum(axis=1) / counts)
    return mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32)


def decode(prepared: tfds_sets.Prepared, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields a split's examples in order, in chunks: [n, H, W, C] uint8 and [n] int32. "split" is "train" or "test".

    One thread: most of the time goes into work that holds the interpreter's lock (two and four were no faster).

    Raises:
      ValueError: if an example is not as the set's description says, or cannot be read.
    """
    channels = prepared.image_shape[-1]
    image_feature = prepared.builder.info.features["image"]

    def example(feature: Any) -> tuple[np.ndarray, int]:
        # Pillow whether or not OpenCV is installed: their JPEG decoders differ in bits.
        image = image_feature.decode_example_np_with_pil(feature["image"].bytes_list.value[0], channels)
        if image.shape != prepared.image_shape:
            raise ValueError(f"an image of shape {image.shape} instead of {prepared.image_shape}")
        label = feature["label"].int64_list.value[0]
        if not 0 <= label < prepared.num_classes:
            raise ValueError(f"label {label} is not in [0, {prepared.num_classes})")
        return image, label

    try:
        show = {"doing": f"decoding {prepared.name} {split}", "unit": "images"}
        chunks = tfds_sets.read(
            prepared.builder, prepared.splits[split], parse=example, size=EXAMPLES_PER_CHUNK, **show
        )
        for chunk in chunks:
            images, labels = zip(*chunk, strict=True)
            yield np.stack(images), np.array(labels, np.int32)
    except Exception as error:  # what a damaged file gives depends on where it is damaged
        told = f"data.name={prepared.name!r}: split {split!r} cannot be decoded"
        raise ValueError(f"{told}: {tfds_sets.reason(error)}") from error


def _info(prepared: tfds_sets.Prepared) -> Info:
    counts = prepared.num_examples("train"), prepared.num_examples("test")
    return describe(prepared.image_shape, prepared.num_classes, *counts)


def _digits() -> dict[str, Split]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits: Any = load_digits()
    images = digits.images.astype(np.uint8)[..., None]  # [1797, 8, 8, 1], values 0 to 16
    labels = digits.target.astype(np.int32)
    parts = train_test_split(
        np.arange(len(labels)), test_size=DIGITS_TEST_FRACTION, stratify=labels, random_state=DIGITS_SPLIT_SEED
    )
    return {name: Split(images[part], labels[part]) for name, part in zip(("train", "test"), parts, strict=True)}
