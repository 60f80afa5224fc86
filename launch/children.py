"""What whoever starts processes needs of them: the signals that are to be handed on, and the last words."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import IO

TAIL_BYTES = 1 << 16  # of an output, in which the last line is looked for


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM; the caller hands them on.

    >>> with collected_signals() as caught:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     caught == [signal.SIGTERM]
    True
    """
    caught: list[int] = []
    before = {n: signal.signal(n, lambda n, frame: caught.append(n)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_line(output: IO[bytes]) -> str:
    r"""Returns the last line that is not blank, "" without any.

    >>> import io
    >>> last_line(io.BytesIO(b"one\ntwo \n\n"))
    'two'
    """
    output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
