"""Sets that TFDS has prepared on disk, read without TensorFlow: of images with one label each, or of texts."""

import difflib
import functools
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from data.decoding import records

T = TypeVar("T")
Builder = Any  # tfds.core.DatasetBuilder; TFDS's own types say less than they should
NAME = re.compile(r"\w+(/[\w.-]+)?(:[\d.*]+)?")  # set[/config][:version]; a namespace would reach for the network


class Kind(NamedTuple):
    """What a set must be for its user, and what its user calls it."""

    key: str  # of the config
    noun: str
    unfit: Callable[[Any], str]  # features -> what is wrong with them, "" if nothing is
    names: tuple[str, ...]  # some, to be proposed; the first is not TFDS's


class Prepared(NamedTuple):
    """A set that was opened and found fit; nothing of it is decoded yet."""

    name: str
    builder: Builder
    image_shape: tuple[int, int, int]  # H, W, C; None where it differs from image to image
    num_classes: int
    splits: dict[str, str]  # "train", "test" -> the split's name in TFDS

    def num_examples(self, split: str) -> int:
        return self.builder.info.splits[self.splits[split]].num_examples


def data_directory(directory: str) -> str:
    """Returns the folder of prepared sets: as named by argument, else by TFDS_DATA_DIR, else TFDS's own default.

    Raises:
      ValueError: if it was named and is not a folder that can be read.
    """
    path = directory or os.environ.get("TFDS_DATA_DIR", "")
    if not path:
        return os.path.join(os.path.expanduser("~"), "tensorflow_datasets")
    path = os.path.expanduser(path)
    try:
        os.scandir(path).close()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        source = f"data.dir={directory!r}" if directory else f"data.dir='' stands for TFDS_DATA_DIR={path!r}"
        raise ValueError(f"{source}: must be a folder that can be read ({reason(error)})") from None
    return path


def _unfit(features: Any, *, sizes: Literal["one", "any"]) -> str:
    """Returns what keeps these features from being an image, of one size or any, and a label; "" if nothing does."""
    names = list(features.keys()) if hasattr(features, "keys") else [type(features).__name__]
    if "image" not in names or "label" not in names:
        return f"its examples have {', '.join(names)}; needed are image and label"
    image, label = features["image"], features["label"]
    kinds = type(image).__name__, type(label).__name__
    if kinds != ("Image", "ClassLabel"):
        return f"image and label are {' and '.join(kinds)}; needed are Image and ClassLabel"
    if sizes == "one" and (len(image.shape) != 3 or None in image.shape):
        return f"its images differ in size {image.shape}; needed is one size"
    if image.np_dtype != np.uint8:
        return f"its images are {np.dtype(image.np_dtype).name}; needed are uint8"
    return "" if label.num_classes else "its number of classes is not known"


def _images(sizes: Literal["one", "any"]) -> Kind:
    proposed = ("digits", "mnist", "fashion_mnist", "cifar10")
    return Kind("data.name", "an image classification set", functools.partial(_unfit, sizes=sizes), proposed)


IMAGES, IMAGES_OF_ANY_SIZE = _images("one"), _images("any")


def find(name: str, *, directory: str, kind: Kind = IMAGES, **builder_options) -> Builder:
    """Returns TFDS's builder of a set, whether or not that set is prepared.

    Raises:
      ValueError: if there is no such set, or its examples are not of the kind.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    key = f"{kind.key}={name!r}"
    try:
        if not NAME.fullmatch(name):
            raise DatasetNotFoundError
        builder = tfds.builder(name, data_dir=directory, **builder_options)
    except DatasetNotFoundError:
        known = [*kind.names[:1], *tfds.list_builders(with_community_datasets=False)]
        close = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"try {', '.join(kind.names)}, ..."
        raise ValueError(f"{key}: not a known data set; {hint}") from None
    except Exception as error:  # damaged files, a version or config that does not exist: TFDS has no common type
        told = reason(error)
        told = told.partition('}": ')[2] or told  # without TFDS's preamble, the call as we made it
        raise ValueError(f"{key}: cannot be opened in {directory}: {told}") from None
    problem = kind.unfit(builder.info.features)
    if problem:
        raise ValueError(f"{key}: not {kind.noun}: {problem}")
    return builder


def open_set(name: str, *, directory: str = "", kind: Kind = IMAGES) -> Prepared:
    """Opens a prepared set of images and looks at all that can be seen without decoding one.

    The test examples are the split "test", or "validation" where there is none, or where it has no labels (ImageNet).

    Args:
      name: of the set.
      directory: folder of prepared sets; "" as for ``data_directory``.
      kind: ``IMAGES``, or ``IMAGES_OF_ANY_SIZE``.

    Raises:
      ValueError: one line; the folder, the name, or what is prepared there is not fit.
    """
    builder = open_builder(name, directory=directory, kind=kind)
    splits = {"train": "train", "test": "test" if _has_labels(builder.info, "test") else "validation"}
    require_splits(builder, name, splits.values(), directory=directory, kind=kind)
    image, label = (builder.info.features[feature] for feature in ("image", "label"))
    return Prepared(name, builder, tuple(image.shape), label.num_classes, splits)


def open_builder(name: str, *, directory: str, kind: Kind) -> Builder:
    """Returns the builder of a set that is prepared in a format that is read without TensorFlow.

    Raises:
      ValueError: one line, as ``open_set``.
    """
    path = data_directory(directory)
    builder = find(name, directory=path, kind=kind)
    key, prepare = f"{kind.key}={name!r}", _command(name, directory)
    if not is_prepared(builder):
        raise ValueError(f"{key}: not prepared in {path}; run {prepare}")
    info = builder.info
    if info.file_format is None or info.file_format.value != "array_record":
        found = info.file_format.value if info.file_format else "an unknown format"
        raise ValueError(
            f"{key}: prepared in {path} as {found}; needed is array_record: use another folder and {prepare}"
        )
    return builder


def require_splits(builder: Builder, name: str, splits: Iterable[str], *, directory: str, kind: Kind) -> None:
    """Raises a ValueError of one line if one of the splits has no examples, or one of its files is missing."""
    key, info = f"{kind.key}={name!r}", builder.info
    for split in splits:
        if split not in info.splits or not info.splits[split].num_examples:
            raise ValueError(f"{key}: has no split {split!r} with examples; has {', '.join(info.splits) or 'none'}")
        missing = [os.path.basename(file) for file in info.splits[split].filepaths if not os.path.isfile(file)]
        if missing:
            path, prepare = data_directory(directory), _command(name, directory)
            raise ValueError(f"{key}: not prepared in full in {path}: {missing[0]} is missing; run {prepare}")


def _command(name: str, directory: str) -> str:
    return f"`python -m data.prepare {name}{f' --dir={shlex.quote(directory)}' if directory else ''}`"


def files(prepared: Prepared, split: str) -> list[tuple[str, int]]:
    """Returns path and number of records of each file of a split, in order. "split" is "train" or "test"."""
    return _files(prepared.builder.info, prepared.splits[split])


def _files(info: Any, split: str) -> list[tuple[str, int]]:
    return [(str(part.filename), part.take) for part in info.splits[split].file_instructions]


def _has_labels(info: Any, split: str) -> bool:
    """Tells, where there is a choice, by the first label of the split: TFDS writes -1 where there are none."""
    if split not in info.splits or "validation" not in info.splits:
        return split in info.splits
    try:
        return records.unpack(records.Shards(_files(info, split)).read(0))[1] >= 0
    except (records.Damaged, records.Unreadable):  # a file that is missing is named later
        return True


def is_prepared(builder: Builder) -> bool:
    """Tells whether the set's files are there (TFDS's own question of that name also logs)."""
    return (Path(builder.data_dir) / "dataset_info.json").is_file()


def fingerprint(prepared: Prepared) -> str:
    """Returns 12 hex digits that change with the files: of dataset_info.json, and of each shard's size and time.

    The time, because new labels for the same images seldom change a size.
    """
    return fingerprint_files(prepared.builder, prepared.splits.values())


def fingerprint_files(builder: Builder, splits: Iterable[str]) -> str:
    """Returns ``fingerprint`` of any set's splits."""
    content = hashlib.sha256((Path(builder.data_dir) / "dataset_info.json").read_bytes())
    for split in sorted(splits):
        for file in builder.info.splits[split].filepaths:
            status = os.stat(file)
            content.update(f"\n{os.path.basename(file)} {status.st_size} {status.st_mtime_ns}".encode())
    return content.hexdigest()[:12]


def read(
    builder: Builder, split: str, *, parse: Callable[[Any], T], size: int, doing: str, unit: str
) -> Iterator[list[T]]:
    """Yields the examples of a split in the order of its files, in lists, under a progress bar.

    Args:
      builder: of a prepared set.
      split: its name in TFDS.
      parse: makes an example of the features of a record, as TFDS wrote them.
      size: of a list, but for the last.
      doing: what the bar says is done.
      unit: of what it counts.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2
    from tqdm import tqdm

    count = builder.info.splits[split].num_examples
    unpack = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    source = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
    with tqdm(total=count, desc=doing, unit=f" {unit}", leave=False, disable=None) as bar:
        for start in range(0, count, size):
            records = source.__getitems__(range(start, min(start + size, count)))
            yield [parse(unpack(record).features.feature) for record in records]
            bar.update(len(records))


def reason(error: BaseException) -> str:
    """Returns an error's text on one line of bounded length; its type if it has no text."""
    known = error.strerror if isinstance(error, OSError) else None
    return known or records.reason(error, limit=300)
