"""Measures who is slow: the seconds of each step and worker, and what each process does by itself in a step."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

import runs
from parallel import Layout, processes
from training.step_plan import StepPlan

T = TypeVar("T", bound=tuple[Any, ...])

_LINE_SECONDS = 60.0  # between two lines about the slowest process


class Recorder(Protocol):
    """Keeps a run's measurements, in its folder."""

    def go_on(self, step: int) -> None:
        """Goes on after ``step``, and forgets later measurements.

        Raises:
          ValueError: in one line, if a file is damaged.
        """

    def add(self, plan: StepPlan) -> str | None:
        """Keeps the measurements of one call; returns a line to show, or None."""

    def write(self) -> str | None:
        """Writes all measurements; returns a line to show, or None.

        Raises:
          SaveError: in one line, for example if the disk is full.
        """


class StepTimes:
    """Keeps seconds[step, worker] in a run's folder, for the arrival model ``trace``.

    Args:
      folder: the run's folder.
      layout: where the workers are.
      measured: returns measurements of the step that was just taken, [W] each: "seconds", and "began" if workers do not
        begin a step together. A process reads only those of its own workers.
      compiles: whether the first step of each start compiles; its seconds are then left out, and each start has its own
        file. Otherwise all starts share one file.
    """

    def __init__(
        self, folder: Path, layout: Layout, *, measured: Callable[[], Mapping[str, np.ndarray]], compiles: bool
    ):
        self._folder = folder
        self._layout = layout
        self._measured = measured
        self._compiles = compiles
        self._trace = runs.TraceRecorder(num_workers=layout.num_workers)
        self._num_said = 0
        self._said_at = time.monotonic()

    def go_on(self, step: int) -> None:
        """Goes on after ``step``."""
        processes.from_first(lambda: runs.cut_traces(self._folder, last_step=step))
        self._first = step + (2 if self._compiles else 1)
        whole = runs.trace_path(self._folder, first_step=1)
        if not self._compiles and step and whole.exists() and self._trace.go_on(whole, num_steps=step):
            self._first = 1

    def add(self, plan: StepPlan) -> str | None:
        """Keeps the seconds of a call of one step; returns a line about the slowest process, at most one a minute."""
        if plan.first_step < self._first:
            return None
        self._trace.add(**{name: self._layout.gather(each) for name, each in self._measured().items()})
        return self._slowest() if time.monotonic() - self._said_at >= _LINE_SECONDS else None

    def write(self) -> str | None:
        """Writes the trace; returns a line about the slowest process if there was none yet."""
        if processes.index() or not self._trace.num_steps:
            return None
        self._trace.write(runs.trace_path(self._folder, first_step=self._first))
        return self._slowest() if self._num_said == 0 else None

    def _slowest(self) -> str | None:
        """Returns a line about the steps since the last such line, if there are several processes."""
        if processes.index() or not processes.several():
            return None
        recent = self._trace.seconds[self._num_said :]
        self._num_said = self._trace.num_steps
        self._said_at = time.monotonic()
        return runs.slowest_process(recent, num_processes=processes.count())


class ProcessTimes:
    """What each process does by itself in a step, in seconds: waiting for its batch, handing it over, keeping records.

    A host sees when a synchronous step is ready, which is when its last process is, and so alike on all of them. This
    counts none of that: neither calls of the devices nor waiting for them, nor evaluations and checkpoints. So it shows
    slow input and slow hosts, as far as prefetching does not hide them, and no slow device or network: those are in
    ``StepTimes``.

    >>> import types
    >>> times = ProcessTimes()
    >>> [plan.last_step for plan, *_ in times.over([(types.SimpleNamespace(first_step=1, last_step=2), "batch")])]
    [2]
    >>> with times.own():
    ...     sorted(times.lap()), times.lap()
    (['host_seconds_0'], {})
    """

    def __init__(self) -> None:
        self._seconds, self._began, self._steps = 0.0, 0.0, 0

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Counts the time of the block."""
        self._began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - self._began

    def over(self, calls: Iterable[T]) -> Iterator[T]:
        """Yields the calls, a plan and its inputs each, and counts the time in which they are made."""
        left = iter(calls)
        while True:
            with self.own():
                call = next(left, None)
            if call is None:
                return
            self._steps += call[0].last_step - call[0].first_step + 1
            yield call

    def lap(self) -> dict[str, float]:
        """Ends a lap, inside ``own``; all processes wait for each other here, which is not counted.

        Returns:
          "host_seconds_p" for each process p, the mean over the lap's steps, and with several processes
          "slowest_process"; {} if no step has begun since the lap before.
        """
        if not self._steps:
            return {}
        seconds = self._seconds + time.perf_counter() - self._began
        of_each = processes.gather(np.array(seconds / self._steps)).tolist()
        self._seconds, self._began, self._steps = 0.0, time.perf_counter(), 0
        named = {f"{runs.HOST_SECONDS}{process}": own for process, own in enumerate(of_each)}
        return named | ({"slowest_process": int(np.argmax(of_each))} if len(of_each) > 1 else {})
