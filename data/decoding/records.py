"""Reads records by number from the array_record files of a split; each holds an image file and a label."""

import bisect
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

MAX_OPEN_FILES = 128  # per process; opening a file takes about 40 microseconds


class Damaged(Exception):
    """One record is damaged; the message says why."""


class Unreadable(Exception):
    """A file is missing or damaged; the message names it."""


class Shards:
    """The records of a split, in the order of its files; a file is opened when it is first read."""

    def __init__(self, files: Sequence[tuple[str, int]]):
        """Opens no file.

        Args:
          files: Path and number of records of each file.
        """
        self._files = list(files)
        self._ends = list(itertools.accumulate(count for _, count in files))
        self._open = functools.lru_cache(MAX_OPEN_FILES)(_open)

    def read(self, record: int) -> bytes:
        """Returns the content of a record, numbered from 0 through all files.

        Raises:
          Unreadable: If its file is missing, cut off, or has another number of records.
          Damaged: If this record alone cannot be read.
        """
        number = bisect.bisect_right(self._ends, record)
        path, count = self._files[number]
        try:
            (content,) = self._open(path, count).read([record - self._ends[number] + count])
        except Unreadable:
            raise
        except Exception as error:  # raised by the library's own checksums
            raise Damaged(f"{path}: {reason(error)}") from None
        if not content:  # the library returns nothing if a file was cut off after it was opened
            raise Unreadable(f"{path}: ends before record {record}")
        return content


def _open(path: str, count: int) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    if not os.path.isfile(path):
        raise Unreadable(f"{path}: no such file")
    try:  # the options that the library's own data source uses for random access
        reader = ArrayRecordReader(path, options="readahead_buffer_size:0", file_reader_buffer_size=2**15)
        if not reader.ok():
            reader.read([0])  # raises an exception that says what is wrong
        found = reader.num_records()
    except Exception as error:
        raise Unreadable(f"{path}: {reason(error)}") from None
    if found != count:
        raise Unreadable(f"{path}: holds {found} records instead of {count}")
    return reader


def unpack(record: bytes) -> tuple[bytes, int]:
    """Returns the content of the image file in a record, and its label.

    Raises:
      Damaged: If the record has no image or no label.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        example = tf_example_pb2.Example.FromString(record)  # pyright: ignore[reportAttributeAccessIssue]
        feature = example.features.feature
        return feature["image"].bytes_list.value[0], feature["label"].int64_list.value[0]
    except Exception as error:
        raise Damaged(f"not an example with an image and a label ({reason(error)})") from None


def reason(error: BaseException, *, limit: int = 200) -> str:
    """Returns an error's text on one line of bounded length, or its type if it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
