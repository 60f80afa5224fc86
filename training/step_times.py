"""The seconds of each step and worker of a run, in its folder, for the arrival model ``trace``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

import runs
from parallel import Layout, processes
from training.step_plan import StepPlan


class Recorder(Protocol):
    """Keeps what a run measures, in its folder."""

    def go_on(self, step: int) -> None:
        """Goes on after ``step``, forgetting what was measured later.

        Raises:
          ValueError: in one line, if a file is damaged.
        """

    def add(self, plan: StepPlan) -> None:
        """Keeps what was measured in a call of the devices."""

    def write(self) -> str | None:
        """Writes all that was measured; returns a line to show, or None.

        Raises:
          SaveError: in one line, for example if the disk is full.
        """


class StepTimes:
    """Keeps seconds[step, worker].

    Args:
      folder: of the run.
      layout: where the workers are.
      measured: returns what was measured in the step that was just taken, [W] each, of which this process needs only
        its own: the "seconds", and "began" where workers do not begin a step together.
      compiles: whether programs compile in the first step of a start, whose seconds are then left out; each start has a
        file of its own. Otherwise all starts of a run share one file.
    """

    def __init__(
        self, folder: Path, layout: Layout, *, measured: Callable[[], Mapping[str, np.ndarray]], compiles: bool
    ):
        self._folder, self._layout, self._measured, self._compiles = folder, layout, measured, compiles
        self._trace = runs.TraceRecorder(num_workers=layout.num_workers)

    def go_on(self, step: int) -> None:
        """Goes on after ``step``."""
        processes.from_first(lambda: runs.cut_traces(self._folder, last_step=step))
        self._first = step + (2 if self._compiles else 1)
        whole = runs.trace_path(self._folder, first_step=1)
        if not self._compiles and step and whole.exists() and self._trace.go_on(whole, num_steps=step):
            self._first = 1

    def add(self, plan: StepPlan) -> None:
        """Keeps the seconds of a call of one step."""
        if plan.first_step >= self._first:
            self._trace.add(**{name: self._layout.gather(each) for name, each in self._measured().items()})

    def write(self) -> str | None:
        """Writes the trace; returns a line about the slowest process where there are several."""
        if processes.index() or not self._trace.num_steps:
            return None
        self._trace.write(runs.trace_path(self._folder, first_step=self._first))
        if not processes.several():
            return None
        return runs.slowest_process(self._trace.seconds, num_processes=processes.count())
