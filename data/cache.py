"""Cached data sets: named columns in .npy files, written completely or not at all, and read as memory maps."""

import contextlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from data.examples import Columns
from launch.whole_files import replacing
from reducers.arrivals import foreign_files

ColumnShapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""column -> shape [N, ...] and type."""

MANIFEST = "manifest.json"  # written last: if it exists, all files are complete
MAX_CHECKED_BYTES = 2**30  # contents up to this size are checked by CRC, in a second; sizes always
STALE_SECONDS = 24 * 3600  # temporary files older than this belong to no living process


class Stored(NamedTuple):
    """Splits of named columns [N, ...], and notes: anything that JSON can hold."""

    splits: dict[str, Columns]
    notes: dict[str, Any]


def stored(folder: Path) -> Stored | None:
    """Returns what ``store`` wrote, memory-mapped; None if nothing was stored, or, with a warning, if it is damaged."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        manifest = json.loads(foreign_files.content(folder / MANIFEST))
        splits: dict[str, Columns] = {}
        for file, (split, name, shape, dtype, crc) in manifest["arrays"].items():
            foreign_files.opened(folder / file).close()
            array = np.load(folder / file, mmap_mode="r", allow_pickle=False).view(np.ndarray)
            if array.shape != tuple(shape) or array.dtype != np.dtype(dtype):
                raise ValueError(f"{file} holds {array.dtype} {array.shape}")
            if array.nbytes <= MAX_CHECKED_BYTES and zlib.crc32(array.data) != crc:
                raise ValueError(f"{file} fails its checksum")
            splits.setdefault(split, {})[name] = array
        if zlib.crc32(json.dumps(manifest["notes"]).encode()) != manifest["notes_crc"]:
            raise ValueError("the notes fail their checksum")
        return Stored(splits, manifest["notes"])
    except Exception as damage:  # a file can be damaged in any way
        logging.warning("%s is damaged or of another version (%r); making it again", folder, damage)
        return None


def store(
    folder: Path,
    shapes: Mapping[str, ColumnShapes],
    *,
    chunks: Callable[[str], Iterator[Columns]],
    notes: Callable[[], dict[str, Any]],
) -> Stored:
    """Writes splits chunk by chunk and returns them memory-mapped.

    If they cannot be written, logs a warning and returns them in memory.

    Args:
      folder: The data set's own folder; need not exist.
      shapes: split -> column -> shape and type.
      chunks: Makes a split's consecutive parts, name -> [n, ...], together of the shape that ``shapes`` says. It is
        called again if writing fails.
      notes: Called after the last chunk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(".*.tmp"):  # left by killed processes, or being written now
            if path.stat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink(missing_ok=True)
        arrays = {}
        for split, columns in shapes.items():
            checksums = _write_split(folder, split, columns, chunks(split))
            for name, (shape, dtype) in columns.items():
                arrays[f"{split}.{name}.npy"] = (split, name, shape, np.dtype(dtype).str, checksums[name])
        made = notes()
        manifest = {"arrays": arrays, "notes": made, "notes_crc": zlib.crc32(json.dumps(made).encode())}
        with replacing(folder / MANIFEST) as file:
            file.write(json.dumps(manifest).encode())
        if found := stored(folder):
            return found
    except OSError as error:
        logging.warning("%s cannot be written (%s); made in memory, at every start", folder, error)
    splits = {}
    for split, columns in shapes.items():
        parts = list(chunks(split))
        splits[split] = {name: np.concatenate([part[name] for part in parts]) for name in columns}
    return Stored(splits, notes())


def _write_split(folder: Path, split: str, columns: ColumnShapes, chunks: Iterator[Columns]) -> dict[str, int]:
    """Writes a split's .npy files; returns the checksum of each column, without the header of its file."""
    checksums = dict.fromkeys(columns, 0)
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(replacing(folder / f"{split}.{name}.npy")) for name in columns}
        for name, (shape, dtype) in columns.items():
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(files[name], header)
        for chunk in chunks:
            for name, file in files.items():
                content = np.ascontiguousarray(chunk[name]).data
                file.write(content)
                checksums[name] = zlib.crc32(content, checksums[name])
    return checksums
