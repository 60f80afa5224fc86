"""The end of a command whose output nobody reads any more, as in ``python -m reducers | head``."""

import os
import select
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

# As if the signal SIGPIPE had ended the process, which Python ignores.
EXIT_CODE = 128 + 13


def exit_with(main: Callable[..., int | None], /, *arguments: Any, **options: Any) -> NoReturn:
    """Exits with what ``main`` returns; without a word if the reader of the output has closed its end of the pipe."""
    try:
        try:
            code = main(*arguments, **options)
        finally:  # argparse, too, prints and exits
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _is_closed(stream)]
        if not closed:  # a pipe of the program's own
            raise
        for stream in closed:  # Python writes what is left in the buffers when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        code = EXIT_CODE
    sys.exit(code)


def _is_closed(stream: TextIO | None) -> bool:
    """Returns whether a stream is a pipe without a reader."""
    if stream is None:
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
