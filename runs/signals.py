"""Signals that ask a run to stop: the loop finishes its step, saves and ends."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Literal

from launch import signals
from parallel import processes

BeforeFirstCall = Literal["end", "wait"]

SECONDS_TO_AGREE = 120.0  # after a signal, in which a process of several must come to its next call
SECONDS_TO_STEP = 7200.0  # without a signal: longer than the slowest call, evaluation and checkpoint together


class Stop:
    """The signal that asked the process to stop, if any.

    Attributes:
      requested: the name of the first signal, such as "SIGTERM", or None.

    Args:
      seconds_to_agree: how long this process may wait for the others after a signal, before it ends without them.
      seconds_to_step: how long it may wait for them without a signal.
      before_first_call: whether a signal in the first call, which may compile for minutes, is to "end" the process of a
        command, which loses nothing that was not saved, or to "wait" for the call.
    """

    def __init__(
        self,
        *,
        seconds_to_agree: float = SECONDS_TO_AGREE,
        seconds_to_step: float = SECONDS_TO_STEP,
        before_first_call: BeforeFirstCall = "wait",
    ) -> None:
        self.requested: str | None = None
        self._seconds_to_agree, self._seconds_to_step = seconds_to_agree, seconds_to_step
        self._before_first_call = before_first_call
        self._num_asked = 0
        self._heard, self._over = threading.Event(), threading.Event()
        if processes.several():
            threading.Thread(target=self._end_if_stuck, daemon=True).start()

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
        if self._heard.is_set():
            if number == signal.SIGINT:
                signals.leave(number)
            return
        self._heard.set()
        if processes.several():
            processes.ask_all_to_stop()
        elif self._before_first_call == "end" and not self._num_asked and signals.is_listening():
            signals.end(number)
        else:
            self.requested = signal.Signals(number).name

    def close(self) -> None:
        """Ends the wait for the other processes."""
        self._over.set()
        self._heard.set()

    def _end_if_stuck(self) -> None:
        """Ends this process if it makes no call any more: the others are gone, or are at another step."""
        if self._is_stuck(until=self._heard, seconds=self._seconds_to_step):
            print(f"waited {self._seconds_to_step:.0f} s for the other processes of the run", file=sys.stderr)
            processes.abandon(1)
        if self._is_stuck(until=self._over, seconds=self._seconds_to_agree):
            signals.end(signal.SIGTERM, why=" while it waited for the other processes of the run")

    def _is_stuck(self, *, until: threading.Event, seconds: float) -> bool:
        """Waits for an event; returns whether this process, before that, made no call for so many seconds."""
        num_asked = -1
        while num_asked != self._num_asked:
            num_asked = self._num_asked
            if until.wait(seconds):
                return False
        return True


@contextlib.contextmanager
def catch_stop(
    *,
    seconds_to_agree: float = SECONDS_TO_AGREE,
    seconds_to_step: float = SECONDS_TO_STEP,
    before_first_call: BeforeFirstCall = "wait",
) -> Iterator[Stop]:
    """Turns SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 into a flag that the loop reads between steps.

    Ctrl-C while the run is already stopping ends the process at once, or raises KeyboardInterrupt if this process is
    not a command but a notebook, for example. Outside the main thread, where Python sets no handlers, the flag stays
    None.

    In a run of several processes a signal to any of them stops all, as SIGTERM: JAX's runtime lets the processes agree
    on the call at which they stop. A process that waits in vain for the others ends by itself: after
    ``seconds_to_agree`` if it got a signal, else after ``seconds_to_step``, with exit code 1.

    With ``before_first_call="end"`` a signal ends a command of one process at once until its first call is done.

    >>> with catch_stop() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    'SIGTERM'
    """
    stop = Stop(seconds_to_agree=seconds_to_agree, seconds_to_step=seconds_to_step, before_first_call=before_first_call)
    try:
        with signals.handled(stop.hear):
            yield stop
    finally:
        stop.close()
