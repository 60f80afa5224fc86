r"""Early stopping: which runs of a sweep are stopped before they end, as their records show.

A run whose loss is not finite has diverged. The median rule of Google Vizier stops a run at an evaluation if the best
value that it has had is worse than the median, over the finished runs, of the mean of their values up to that step.

Reference: Golovin et al., "Google Vizier: A Service for Black-Box Optimization" (KDD 2017), section 3.2.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import runs as run_folders
from experiments.execution import results
from experiments.execution.stopped import LEFT_OUT, Stopped
from experiments.study.run import Row, Run, evaluations
from experiments.sweeps.goal import Goal

LOOK_AT_MOST = 0.05  # share of the time in which the records of a run that is active are read

Record = Mapping[str, Any]
Curve = Sequence[tuple[int, float]]  # step, value at an evaluation; larger values are better


class EarlyStopping:
    """Decides which active runs of a sweep are stopped, by the records that they have written so far.

    Args:
      runs: all runs of the sweep.
      root: the folder of their folders.
      goal: what they are compared by.
      median_of: number of finished runs that the median rule needs; None leaves the rule out.
    """

    def __init__(self, runs: Sequence[Run], *, root: Path, goal: Goal, median_of: int | None = None):
        self._unfinished = {results.folder_of(run, root) for run in runs} if median_of else set()
        self._goal, self._median_of = goal, median_of
        self._finished: list[Curve] = []
        self._next_look: dict[Path, float] = {}

    def __call__(self, run: Run, folder: Path) -> Stopped | None:
        """Returns why a run is to be stopped; None if it goes on."""
        del run
        now = time.monotonic()
        if now < self._next_look.get(folder, 0.0):
            return None
        try:
            records = run_folders.read(folder / "metrics.jsonl")
        except (OSError, ValueError):  # it has not begun, or its file is damaged, which the run reports itself
            return None
        found = self._judged(records)
        self._next_look[folder] = now + (time.monotonic() - now) / LOOK_AT_MOST
        return found

    def _judged(self, records: Sequence[Record]) -> Stopped | None:
        if (step := divergence(records)) is not None:
            return Stopped("diverged", step)
        if self._median_of and (curve := self._curve(records)):
            self._read_finished()
            if is_behind(curve, self._finished, least=self._median_of):
                return Stopped("stopped", curve[-1][0])
        return None

    def _read_finished(self) -> None:
        """Adds the runs that have finished since the last call."""
        for folder in [folder for folder in self._unfinished if results.state_of(folder) in results.ENDED]:
            self._unfinished.remove(folder)
            with contextlib.suppress(OSError, ValueError):  # a damaged file is reported with the table
                records = run_folders.read(folder / "metrics.jsonl")
                if results.state_of(folder) == "finished" and divergence(records) is None:
                    self._finished.append(self._curve(records))

    def _curve(self, records: Sequence[Record]) -> Curve:
        """Returns the evaluations of a run that are finite."""
        metric, sign = self._goal.metric, self._goal.sign
        evaluated = [(record["step"], record.get(metric)) for record in records if record["kind"] == "eval"]
        return [(step, sign * value) for step, value in evaluated if value is not None and math.isfinite(value)]


def divergence(records: Sequence[Record]) -> int | None:
    """Returns the first step whose loss is not finite, unless its update was skipped; None if there is none.

    >>> divergence([{"kind": "train", "step": 1, "loss": 0.5}, {"kind": "train", "step": 2, "loss": math.nan}])
    2
    """
    for record in records:
        loss = record.get("loss")
        if isinstance(loss, float) and not math.isfinite(loss) and not record.get("skipped"):
            return record["step"]
    return None


def is_behind(curve: Curve, finished: Sequence[Curve], *, least: int) -> bool:
    r"""Returns whether the median rule stops a run at its last evaluation, at step t.

    .. math:: \max_{s \le t} m_s < \mathrm{median}_i \, \mathrm{mean}_{s \le t} \, m^{(i)}_s

    Args:
      curve: the run's evaluations so far.
      finished: those of the finished runs.
      least: number of finished runs that must have an evaluation by step t.

    >>> is_behind([(10, 0.3)], [[(10, 0.2), (20, 0.9)], [(10, 0.4)], [(5, 0.3), (10, 0.6)]], least=3)
    True
    """
    step = curve[-1][0]
    before = [[value for at, value in other if at <= step] for other in finished]
    means = [statistics.fmean(values) for values in before if values]
    return len(means) >= least and max(value for _, value in curve) < statistics.median(means)


def measured(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the evaluations of a finished run, and whether it is left out because it has diverged."""
    diverged = {} if divergence(records) is None else {LEFT_OUT: "diverged"}
    return {**evaluations(records), **diverged}


def rows(runs: Sequence[Run], *, root: Path) -> list[Row]:
    """Returns the rows of the runs that do not go on; those of runs that were stopped early have no measurements."""
    found: list[Row] = []
    for run in runs:
        folder = results.folder_of(run, root)
        state = results.state_of(folder)
        if state == "finished":
            found.append(results.row_of(run, folder, reduce=measured))
        elif state in results.ENDED:
            found.append({"run": run.name, **run.labels, LEFT_OUT: state})
    return found
