"""The limit of a benchmark's whole time."""

import contextlib
import threading
import time
from collections.abc import Iterator

from benchmarks.kit import taking_turns


class Clock:
    """Ends a run at its limit: the processes that it watches are killed, and nothing more is started.

    Args:
      limit_seconds: of the run.
      of: what else it is the limit of, in words that follow "the limit of 300 s".
    """

    def __init__(self, limit_seconds: float, *, of: str = ""):
        self._end = time.monotonic() + limit_seconds
        self._lock = threading.Lock()
        self._children: set[taking_turns.Child] = set()
        self._timer = threading.Timer(limit_seconds, self._kill)
        self._timer.daemon = True
        self._reason = f"the limit of {limit_seconds:.3g} s{of} was reached"

    @property
    def left(self) -> float:
        """The seconds that are left; not above 0 when the run has to end."""
        return self._end - time.monotonic()

    def reason(self, error: Exception | None = None) -> str:
        """Returns why something was not measured: the limit, or else what a process said when it ended."""
        return self._reason if error is None or self.left <= 0 else str(error).rpartition("and said: ")[2]

    @contextlib.contextmanager
    def watch(self, child: taking_turns.Child) -> Iterator[taking_turns.Child]:
        """Kills a process at the limit, if it has not ended before."""
        with self._lock:
            self._children.add(child)
        if self.left <= 0:
            child.kill()
        try:
            with child:
                yield child
        finally:
            with self._lock:
                self._children.discard(child)

    def _kill(self) -> None:
        with self._lock:
            for child in self._children:
                child.kill()

    def __enter__(self) -> "Clock":
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
