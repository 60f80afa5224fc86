"""Sinks for the records of a run, beside metrics.jsonl and TensorBoard: ``runs.reporting.trackers``, or the user's own.

A sink gets every record, in order, after it is in metrics.jsonl. A run that was killed goes on from its last
checkpoint, and writes the records of later steps again, with the same step: a sink should let a record replace an
earlier one of its kind and step. A sink may fail, sleep, or wait for a server that does not answer: it is made and
called in a separate thread, for which the run does not wait, and metrics.jsonl has every record.
"""

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, Protocol

from reducers.registry import components
from runs import files
from runs.errors import ConfigError
from runs.reporting.trackers import TRACKERS, Ending

_THREAD = "sink"

MOST_WAITING = 1000  # calls that wait for a sink; later records are not handed to it
SECONDS_TO_MAKE = 60.0  # time to make a sink, before it is refused
SECONDS_TO_CLOSE = 15.0  # time for a sink to take the waiting calls, at the end
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between a call that failed and the next one; doubled each time


class Sink(Protocol):
    """A place for records. It may have a method ``end``, too, which is called before ``close`` with the ``Ending``."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Takes a record: its "kind" ("train", "eval" or "gap"), its "step", and numbers, strings or None."""

    def flush(self) -> None:
        """Is called at each checkpoint."""

    def close(self) -> None:
        """Is called once, at the end of the process's part of the run."""


MakeSink = Callable[..., Sink]  # called with the run's folder and its config, as nested dicts


class GuardedSink:
    """A sink in a separate thread, so that it can neither end nor delay the run.

    After a failed call, the next one waits for a while, longer each time.

    Args:
      make: makes the sink, in that thread.

    Attributes:
      report: called with a line at the first failure, and with another one at the end; by default prints to stderr.
      ending: how the run ended, or this process's part of it; ``close`` hands it on.

    >>> class Broken:
    ...     def append(self, record):
    ...         raise OSError("no route to host")
    ...     def close(self):
    ...         pass
    >>> import contextlib
    >>> with contextlib.closing(GuardedSink(Broken)) as sink:
    ...     sink.report = print
    ...     sink.append({"kind": "train", "step": 1})
    sink Broken: append failed (OSError: no route to host); the run goes on, and metrics.jsonl has every record
    """

    def __init__(self, make: Callable[[], Sink]):
        self.report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
        self._sink: futures.Future[Sink] = futures.Future()
        self._calls: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()  # None is the end
        self.ending: Ending = "failed"  # until the run reports another ending
        self._is_closing = threading.Event()
        self._is_given_up = self._is_reported = False
        self._num_failed = 0  # calls
        self._num_given = self._num_tried = 0  # records
        self._thread = threading.Thread(target=self._serve, args=(make,), daemon=True, name=_THREAD)
        self._thread.start()

    def made(self, *, seconds: float = SECONDS_TO_MAKE) -> Sink:
        """Waits for the sink.

        Raises:
          TimeoutError: if it is not made in so many seconds.
          Exception: the exception of its maker, SystemExit included.
        """
        if not futures.wait([self._sink], seconds).done:
            raise TimeoutError(f"it is not made after {seconds:g} s")
        return self._sink.result()

    def append(self, record: Mapping[str, Any]) -> None:
        """Hands a copy of the record on, unless too many calls are waiting."""
        self._num_given += 1
        self._give("append", dict(record))

    def flush(self) -> None:
        self._give("flush")

    def close(self) -> None:
        """Closes the sink, waiting SECONDS_TO_CLOSE at most; a second call does nothing."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._calls.put(None)
        self._thread.join(SECONDS_TO_CLOSE)
        self._is_given_up = self._thread.is_alive()
        troubles = []
        if self._is_given_up:
            troubles.append(f"did not end within {SECONDS_TO_CLOSE:g} s")
        if self._num_failed > 1:
            troubles.append(f"{self._num_failed} calls failed")
        if lost := self._num_given - self._num_tried:
            troubles.append(f"{lost} records did not reach it")
        if troubles:
            self.report(f"sink {self._name}: {', '.join(troubles)}; metrics.jsonl has every record")

    def _give(self, method: str, *arguments: Any) -> None:
        if self._calls.qsize() < MOST_WAITING:
            self._calls.put((method, arguments))
        else:
            self._say(f"takes too long; {MOST_WAITING} calls wait for it, and it does not get the records after them")

    def _serve(self, make: Callable[[], Sink]) -> None:
        """Makes the sink, and calls its methods one by one until ``None`` comes; runs in the thread."""
        try:
            self._sink.set_result(make())
        except (Exception, SystemExit) as error:
            self._sink.set_exception(error)
            return
        pause = SHORTEST_PAUSE
        for method, arguments in iter(self._calls.get, None):
            if self._is_given_up:
                return
            is_well = self._call(method, *arguments)
            self._num_tried += method == "append"
            if is_well:
                pause = SHORTEST_PAUSE
            else:
                self._is_closing.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if hasattr(self._sink.result(), "end"):
            self._call("end", self.ending)
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> bool:
        """Calls a method of the sink; returns whether it raised nothing."""
        try:
            getattr(self._sink.result(), method)(*arguments)
        except (Exception, SystemExit) as error:
            self._num_failed += 1
            self._say(f"{method} failed ({type(error).__name__}: {files.reason(error)})")
            return False
        return True

    def _say(self, trouble: str) -> None:
        """Reports the first failure."""
        if not self._is_reported:
            self._is_reported = True
            self.report(f"sink {self._name}: {trouble}; the run goes on, and metrics.jsonl has every record")

    @property
    def _name(self) -> str:
        is_made = self._sink.done() and self._sink.exception() is None
        return type(self._sink.result()).__name__ if is_made else "not made"


def guard(sink: Sink, *, report: Callable[[str], None]) -> GuardedSink:
    """Guards a sink, unless it is guarded already, and hands its errors to ``report``."""
    guarded = sink if isinstance(sink, GuardedSink) else GuardedSink(lambda: sink)
    guarded.report = report
    return guarded


def any_waits() -> bool:
    """Returns whether a sink's thread in this process has not ended."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def find(name: str) -> MakeSink:
    """Returns the maker that ``--sink=wandb`` or ``--sink=module:attribute`` names.

    Raises:
      ConfigError: one line, if there is no such tracker, module or attribute.
    """
    if name in TRACKERS:
        return TRACKERS[name]
    try:
        if not components.is_component(name):
            raise ValueError(f"must be {', '.join(TRACKERS)} or module:attribute, such as my_module:MySink")
        return components.find(name)
    except ValueError as error:
        raise ConfigError(f"sink={name!r}: {error}") from None


def make(name: str, folder: Path, config: dict[str, Any], *, run_id: str = "") -> GuardedSink:
    """Makes a sink for a run.

    Args:
      name: name of the sink, as in ``--sink``.
      folder: the run's folder.
      config: the run's config, as nested dicts.
      run_id: identifies the run in trackers; "" takes its path.

    Raises:
      ConfigError: one line, if it cannot be made, lacks a method, or is not made within SECONDS_TO_MAKE.
    """
    maker = find(name)
    options = {"run_id": run_id} if name in TRACKERS else {}
    guarded = GuardedSink(lambda: maker(folder, config, **options))
    try:
        sink = guarded.made(seconds=SECONDS_TO_MAKE)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"sink={name!r}: needs the package {error.name}, which is not installed") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"sink={name!r}: {type(error).__name__}: {files.reason(error)}") from None
    missing = [method for method in ("append", "flush", "close") if not callable(getattr(sink, method, None))]
    if missing:
        raise ConfigError(f"sink={name!r}: {type(sink).__name__} has no method {missing[0]}")
    return guarded
