"""Writes small data sets in TFDS's format without TensorFlow, so that reading them is tested without a download."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data import cache
from tests.prepared_sets import FEATURES, Files, encoded, file_of, record, write_images, write_records

Arrays = tuple[np.ndarray, np.ndarray]  # images [N, H, W, C] and labels [N]
REAL = os.environ.get("TFDS_DATA_DIR", "")


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """No test reads or writes the user's folders."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)


@pytest.fixture
def warnings_said(monkeypatch):
    said = []
    monkeypatch.setattr(cache.logging, "warning", lambda text, *values: said.append(text % values))
    return said


def real(name: str):
    """Skips a test unless the real set is prepared."""
    is_prepared = bool(REAL) and os.path.isdir(os.path.join(REAL, name))
    return pytest.mark.skipif(not is_prepared, reason=f"needs {name} prepared under TFDS_DATA_DIR")


# ---- images and labels -------------------------------------------------------------------------------------------


def random_examples(num_examples: int, *, shape=(28, 28, 1), num_classes=10, seed=0) -> Arrays:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (num_examples, *shape), dtype=np.uint8)
    return images, rng.integers(0, num_classes, num_examples).astype(np.int32)


def picture(number: int, *, width: int, height: int) -> Image.Image:
    """A smooth picture that no other number has."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def random_images(num_examples: int, *, num_classes: int = 10, seed: int = 0) -> Files:
    """JPEG files of sizes from 20 to 70 pixels, with labels."""
    rng = np.random.default_rng(seed)
    examples = []
    for number in range(num_examples):
        width, height = (int(side) for side in rng.integers(20, 71, 2))
        image = picture(1000 * seed + number, width=width, height=height)
        examples.append((file_of(image, quality=90), int(rng.integers(num_classes))))
    return examples


# ---- sets as TFDS prepares them ----------------------------------------------------------------------------------


def write_set(root: Path, name: str, splits: dict[str, Arrays], *, version: str = "3.0.1", **options) -> Path:
    """Writes a set of images of one size; returns its folder."""
    shape = next(iter(splits.values()))[0].shape[1:]
    files = {split: encoded(*arrays) for split, arrays in splits.items()}
    return write_images(root, name, files, image_shape=shape, version=version, **options)


def write_texts(
    root: Path, name: str, splits: dict[str, list[str | bytes]], *, features: tuple[str, ...] = ("text",), **options
) -> Path:
    """Writes a set of texts, each under the names of all features; returns its folder."""

    def packed(text: str | bytes) -> bytes:
        return record(**dict.fromkeys(features, text if isinstance(text, bytes) else text.encode()))

    kind = {"pythonClassName": f"{FEATURES}.text_feature.Text", "text": {}}
    made = {split: [packed(text) for text in texts] for split, texts in splits.items()}
    kinds = dict.fromkeys(features, kind)
    return write_records(root, name, made, features=kinds, version="1.0.0", num_shards=1, **options)
