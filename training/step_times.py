"""Records the seconds of each step and worker in a run's folder, for the arrival model ``trace``."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

import runs
from parallel import Layout, processes
from training.step_plan import StepPlan

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
    """Keeps seconds[step, worker].

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
