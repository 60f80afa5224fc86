"""Errors that a user can cause, one line each."""

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from launch.children import ROOT
from launch.output import clipped, printable

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MAX_MESSAGE = 400  # characters


class ConfigError(ValueError):
    """An invalid value from the user; the message is one line with the key, the value and the allowed ones."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turns a ValueError or OSError about the user's input into a ConfigError of one line."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from None


@contextlib.contextmanager
def in_block(block: str, *, of: str = "config.") -> Iterator[None]:
    """Prefixes the message of a ValueError with ``config.<block>.``, the block whose constructor raised it.

    If code outside of this repository raised or caused it, the message ends with the file and the line.

    Args:
      block: the block's key.
      of: prefix of the key; "" for a block in a flag.
    """
    try:
        yield
    except ConfigError:  # it already names a key
        raise
    except ValueError as error:
        message = str(error).removeprefix(block + ".")
        raise ConfigError(f"{of}{block}.{message}{place_outside(error)}") from None


def is_installed(file: Path) -> bool:
    """Returns whether a file is one of Python's own, or of an installed package.

    >>> is_installed(Path(contextlib.__file__)), is_installed(Path("mine.py"))
    (True, False)
    """
    in_packages = {"site-packages", "dist-packages"} & set(file.parts)
    return bool(in_packages) or file.is_relative_to(sysconfig.get_path("stdlib"))


def place_outside(error: BaseException) -> str:
    """Returns " (file:line)" of the innermost code outside of this repository; "" if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if not (frame.filename.startswith("<") or file.is_relative_to(ROOT) or is_installed(file)):
            return f" ({file}:{frame.lineno})"
    return ""


def one_line(message: str) -> str:
    r"""Returns a message as one line for a terminal, without colours; a long one loses its middle.

    A traceback is cut to its last line, the error.

    >>> one_line("failed\nTraceback (most recent call last):\n  File 'x', line 1\n\x1b[31mKeyError\x1b[0m: 1\n")
    'failed KeyError: 1'
    """
    before, _, trace = _COLOUR.sub("", message).partition("Traceback (most recent call last)")
    lines = before.splitlines() + trace.rstrip().splitlines()[-1:]
    text = " ".join(filter(None, map(str.strip, lines)))
    return clipped(printable(text), MAX_MESSAGE)
