"""Writes small image sets in TFDS's format without TensorFlow, so that reading them is tested without a download."""

import io
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

Examples = tuple[np.ndarray, np.ndarray]


def random_examples(num_examples: int, *, shape=(28, 28, 1), num_classes=10, seed=0) -> Examples:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (num_examples, *shape), dtype=np.uint8)
    return images, rng.integers(0, num_classes, num_examples).astype(np.int32)


def write_set(
    root: Path,
    name: str,
    splits: dict[str, Examples],
    *,
    version: str = "3.0.1",
    num_classes: int = 10,
    image_shape: tuple[int, ...] | None = None,
    num_shards: int = 2,
    file_format: str = "array_record",
) -> Path:
    """Writes the set as TFDS would have prepared it under ``root``; returns its folder."""
    shape = image_shape or next(iter(splits.values()))[0].shape[1:]
    contents = {split: [record(image, label) for image, label in zip(*s, strict=True)] for split, s in splits.items()}
    return write_folder(
        root / name / version, contents, content=features(shape, num_classes), num_shards=num_shards, format=file_format
    )


def write_folder(
    folder: Path, splits: dict[str, list[bytes]], *, content: dict, num_shards: int, format: str = "array_record"
) -> Path:
    """Writes a set's folder, ``NAME/VERSION``, from the records of each split and the content of features.json."""
    folder.mkdir(parents=True)
    infos = []
    for split, found in splits.items():
        parts = [[found[i] for i in part] for part in np.array_split(np.arange(len(found)), num_shards)]
        for number, part in enumerate(parts):
            write_records(shard(folder, split, number, num_shards=num_shards), part)
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        lengths = [str(len(part)) for part in parts]
        infos.append({"name": split, "shardLengths": lengths, "numBytes": "1", "filepathTemplate": template})
    info = {"name": folder.parent.name, "version": folder.name, "fileFormat": format, "splits": infos}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(content))
    return folder


def shard(folder: Path, split: str, number: int, *, num_shards: int = 2) -> Path:
    """The path of one file of a split."""
    return folder / f"{folder.parent.name}-{split}.array_record-{number:05d}-of-{num_shards:05d}"


def write_records(path: Path, contents: Iterable[bytes]) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for content in contents:
        writer.write(content)
    writer.close()


def write_shard(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    write_records(path, map(record, images, labels))


def record(image: np.ndarray, label: int) -> bytes:
    """A ``tf.train.Example`` of a PNG file and a label."""
    from PIL import Image
    from tensorflow_datasets.proto import tf_example_pb2

    png = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(png, format="PNG")
    example = tf_example_pb2.Example()  # pyright: ignore[reportAttributeAccessIssue]
    example.features.feature["image"].bytes_list.value.append(png.getvalue())
    example.features.feature["label"].int64_list.value.append(int(label))
    return example.SerializeToString()


def features(shape: tuple[int, ...], num_classes: int) -> dict:
    """The content of features.json: an image and a label."""
    package = "tensorflow_datasets.core.features"
    image = {"dtype": "uint8", "shape": {"dimensions": [str(n) for n in shape]}}
    return {
        "pythonClassName": f"{package}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                "image": {"pythonClassName": f"{package}.image_feature.Image", "image": image},
                "label": {
                    "pythonClassName": f"{package}.class_label_feature.ClassLabel",
                    "classLabel": {"numClasses": str(num_classes)},
                },
            }
        },
    }
