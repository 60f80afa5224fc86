"""Splits as .npy files: written once, whole or not at all; read back through memory maps.

Images are decoded chunk by chunk into their files (``load``); columns that were made in memory are written as they are
(``store`` and ``stored``).
"""

import contextlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

Chunks = Iterator[tuple[np.ndarray, np.ndarray]]
"""Consecutive parts of a split: images [n, H, W, C] uint8 and labels [n] int32."""

MANIFEST = "manifest.json"  # written last: where it is, all is there
MAX_CHECKED_BYTES = 2**30  # contents are checked by CRC up to here (a second); sizes always
STALE_SECONDS = 24 * 3600  # temporary files older than this belong to no living process


class Split(NamedTuple):
    """Examples: decoded, in the order of their source."""

    images: np.ndarray  # [N, H, W, C] uint8
    labels: np.ndarray  # [N] int32


Columns = dict[str, np.ndarray]


class Stored(NamedTuple):
    """Splits of named columns [N, ...], and what else was to be kept: of JSON's types."""

    splits: dict[str, Columns]
    notes: dict[str, Any]


class Decoded(NamedTuple):
    """Splits by name, and how often each pixel value occurs in each: [C, 256] int64."""

    splits: dict[str, Split]
    histograms: dict[str, np.ndarray]


def root() -> Path:
    """Returns the folder of all caches: under XDG_CACHE_HOME where that is set (and absolute, as it must be)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "syncsum" / "data"


def count_pixels(images: np.ndarray) -> np.ndarray:
    """Returns how often each value occurs in each channel of uint8 images: [C, 256] int64."""
    return np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[-1])])


def load(folder: Path, sizes: Mapping[str, tuple[int, ...]], *, decode: Callable[[str], Chunks]) -> Decoded:
    """Returns the splits in a folder; decodes them, and writes them there, if they are missing or damaged.

    Where they cannot be written they are decoded into memory, with a warning.

    Args:
      folder: their own folder; it need not exist.
      sizes: split -> the shape of its images, [N, H, W, C].
      decode: split -> its examples.
    """
    if (folder / MANIFEST).exists():
        try:
            return _read(folder, sizes)
        except Exception as damage:  # there is no end of ways to be damaged
            logging.warning("%s is damaged (%s); decoding again", folder, damage)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        _write(folder, sizes, decode)
        return _read(folder, sizes)
    except OSError as error:
        logging.warning("%s cannot be written (%s); decoding into memory, at every start", folder, error)
    splits, histograms = {}, {}
    for name, shape in sizes.items():
        parts = list(decode(name))
        splits[name] = Split(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        histograms[name] = count_pixels(splits[name].images)
        _check_count(name, len(splits[name].labels), shape)
    return Decoded(splits, histograms)


def _check_count(name: str, count: int, shape: tuple[int, ...]) -> None:
    if count != shape[0]:
        raise ValueError(f"split {name!r}: {count} examples instead of {shape[0]}")


def _read(folder: Path, sizes: Mapping[str, tuple[int, ...]]) -> Decoded:
    """Maps the files, and raises one of the usual errors if they are not what was written."""
    manifest = json.loads((folder / MANIFEST).read_text())
    splits, histograms = {}, {}
    for name, shape in sizes.items():
        arrays = []
        for kind, wanted, dtype in (("images", shape, np.uint8), ("labels", shape[:1], np.int32)):
            path = folder / f"{name}.{kind}.npy"
            arrays.append(_read_array(path, shape=wanted, dtype=np.dtype(dtype), crc=manifest[name][kind]))
        splits[name] = Split(*arrays)
        histograms[name] = np.array(manifest[name]["histogram"], np.int64)
        if histograms[name].shape != (shape[-1], 256) or histograms[name].sum() != np.prod(shape, dtype=np.int64):
            raise ValueError(f"the histogram of {name} is not of its images")
    return Decoded(splits, histograms)


def _read_array(path: Path, *, shape: Sequence[int], dtype: np.dtype, crc: int) -> np.ndarray:
    array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise ValueError(f"{path.name} holds {array.dtype} {array.shape}")
    if array.nbytes <= MAX_CHECKED_BYTES and zlib.crc32(array.data) != crc:
        raise ValueError(f"{path.name} fails its checksum")
    return array


def _write(folder: Path, sizes: Mapping[str, tuple[int, ...]], decode: Callable[[str], Chunks]) -> None:
    manifest = {}
    for name, shape in sizes.items():
        histogram, count = np.zeros((shape[-1], 256), np.int64), 0
        with (
            _array_file(folder / f"{name}.images.npy", shape=shape, dtype=np.uint8) as images_file,
            _array_file(folder / f"{name}.labels.npy", shape=shape[:1], dtype=np.int32) as labels_file,
        ):
            for images, labels in decode(name):
                images_file.append(images)
                labels_file.append(labels)
                histogram += count_pixels(images)
                count += len(labels)
            _check_count(name, count, shape)
        manifest[name] = {"images": images_file.crc, "labels": labels_file.crc, "histogram": histogram.tolist()}
    with _whole_file(folder / MANIFEST) as file:
        file.write(json.dumps(manifest).encode())


def stored(folder: Path) -> Stored | None:
    """Returns what ``store`` wrote, mapped; None if there is nothing, or (with a warning) it is damaged."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        splits: dict[str, Columns] = {}
        for file, (split, name, shape, dtype, crc) in manifest["arrays"].items():
            array = _read_array(folder / file, shape=shape, dtype=np.dtype(dtype), crc=crc)
            splits.setdefault(split, {})[name] = array
        if zlib.crc32(json.dumps(manifest["notes"]).encode()) != manifest["notes_crc"]:
            raise ValueError("the notes fail their checksum")
        return Stored(splits, manifest["notes"])
    except Exception as damage:  # there is no end of ways to be damaged
        logging.warning("%s is damaged (%s); making it again", folder, damage)
        return None


def store(folder: Path, content: Stored) -> Stored:
    """Writes into a folder of its own and returns it mapped; where that fails, as it is, with a warning."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        arrays = {}
        for split, columns in content.splits.items():
            for name, column in columns.items():
                path = folder / f"{split}.{name}.npy"
                with _array_file(path, shape=column.shape, dtype=column.dtype) as file:
                    file.append(column)
                arrays[path.name] = (split, name, column.shape, column.dtype.str, file.crc)
        notes_crc = zlib.crc32(json.dumps(content.notes).encode())
        manifest = {"arrays": arrays, "notes": content.notes, "notes_crc": notes_crc}
        with _whole_file(folder / MANIFEST) as file:
            file.write(json.dumps(manifest).encode())
        return stored(folder) or content
    except OSError as error:
        logging.warning("%s cannot be written (%s); made in memory, at every start", folder, error)
        return content


def stored_file(folder: Path, name: str) -> str | None:
    """Returns what ``store_file`` wrote; None if there is nothing, or (with a warning) it is damaged."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        content = (folder / name).read_bytes()
        if zlib.crc32(content) != json.loads((folder / MANIFEST).read_text())[name]:
            raise ValueError(f"{name} fails its checksum")
        return content.decode()
    except Exception as damage:
        logging.warning("%s is damaged (%s); making it again", folder, damage)
        return None


def store_file(folder: Path, name: str, content: str) -> None:
    """Writes a file of text into a folder of its own; where that fails, says so in a warning."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        for file, text in ((name, content), (MANIFEST, json.dumps({name: zlib.crc32(content.encode())}))):
            with _whole_file(folder / file) as handle:
                handle.write(text.encode())
    except OSError as error:
        logging.warning("%s cannot be written (%s); made at every start", folder, error)


class _ArrayFile:
    """Appends chunks to a .npy file, and keeps the checksum of what follows the header."""

    def __init__(self, file):
        self._file, self.crc = file, 0

    def append(self, chunk: np.ndarray) -> None:
        chunk = np.ascontiguousarray(chunk)
        self._file.write(chunk.data)
        self.crc = zlib.crc32(chunk.data, self.crc)


@contextlib.contextmanager
def _array_file(path: Path, *, shape: tuple[int, ...], dtype: np.dtype | type) -> Iterator[_ArrayFile]:
    with _whole_file(path) as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(file, header)
        yield _ArrayFile(file)


@contextlib.contextmanager
def _whole_file(path: Path):
    """Opens a file that takes its name only when all of it is written: a kill at any moment leaves no half file."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_stale(folder: Path) -> None:
    """Removes what killed processes left; other living ones may be writing here too."""
    for path in folder.glob(".*.tmp"):
        if path.stat().st_mtime < time.time() - STALE_SECONDS:
            path.unlink(missing_ok=True)
