"""Writes small sets of images of many sizes as TFDS would have prepared them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from data.decoding import records
from tests.data_folders import features, write_folder, write_records

Example = tuple[bytes, int]


def picture(number: int, *, width: int, height: int) -> Image.Image:
    """A smooth picture that no other number has."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def file_of(image: Image.Image, format: str = "JPEG", **options) -> bytes:
    content = io.BytesIO()
    image.save(content, format=format, **options)
    return content.getvalue()


def random_images(num_examples: int, *, num_classes: int = 10, seed: int = 0) -> list[Example]:
    """JPEG files of sizes from 20 to 70 pixels, with labels."""
    rng = np.random.default_rng(seed)
    examples = []
    for number in range(num_examples):
        width, height = (int(side) for side in rng.integers(20, 71, 2))
        image = picture(1000 * seed + number, width=width, height=height)
        examples.append((file_of(image, quality=90), int(rng.integers(num_classes))))
    return examples


def write_shard(path: Path, examples: list[Example]) -> None:
    write_records(path, [records.pack(*example) for example in examples])


def write_images(
    root: Path, name: str, splits: dict[str, list[Example]], *, num_classes: int = 10, num_shards: int = 2
) -> Path:
    """Writes the set under ``root``; returns its folder."""
    contents = {split: [records.pack(*example) for example in examples] for split, examples in splits.items()}
    return write_folder(
        root / name / "5.1.0", contents, content=features((-1, -1, 3), num_classes), num_shards=num_shards
    )
