"""Sinks for the records of a run, beside metrics.jsonl and TensorBoard: ``runs.reporting.trackers``, or one's own.

A sink takes every record, in order, once metrics.jsonl has it. A run that was killed goes on from its last checkpoint,
and writes the records of later steps again, with the same step: a sink should let a record replace an earlier one of
its kind and step. A sink may fail; the run goes on, and metrics.jsonl has every record.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from reducers.registry import components
from runs import files
from runs.errors import ConfigError
from runs.reporting.trackers import TRACKERS


class Sink(Protocol):
    """A place for records."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Takes a record: its "kind" ("train", "eval" or "gap"), its "step", and numbers, strings or None."""

    def flush(self) -> None:
        """Is called before each checkpoint."""

    def close(self) -> None:
        """Is called once, at the end of the process's part of the run."""


MakeSink = Callable[[Path, dict[str, Any]], Sink]  # the run's folder and its config, as nested dicts


class GuardedSink:
    """A sink whose errors are reported, and end no run.

    Args:
      sink: the sink.

    Attributes:
      report: called with a line at its first error, and with their number at the end; prints to stderr at first.

    >>> class Broken:
    ...     def append(self, record):
    ...         raise OSError("no route to host")
    >>> sink = GuardedSink(Broken())
    >>> sink.report = print
    >>> sink.append({"kind": "train", "step": 1})
    sink Broken: append failed (OSError: no route to host); the run goes on, and metrics.jsonl has every record
    """

    def __init__(self, sink: Sink):
        self.report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
        self._sink = sink
        self._num_failed = 0
        self._is_closed = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Hands a copy of the record on."""
        self._try("append", dict(record))

    def flush(self) -> None:
        self._try("flush")

    def close(self) -> None:
        """Closes the sink; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._try("close")
        if self._num_failed > 1:
            self.report(f"sink {self._name}: {self._num_failed} calls failed; metrics.jsonl has every record")

    def _try(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._sink, method)(*arguments)
        except (Exception, SystemExit) as error:
            self._num_failed += 1
            if self._num_failed == 1:
                reason = f"{type(error).__name__}: {files.reason(error)}"
                way = "the run goes on, and metrics.jsonl has every record"
                self.report(f"sink {self._name}: {method} failed ({reason}); {way}")

    @property
    def _name(self) -> str:
        return type(self._sink).__name__


def guard(sink: Sink, *, report: Callable[[str], None]) -> GuardedSink:
    """Guards a sink, unless it is guarded already, and hands its errors to ``report``."""
    guarded = sink if isinstance(sink, GuardedSink) else GuardedSink(sink)
    guarded.report = report
    return guarded


def find(name: str) -> MakeSink:
    """Returns what ``--sink=wandb`` or ``--sink=module:attribute`` names: a run's folder and config make a sink of it.

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


def make(name: str, folder: Path, config: dict[str, Any]) -> GuardedSink:
    """Makes a sink for a run.

    Raises:
      ConfigError: one line, if it cannot be made, or lacks a method.
    """
    try:
        sink = find(name)(folder, config)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"sink={name!r}: needs the package {error.name}, which is not installed") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"sink={name!r}: {type(error).__name__}: {files.reason(error)}") from None
    missing = [method for method in ("append", "flush", "close") if not callable(getattr(sink, method, None))]
    if missing:
        raise ConfigError(f"sink={name!r}: {type(sink).__name__} has no method {missing[0]}")
    return GuardedSink(sink)
