"""Files that somebody else may have put there: reading one waits for nobody, and does not fill the memory."""

import contextlib
import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

F = TypeVar("F", io.BufferedReader, io.BufferedWriter)

MOST_BYTES = 2**26  # of a file that is read whole
MOST_ARRAY_BYTES = 2**30  # of the arrays in an archive, which may be a thousandth of that on disk


class UnusableFile(OSError):
    """A path leads to something else than a file, or to a file that is too large to be read whole."""


def opened(path: str | Path) -> io.BufferedReader:
    """Opens a file to read it.

    A pipe would wait for a writer that never comes, and a device might never end.

    Raises:
      UnusableFile: if it is of another kind.
      OSError: if there is no such file, or it cannot be read.
    """
    return _checked(open(path, "rb", opener=_at_once))


def opened_to_append(path: str | Path) -> io.BufferedWriter:
    """Opens a file, which is created if it is missing, to append to it.

    Raises:
      OSError: as ``opened``, or for a pipe without a reader.
    """
    return _checked(open(path, "ab", opener=_at_once))


def content(path: str | Path, *, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a file.

    Args:
      path: the file.
      most: the most bytes that are read.

    Raises:
      UnusableFile: if it is of another kind, or larger.
      OSError: as ``opened``.
    """
    with opened(path) as file:
        is_larger = os.fstat(file.fileno()).st_size > most
        found = b"" if is_larger else file.read(most + 1)  # the system's own files have size 0
    if is_larger or len(found) > most:
        raise UnusableFile(errno.EFBIG, f"has more than {most} bytes", str(path))
    return found


@contextlib.contextmanager
def arrays(path: str | Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Yields the arrays of an .npz file, each of which is read when it is asked for.

    Args:
      path: the file.

    Raises:
      ValueError: one line, if it is no such archive, or has more than ``MOST_ARRAY_BYTES``.
      OSError: as ``opened``.
      Exception: any of many classes that zipfile, zlib and NumPy raise for a damaged archive.
    """
    with opened(path) as file:
        if file.read(2) != b"PK":  # NumPy would read a single array, however large
            raise ValueError("is no .npz archive")
        file.seek(0)
        with np.load(file, allow_pickle=False) as found:
            size = sum(member.file_size for member in found.zip.infolist())
            if size > MOST_ARRAY_BYTES:
                raise ValueError(f"has {size} bytes of arrays, must be at most {MOST_ARRAY_BYTES}")
            yield found


def sha256(path: str | Path) -> str:
    """Returns the SHA-256 of a file's content, in hex.

    Raises:
      OSError: as ``opened``.
    """
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)


def _checked(file: F) -> F:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnusableFile(errno.EINVAL, "is not a regular file", file.name)
    return file
