"""Being told to stop: the loop finishes its step, saves and leaves."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from parallel import processes


class Stop:
    """Whether the process was told to stop, and by what.

    Attributes:
        requested: the name of the first signal, such as "SIGTERM", or None.
    """

    def __init__(self) -> None:
        self.requested: str | None = None

    def asked(self, call: int) -> str | None:
        """Returns the name of the signal, or None; of several processes, the same to all at the same call.

        Args:
            call: numbers the calls, one more each time, alike on all processes.
        """
        if processes.several() and self.requested is None and processes.are_to_stop(call):
            self.requested = "SIGTERM"
        return self.requested

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 128 + its number; 0 if none came."""
        return 0 if self.requested is None else 128 + signal.Signals[self.requested]


@contextlib.contextmanager
def catch_stop() -> Iterator[Stop]:
    """Turns SIGTERM and SIGINT into a flag that the loop looks at between steps.

    Whoever presses Ctrl-C while the run is already stopping gets KeyboardInterrupt at once. The handlers that were
    there come back at the end. Outside the main thread, where Python sets no handlers, the flag stays None.

    Of several processes any one may be told, and all stop: JAX's runtime listens to SIGTERM, and agrees with the others
    on the call at which they do; SIGINT is handed on to it.

    >>> with catch_stop() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested, stop.exit_code
    ('SIGTERM', 143)
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
            # None stands for a handler that was not set from Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
