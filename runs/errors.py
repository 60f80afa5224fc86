"""Errors that a user can cause, one line each."""

import contextlib
from collections.abc import Iterator

MAX_MESSAGE = 400  # characters


class ConfigError(ValueError):
    """A value from the user is refused; the message is one line with the key, the value and what is allowed."""

    def __init__(self, message: str):
        super().__init__(_one_line(message))


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
