"""Data sets in TFDS's format, written without TensorFlow, for tests."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Files = list[tuple[bytes, int]]  # the content of an image file, and its label
FEATURES = "tensorflow_datasets.core.features"


def encoded(images: np.ndarray, labels: np.ndarray) -> Files:
    """Returns PNG files of images with 1 or 3 channels."""
    pictures = (Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image) for image in images)
    return [(file_of(picture, "PNG"), int(label)) for picture, label in zip(pictures, labels, strict=True)]


def file_of(image: Image.Image, format: str = "JPEG", **options) -> bytes:
    """Returns the content of an image's file; ``options`` are those of Pillow's ``Image.save``."""
    content = io.BytesIO()
    image.save(content, format=format, **options)
    return content.getvalue()


def pack(image: bytes, label: int) -> bytes:
    """Returns the record of an image: the inverse of ``records.unpack``."""
    return record(image=image, label=label)


def record(**features: bytes | int) -> bytes:
    """Returns a record as TFDS writes it."""
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in features.items():
        kind = "int64_list" if isinstance(value, int) else "bytes_list"
        getattr(example.features.feature[name], kind).value.append(value)
    return example.SerializeToString()


def write_images(
    root: Path,
    name: str,
    splits: dict[str, Files],
    *,
    num_classes: int = 10,
    image_shape: tuple[int, ...] = (-1, -1, 3),
    version: str = "5.1.0",
    **options,
) -> Path:
    """Writes a set of image files; returns its folder."""
    packed = {split: [pack(*file) for file in files] for split, files in splits.items()}
    features = {
        "image": {
            "pythonClassName": f"{FEATURES}.image_feature.Image",
            "image": {"dtype": "uint8", "shape": {"dimensions": [str(n) for n in image_shape]}},
        },
        "label": {
            "pythonClassName": f"{FEATURES}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(num_classes)},
        },
    }
    return write_records(root, name, packed, features=features, version=version, **options)


def write_records(
    root: Path,
    name: str,
    splits: dict[str, list[bytes]],
    *,
    features: dict[str, Any],
    version: str,
    num_shards: int = 2,
    file_format: str = "array_record",
    ordered: bool = False,
) -> Path:
    """Writes a set as TFDS would have prepared it under ``root``; returns its folder."""
    folder = root / name / version
    folder.mkdir(parents=True)
    infos = []
    for split, examples in splits.items():
        parts = np.array_split(np.arange(len(examples)), num_shards)
        for number, part in enumerate(parts):
            write_shard(shard(folder, split, number, num_shards=num_shards), (examples[i] for i in part))
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        lengths = [str(len(part)) for part in parts]
        infos.append({"name": split, "shardLengths": lengths, "numBytes": "1", "filepathTemplate": template})
    info = {"name": name, "version": version, "fileFormat": file_format, "splits": infos, "disableShuffling": ordered}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    whole = {"pythonClassName": f"{FEATURES}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
    (folder / "features.json").write_text(json.dumps(whole))
    return folder


def shard(folder: Path, split: str, number: int, *, num_shards: int = 2) -> Path:
    """Returns the path of one file of a split."""
    return folder / f"{folder.parent.name}-{split}.array_record-{number:05d}-of-{num_shards:05d}"


def write_shard(path: Path, contents: Iterable[bytes]) -> None:
    """Writes one file of records."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for content in contents:
        writer.write(content)
    writer.close()
