"""Data sets that TFDS has prepared on disk, read without TensorFlow: images with one label each, or texts."""

import contextlib
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

from data import folders
from data.decoding import records
from reducers.arrivals import foreign_files

T = TypeVar("T")
Builder = Any  # tfds.core.DatasetBuilder; TFDS's own types say less than they should
NAME = re.compile(r"\w+(/[\w.-]+)?(:[\d.*]+)?")  # set[/config][:version]; a namespace would access the network
TEXTS_PER_READ = 4096
_MOST_BYTES_READ, _PART = 2**30, 2**20  # a fingerprint reads sets up to the first size whole, else parts of the second


class Kind(NamedTuple):
    """A kind of data set, and how error messages name it.

    Attributes:
      key: The config key that names the set.
      noun: Name of the kind.
      unfit: features -> why a set with these features is not of the kind; "" if it is.
      splits: TFDS's description of the set -> {"train": the split's name in TFDS, and "test" if the set has one}.
      suggestions: Names to suggest; the first is not a TFDS set.
    """

    key: str
    noun: str
    unfit: Callable[[Any], str]
    splits: Callable[[Any], dict[str, str]]
    suggestions: tuple[str, ...]


class Prepared(NamedTuple):
    """A prepared set of images that was opened and checked; nothing is decoded yet.

    Attributes:
      name: Its name in the config.
      builder: TFDS's builder.
      image_shape: H, W, C; H and W are None if they differ from image to image.
      num_classes: Labels are 0 to num_classes - 1.
      splits: "train", "test" -> the split's name in TFDS.
    """

    name: str
    builder: Builder
    image_shape: tuple[int, int, int]
    num_classes: int
    splits: dict[str, str]

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of training and of test examples."""
        train, test = (self.builder.info.splits[self.splits[key]].num_examples for key in ("train", "test"))
        return train, test

    @property
    def fingerprint(self) -> str:
        """Digits that change with the content of the files of both splits."""
        return content_fingerprint(self.builder, self.splits.values())


def data_directory(directory: str) -> str:
    """Returns the folder of prepared sets: the argument, or else TFDS_DATA_DIR, or else TFDS's own default.

    Raises:
      ValueError: If the named folder cannot be read.
    """
    path = directory or os.environ.get("TFDS_DATA_DIR", "")
    if not path:
        return os.path.join(folders.home(key="data.dir=''", otherwise="TFDS_DATA_DIR"), "tensorflow_datasets")
    path = os.path.expanduser(path)
    try:
        os.scandir(path).close()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        source = f"data.dir={directory!r}" if directory else f"data.dir='' stands for TFDS_DATA_DIR={path!r}"
        raise ValueError(f"{source}: must be a folder that can be read ({reason(error)})") from None
    return path


def _kinds(features: Any) -> dict[str, str]:
    """Returns the type of each of a set's features; of features without names, their own type is the name."""
    if hasattr(features, "items"):
        return {name: type(feature).__name__ for name, feature in features.items()}
    return {type(features).__name__: ""}


def _unfit_images(features: Any, *, sizes: Literal["one", "any"]) -> str:
    """Returns why features are not a label and an image, of one size or of any size; "" if they are."""
    kinds = _kinds(features)
    if not {"image", "label"} <= kinds.keys():
        return f"its examples have {', '.join(sorted(kinds))}; image and label are needed"
    image = features["image"]
    label = features["label"]
    if (kinds["image"], kinds["label"]) != ("Image", "ClassLabel"):
        return f"image and label are {kinds['image']} and {kinds['label']}; Image and ClassLabel are needed"
    if sizes == "one" and (len(image.shape) != 3 or None in image.shape):
        return f"its images differ in size {image.shape}; one size is needed"
    if image.np_dtype != np.uint8:
        return f"its images are {np.dtype(image.np_dtype).name}; uint8 is needed"
    return "" if label.num_classes else "its number of classes is not known"


def text_feature(features: Any) -> str:
    """Returns the feature that holds an example's text: "text", or else the only one of type Text, or else ""."""
    kinds = _kinds(features)
    if kinds.keys() & {"image", "audio", "video"}:  # a text beside these is a file name or a caption
        return ""
    found = [name for name, kind in kinds.items() if kind == "Text"]
    return "text" if "text" in found else found[0] if len(found) == 1 else ""


def _unfit_texts(features: Any) -> str:
    if text_feature(features):
        return ""
    needed = "one of type Text is needed, or one of that type called text"
    return f"its examples have {', '.join(sorted(_kinds(features)))}; {needed}"


def files(info: Any, split: str) -> list[tuple[str, int]]:
    """Returns path and number of records of each file of a split, in order.

    Args:
      info: TFDS's description of the set.
      split: The split's name in TFDS.
    """
    return [(str(part.filename), part.take) for part in info.splits[split].file_instructions]


def _image_splits(info: Any) -> dict[str, str]:
    """Returns "train", and "test" or, if "test" is missing or has no labels (ImageNet), "validation".

    If both exist, the first label of "test" decides: TFDS writes -1 for labels that are not published.
    """
    test = "test" if "test" in info.splits else "validation"
    if {"test", "validation"} <= info.splits.keys():
        with contextlib.suppress(records.Damaged, records.Unreadable):  # missing files are reported later
            label = records.unpack(records.Shards(files(info, "test")).read(0))[1]
            test = "test" if label >= 0 else "validation"
    return {"train": "train", "test": test}


def _text_splits(info: Any) -> dict[str, str]:
    """Returns "train", and "test" as the split "test", or else "validation", if the set has either."""
    for_test = [split for split in ("test", "validation") if split in info.splits]
    return {"train": "train"} | ({"test": for_test[0]} if for_test else {})


IMAGES = Kind(
    "data.name",
    "an image classification set",
    functools.partial(_unfit_images, sizes="one"),
    _image_splits,
    ("digits", "mnist", "fashion_mnist", "cifar10"),
)
IMAGES_OF_ANY_SIZE = IMAGES._replace(unfit=functools.partial(_unfit_images, sizes="any"))
TEXTS = Kind("data.source", "a set of texts", _unfit_texts, _text_splits, ("pydoc", "tiny_shakespeare", "imdb_reviews"))


def find(name: str, *, directory: str, kind: Kind, **builder_options) -> Builder:
    """Returns TFDS's builder of a set, whether or not the set is prepared.

    Raises:
      ValueError: If the set does not exist, or its examples are not of the kind.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    key = f"{kind.key}={name!r}"
    try:
        if not NAME.fullmatch(name):
            raise DatasetNotFoundError
        builder = tfds.builder(name, data_dir=directory, **builder_options)
    except DatasetNotFoundError:
        known = [*kind.suggestions[:1], *tfds.list_builders(with_community_datasets=False)]
        close = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"try {', '.join(kind.suggestions)}, ..."
        raise ValueError(f"{key}: not a known data set; {hint}") from None
    except Exception as error:  # damaged files, a version or config that does not exist: TFDS has no common type
        text = reason(error)
        text = text.partition('}": ')[2] or text  # without TFDS's preamble, which repeats our call
        raise ValueError(f"{key}: cannot be opened in {directory}: {text}") from None
    problem = kind.unfit(builder.info.features)
    if problem:
        raise ValueError(f"{key}: not {kind.noun}: {problem}")
    return builder


def open_set(name: str, *, directory: str, kind: Kind = IMAGES) -> Prepared:
    """Opens a prepared set of images and checks all that can be checked without decoding one.

    Args:
      name: "set", "set/config" or "set:version".
      directory: Folder of prepared sets; "" as for ``data_directory``.
      kind: ``IMAGES`` or ``IMAGES_OF_ANY_SIZE``.

    Raises:
      ValueError: One line; the folder, the name, or the prepared files are not as needed.
    """
    builder, splits = open_builder(name, directory=directory, kind=kind)
    image, label = (builder.info.features[feature] for feature in ("image", "label"))
    return Prepared(name, builder, tuple(image.shape), label.num_classes, splits)


def open_builder(name: str, *, directory: str, kind: Kind) -> tuple[Builder, dict[str, str]]:
    """Opens a set that is prepared in full, in a format that can be read without TensorFlow; reads no example.

    Args:
      name: As for ``open_set``.
      directory: As for ``open_set``.
      kind: The kind of set that is needed.

    Returns:
      TFDS's builder, and "train" and "test" -> the split's name in TFDS, as ``kind.splits`` chooses them.

    Raises:
      ValueError: As for ``open_set``.
    """
    path = data_directory(directory)
    builder = find(name, directory=path, kind=kind)
    key = f"{kind.key}={name!r}"
    prepare = _command(name, directory)
    if not is_prepared(builder):
        raise ValueError(f"{key}: not prepared in {path}; run {prepare}")
    info = builder.info
    if info.file_format is None or info.file_format.value != "array_record":
        found = info.file_format.value if info.file_format else "an unknown format"
        needed = f"array_record is needed: use another folder and {prepare}"
        raise ValueError(f"{key}: prepared in {path} as {found}; {needed}")
    splits = kind.splits(info)
    for split in splits.values():
        if split not in info.splits or not info.splits[split].num_examples:
            raise ValueError(f"{key}: has no split {split!r} with examples; has {', '.join(info.splits) or 'none'}")
        missing = [os.path.basename(file) for file in info.splits[split].filepaths if not os.path.isfile(file)]
        if missing:
            raise ValueError(f"{key}: not prepared in full in {path}: {missing[0]} is missing; run {prepare}")
    return builder, splits


def _command(name: str, directory: str) -> str:
    return f"`python -m data.prepare {name}{f' --dir={shlex.quote(directory)}' if directory else ''}`"


def is_prepared(builder: Builder) -> bool:
    """Returns whether the set's files exist. TFDS's method of that name also logs."""
    return (Path(builder.data_dir) / "dataset_info.json").is_file()


def fingerprint(builder: Builder, splits: Iterable[str]) -> str:
    """Returns 12 hex digits that change with dataset_info.json, or with the size or time of a file of these splits.

    Sizes alone are not enough: new labels for the same images seldom change them.
    """
    content = hashlib.sha256(foreign_files.content(Path(builder.data_dir) / "dataset_info.json"))
    for split in sorted(splits):
        for file in builder.info.splits[split].filepaths:
            with foreign_files.opened(file) as stream:
                status = os.fstat(stream.fileno())
            content.update(f"\n{os.path.basename(file)} {status.st_size} {status.st_mtime_ns}".encode())
    return content.hexdigest()[:12]


def content_fingerprint(builder: Builder, splits: Iterable[str]) -> str:
    """Returns 12 hex digits that change with the content of these splits, and are the same on every machine.

    In sets above 1 GiB, only one MiB at the beginning, the middle and the end of each file is read.
    """
    files = [file for split in sorted(splits) for file in builder.info.splits[split].filepaths]
    statuses = [os.stat(file) for file in files]
    is_sampled = sum(status.st_size for status in statuses) > _MOST_BYTES_READ
    content = hashlib.sha256()
    for file, status in zip(files, statuses, strict=True):
        key = status.st_size, status.st_mtime_ns, status.st_ino
        content.update(f"\n{os.path.basename(file)} {_file_digest(str(file), key, is_sampled)}".encode())
    return content.hexdigest()[:12]


@functools.lru_cache
def _file_digest(file: str, status: tuple[int, int, int], is_sampled: bool) -> str:
    """Returns the digest of a file, or of three parts of it; cached until its status (size, time, inode) changes."""
    size, *_ = status
    with foreign_files.opened(file) as stream:
        if not is_sampled:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        content = hashlib.sha256(str(size).encode())
        for start in (0, (size - _PART) // 2, size - _PART):
            stream.seek(max(start, 0))
            content.update(stream.read(_PART))
        return content.hexdigest()


def read(
    builder: Builder, split: str, *, key: str, parse: Callable[[Any], T], size: int, unit: str
) -> Iterator[list[T]]:
    """Yields the examples of a split in the order of its files, in lists; shows a progress bar.

    Args:
      builder: The builder of a prepared set.
      split: The split's name in TFDS.
      key: The config key and its value, for errors.
      parse: Makes an example from the features of a record, as TFDS wrote them.
      size: Examples in a list; the last list may have fewer.
      unit: Noun that the progress bar shows after a count.

    Raises:
      ValueError: One line; an example cannot be read, or ``parse`` refuses it.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.proto import tf_example_pb2
    from tqdm import tqdm

    info = builder.info
    count = info.splits[split].num_examples
    unpack = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    progress = {"desc": f"reading {info.full_name} {split}", "unit": f" {unit}", "leave": False, "disable": None}
    try:
        source = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
        with tqdm(total=count, **progress) as bar:
            for start in range(0, count, size):
                records = source.__getitems__(range(start, min(start + size, count)))
                yield [parse(unpack(record).features.feature) for record in records]
                bar.update(len(records))
    except Exception as error:  # the type depends on where a file is damaged
        raise ValueError(f"{key}: split {split!r} cannot be read: {reason(error)}") from error


def read_texts(builder: Builder, split: str, *, source: str) -> Iterator[str]:
    """Yields a split's texts in the order of its files.

    Args:
      builder: The builder of a prepared set of texts.
      split: The split's name in TFDS.
      source: The set's name in the config, for errors.

    Raises:
      ValueError: One line; a text cannot be read, or is not UTF-8.
    """
    text = text_feature(builder.info.features)

    def example(feature: Any) -> str:
        return feature[text].bytes_list.value[0].decode()

    key = f"data.source={source!r}"
    for chunk in read(builder, split, key=key, parse=example, size=TEXTS_PER_READ, unit="texts"):
        yield from chunk


def reason(error: BaseException) -> str:
    """Returns an error's text on one line of bounded length, or its type if it has no text."""
    known = error.strerror if isinstance(error, OSError) else None
    return known or records.reason(error, limit=300)
