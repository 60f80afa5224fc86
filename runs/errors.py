"""Errors that a user can cause, one line each, and the exit codes of commands.

A command ends with one of four exit codes:

* ``EXIT_OK``, 0: it did what was asked.
* ``EXIT_FAILED``, 1: a run ended early, because data could not be read, a file could not be saved, or a number was not
  finite. Everything that was saved before is complete, and the same command goes on from there.
* ``EXIT_REFUSED``, 2: a flag, a config or a folder was refused, and nothing was written.
* ``exit_code_after(signal)``, 128 + its number: a signal asked the run to stop. Its state is saved.
"""

import contextlib
import signal
from collections.abc import Iterator

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
MAX_MESSAGE = 400  # characters


class ConfigError(ValueError):
    """A value from the user is refused; the message is one line with the key, the value and what is allowed."""

    def __init__(self, message: str):
        super().__init__(_one_line(message))


def exit_code_after(signal_name: str) -> int:
    """Returns the exit code of a run that a signal asked to stop, as shells have it.

    >>> exit_code_after("SIGTERM")
    143
    """
    return 128 + signal.Signals[signal_name]


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turns a ValueError or OSError about the user's input into a ConfigError of one line."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from None


@contextlib.contextmanager
def in_block(block: str) -> Iterator[None]:
    """Prefixes the message of a ValueError with ``config.<block>.``, the block whose constructor raised it."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"config.{block}.{str(error).removeprefix(block + '.')}") from None


def _one_line(message: str) -> str:
    """Returns the message as a line that a terminal can show, without the middle of a long value."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.splitlines()))
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 155]} ... {line[-150:]}"
