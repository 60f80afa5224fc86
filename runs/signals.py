"""Signals that ask a run to stop: the loop finishes its step, saves and ends."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from launch import signals
from parallel import processes

SECONDS_TO_AGREE = 120.0  # after a signal, in which a process of several must reach its next call


class Stop:
    """The signal that asked the process to stop, if any.

    Attributes:
      requested: the name of the first signal, such as "SIGTERM", or None.

    Args:
      seconds_to_agree: how long this process may wait for the others after a signal, before it ends without them.
    """

    def __init__(self, *, seconds_to_agree: float = SECONDS_TO_AGREE) -> None:
        self.requested: str | None = None
        self._heard = False
        self._seconds_to_agree = seconds_to_agree
        self._num_asked = 0
        self._over = threading.Event()

    def asked(self, call: int) -> str | None:
        """Returns the name of the signal, or None; every process of a run gets the same answer at the same call.

        Args:
          call: number of this call, one more each time, and equal in all processes.
        """
        self._num_asked += 1
        if processes.several() and self.requested is None and processes.are_to_stop(call):
            self.requested = "SIGTERM"
            self._over.set()
        return self.requested

    def hear(self, number: int) -> None:
        """Notes a signal; SIGINT while the run is already stopping ends the process, or raises KeyboardInterrupt."""
        if self._heard:
            if number == signal.SIGINT:
                signals.leave(number)
            return
        self._heard = True
        if not processes.several():
            self.requested = signal.Signals(number).name
            return
        processes.ask_all_to_stop()
        threading.Thread(target=self._end_if_stuck, daemon=True).start()

    def close(self) -> None:
        """Ends the wait for the other processes."""
        self._over.set()

    def _end_if_stuck(self) -> None:
        """Ends this process if it makes no call any more: the others are gone, or are at another step."""
        num_asked = -1
        while num_asked != self._num_asked:
            num_asked = self._num_asked
            if self._over.wait(self._seconds_to_agree):
                return
        signals.end(signal.SIGTERM, why=" while it waited for the other processes of the run")


@contextlib.contextmanager
def catch_stop(*, seconds_to_agree: float = SECONDS_TO_AGREE) -> Iterator[Stop]:
    """Turns SIGTERM, SIGINT and SIGHUP into a flag that the loop reads between steps.

    Ctrl-C while the run is already stopping ends the process at once, or raises KeyboardInterrupt if this process is
    not a command but a notebook, for example. Outside the main thread, where Python sets no handlers, the flag stays
    None.

    In a run of several processes a signal to any of them stops all, as SIGTERM: JAX's runtime lets the processes agree
    on the call at which they stop. A process that waits in vain for the others ends by itself after
    ``seconds_to_agree``.

    >>> with catch_stop() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    'SIGTERM'
    """
    stop = Stop(seconds_to_agree=seconds_to_agree)
    try:
        with signals.handled(stop.hear):
            yield stop
    finally:
        stop.close()
