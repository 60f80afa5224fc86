"""Standard output and standard error that never fail, so that a failed write stops no run."""

import contextlib
import io
import os
import sys
from typing import Any, Literal

_own: list[int] = []  # descriptors of Python's own streams, if libraries alone write to 1


def printable(text: str) -> str:
    r"""Returns a name on one line for a terminal: control characters, such as escape, are written out.

    >>> print(printable("a\x1b[31mb\nc ключ"))
    a\x1b[31mb\nc ключ
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def clipped(text: str, most: int = 60) -> str:
    """Returns a text that fits into a line: a long one loses its middle.

    >>> clipped("a" * 99 + "z", 12)
    'aaaa ... aaz'
    """
    if len(text) <= most:
        return text
    end = (most - 5) // 2
    return f"{text[: most - 5 - end]} ... {text[-end:]}"


def say(text: str, *, error: bool = False) -> None:
    r"""Prints a text of one or more lines; control characters of users' names in it are written out.

    Args:
      text: the text.
      error: whether it goes to standard error.

    >>> say("a\rb\nc")
    a\rb
    c
    """
    lines = "\n".join(map(printable, text.split("\n")))
    print(lines, file=sys.stderr if error else sys.stdout, flush=True)


class _Dropping(io.FileIO):
    """A file that drops output if it cannot be written: the disk is full, or the reader of the pipe is gone."""

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError:
            written = None
        return size if written is None else written


def never_fail(*, libraries: Literal["shown", "hidden"] = "shown") -> None:
    """Replaces this process's standard output and standard error; call it before any library keeps one of them.

    Characters that the encoding lacks are written as escapes, and each line is written at once. A closed stream gets
    the null device; otherwise the next opened file, such as a run's lock, would take its number and receive the output
    of libraries.

    Args:
      libraries: whether standard output of libraries in other languages than Python is "shown" or "hidden".
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    outputs = {"stdout": 1, "stderr": 2}
    if libraries == "hidden":
        _own.append(os.dup(1))
        os.dup2(number, 1)
        outputs["stdout"] = _own[0]
    os.close(number)
    for name, descriptor in outputs.items():
        before = getattr(sys, name)
        with contextlib.suppress(OSError, AttributeError):
            before.flush()
        file = io.BufferedWriter(_Dropping(descriptor, "w", closefd=False))
        encoding = getattr(before, "encoding", "utf-8")
        stream = io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def redirect(descriptor: int) -> None:
    """Sends standard output and standard error of Python and of libraries to an open file."""
    for number in (1, 2):
        os.dup2(descriptor, number)
    for number in _own:
        os.dup2(descriptor, number, inheritable=False)
