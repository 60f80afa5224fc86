"""Signals that ask a run to stop: the loop finishes its step, saves and ends."""

import signal
import threading
from typing import Any, Literal

from launch import signals
from parallel import processes

SECONDS_TO_AGREE = 120.0  # after a signal, for the processes of a run to reach the same call


class Stop:
    """Turns SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 into a flag that the loop reads between steps.

    Ctrl-C while the run is already stopping ends the process at once, or raises KeyboardInterrupt if this process is
    not a command but a notebook, for example. Outside the main thread, where Python sets no handlers, the flag stays
    None.

    In a run of several processes a signal to any of them stops all, as SIGTERM: JAX's runtime lets the processes agree
    on the call at which they stop. A process that waits for the others in vain after a signal ends alone.

    Attributes:
      requested: the name of the first signal, such as "SIGTERM", or None.

    Args:
      seconds_to_agree: seconds that this process waits for the others after a signal, before it ends alone.
      before_first_call: "end" lets a signal end a command during its first call, which may compile for minutes (nothing
        is lost); "wait" waits for the call.

    >>> with Stop() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    'SIGTERM'
    """

    def __init__(
        self, *, seconds_to_agree: float = SECONDS_TO_AGREE, before_first_call: Literal["end", "wait"] = "wait"
    ) -> None:
        self.requested: str | None = None
        self._before_first_call = before_first_call
        self._num_asked, self._is_heard = 0, False
        why = {"why": " while it waited for the other processes of the run"}
        self._end_alone = threading.Timer(seconds_to_agree, signals.end, [signal.SIGTERM], why)
        self._end_alone.daemon = True
        self._handlers = signals.handled(self._hear)

    def asked(self, call: int) -> str | None:
        """Returns the name of the signal, or None; every process of a run gets the same answer at the same call.

        Args:
          call: number of this call, which grows by one each time and is equal in all processes.
        """
        self._num_asked += 1
        if processes.several() and self.requested is None and processes.are_to_stop(call):
            self.requested = "SIGTERM"
            self._end_alone.cancel()
        return self.requested

    def _hear(self, number: int) -> None:
        """Notes a signal; SIGINT while the run is already stopping ends the process, or raises KeyboardInterrupt."""
        if self._is_heard:
            if number == signal.SIGINT:
                if not signals.is_listening():
                    raise KeyboardInterrupt
                signals.end(number)
            return
        self._is_heard = True
        if processes.several():
            self._end_alone.start()
            processes.ask_all_to_stop()
        elif self._before_first_call == "end" and not self._num_asked and signals.is_listening():
            signals.end(number)
        else:
            self.requested = signal.Signals(number).name

    def __enter__(self) -> "Stop":
        self._handlers.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._end_alone.cancel()
        self._handlers.__exit__(*error)
