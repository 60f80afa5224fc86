"""Files that get their names when they are complete."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file that takes its name when it is complete: a reader sees the old content or the new one.

    Each writer has its own temporary file, so that several may write the same file at once; the last one wins.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:  # the system's message names no file
            error.filename = str(path)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut; a kill loses neither."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
