"""Writes small sets of images of many sizes as TFDS would have prepared them."""

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from data.decoding import records
from tests.data_folders import features

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
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for content, label in examples:
        writer.write(records.pack(content, label))
    writer.close()


def shard(folder: Path, split: str, number: int, *, num_shards: int = 2) -> Path:
    """The path of one file of a split."""
    return folder / f"{folder.parent.name}-{split}.array_record-{number:05d}-of-{num_shards:05d}"


def write_images(
    root: Path, name: str, splits: dict[str, list[Example]], *, num_classes: int = 10, num_shards: int = 2
) -> Path:
    """Writes the set under ``root``; returns its folder."""
    folder = root / name / "5.1.0"
    folder.mkdir(parents=True)
    infos = []
    for split, examples in splits.items():
        parts = np.array_split(np.arange(len(examples)), num_shards)
        for number, part in enumerate(parts):
            path = shard(folder, split, number, num_shards=num_shards)
            write_shard(path, [examples[i] for i in part])
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        lengths = [str(len(part)) for part in parts]
        infos.append({"name": split, "shardLengths": lengths, "numBytes": "1", "filepathTemplate": template})
    info = {"name": name, "version": "5.1.0", "fileFormat": "array_record", "splits": infos}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(features((-1, -1, 3), num_classes)))
    return folder
