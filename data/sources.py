"""Data sets by name: scikit-learn's digits, or any image classification set that TFDS has prepared."""

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data import cache as caches
from data import tfds_sets
from data.cache import Split

DIGITS_SPLIT_SEED = 0  # which digits are for testing: never the run's seed, so that runs can be compared
DIGITS_TEST_FRACTION = 0.2


class Info(NamedTuple):
    """What is known of a set without decoding it."""

    image_shape: tuple[int, int, int]  # H, W, C
    num_classes: int
    num_train: int
    num_test: int


class Dataset(NamedTuple):
    """A decoded set."""

    name: str
    train: Split
    test: Split
    num_classes: int
    mean: np.ndarray  # [C] float32, over the pixels of the training images, 0 to 255
    std: np.ndarray  # [C] float32, likewise; 1 for a channel that never changes


# Stated, because scikit-learn takes a second to import; a test compares them with the set.
DIGITS = Info(image_shape=(8, 8, 1), num_classes=10, num_train=1437, num_test=360)


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

    Args:
      name: as for ``check``.
      directory: as for ``check``.
      cache: folder of decoded sets; "" means syncsum/data in XDG_CACHE_HOME or ~/.cache.

    Raises:
      ValueError: as ``check``; or the set's files are damaged.

    >>> load("digits").train.images.shape
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
        sizes = {"train": (info.num_train, *info.image_shape), "test": (info.num_test, *info.image_shape)}
        decoded = caches.load(folder, sizes, decode=functools.partial(tfds_sets.decode, prepared))
        splits, histogram = decoded.splits, decoded.histograms["train"]
    mean, std = statistics(histogram)
    return Dataset(name, splits["train"], splits["test"], info.num_classes, mean, std)


def statistics(histogram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel from how often each value occurs: [C, 256] -> [C], [C].

    >>> statistics(np.eye(256)[:1] + np.eye(256)[2:3])
    (array([1.], dtype=float32), array([1.], dtype=float32))
    """
    values, counts = np.arange(256.0), histogram.sum(axis=1)
    mean = histogram @ values / counts
    std = np.sqrt((histogram * (values - mean[:, None]) ** 2).sum(axis=1) / counts)
    return mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32)


def _info(prepared: tfds_sets.Prepared) -> Info:
    return Info(
        prepared.image_shape, prepared.num_classes, prepared.num_examples("train"), prepared.num_examples("test")
    )


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
