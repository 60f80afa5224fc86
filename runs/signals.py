"""Signals that ask a run to stop: the loop finishes its step, saves and ends."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from parallel import processes


class Stop:
    """The signal that asked the process to stop, if any.

    Attributes:
      requested: the name of the first signal, such as "SIGTERM", or None.
    """

    def __init__(self) -> None:
        self.requested: str | None = None

    def asked(self, call: int) -> str | None:
        """Returns the name of the signal, or None; every process of a run gets the same answer at the same call.

        Args:
          call: number of this call, one more each time, and equal in all processes.
        """
        if processes.several() and self.requested is None and processes.are_to_stop(call):
            self.requested = "SIGTERM"
        return self.requested


@contextlib.contextmanager
def catch_stop() -> Iterator[Stop]:
    """Turns SIGTERM and SIGINT into a flag that the loop reads between steps.

    Ctrl-C while the run is already stopping raises KeyboardInterrupt at once. The handlers from before are restored at
    the end. Outside the main thread, where Python sets no handlers, the flag stays None.

    In a run of several processes a signal to any of them stops all. JAX's runtime handles SIGTERM and lets the
    processes agree on the call at which they stop; SIGINT is passed on to it as SIGTERM.

    >>> with catch_stop() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    'SIGTERM'
    """
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.requested is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.requested = stop.requested or signal.Signals(number).name

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers: dict[int, Any] = {signal.SIGTERM: handle, signal.SIGINT: handle}
    if processes.several():
        handlers = {signal.SIGINT: lambda number, frame: os.kill(os.getpid(), signal.SIGTERM)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            # None means a handler that was not set from Python; it cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
