"""Standard output and standard error that never fail, so that what cannot be written changes nothing else."""

import contextlib
import io
import os
import sys
from typing import Any


class _Dropping(io.FileIO):
    """A file that drops what cannot be written: the disk is full, or nobody reads the pipe any more."""

    def write(self, data: Any, /) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def never_fail() -> None:
    """Replaces this process's standard output and standard error; call it before any library keeps one of them.

    Characters that the encoding lacks are written as escapes, and each line is written at once. A closed stream gets
    the null device; otherwise the next file that is opened, such as a run's lock, would have its number, and receive
    what libraries print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        with contextlib.suppress(OSError, AttributeError):
            before.flush()
        file = io.BufferedWriter(_Dropping(number, "w", closefd=False))
        encoding = getattr(before, "encoding", "utf-8")
        stream = io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
