"""How far the runs of an experiment are, of which some depend on values that are picked from the rows of others."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.execution import results, saved_rows
from experiments.execution.stages import Stage, stages
from experiments.study.claim import Claim
from experiments.study.run import Row, Rows, Run, Scale


class Progress(NamedTuple):
    """How far the runs of an experiment are.

    Attributes:
      stages: of its runs.
      saved: its saved rows, but for those that were made under another rule.
      note: how many saved rows do not count as finished runs, and why; "" if all do.
    """

    stages: list[Stage]
    saved: list[Row]
    note: str

    @property
    def runs(self) -> list[Run]:
        """All runs that the finished ones give rise to."""
        return self.stages[-1].runs

    @property
    def rows(self) -> list[Row]:
        """Rows of the finished runs."""
        return self.stages[-1].rows


def progress_of(experiment: Claim, scale: Scale, *, root: Path, saved: Rows = ()) -> Progress:
    """Returns how far the runs of an experiment are.

    Args:
      experiment: the experiment.
      scale: the scale of the runs.
      root: the folder that holds their folders.
      saved: its saved rows, of which some may not count any more.
    """
    alike = experiment.decides_alike
    current = saved_rows.current(saved, scale, alike=alike)

    def wanted(rows: Rows) -> Sequence[Run]:
        with experiment.reading_rows():
            return experiment.runs(scale, rows)

    found = stages(
        wanted,
        lambda runs: results.finished(runs, root=root, reduce=experiment.reduce, scale=scale, saved=current),
    )
    *before, last = found
    note = saved_rows.note(saved, scale, alike=alike, runs=last.runs, finished=last.rows)
    return Progress([*before, last], current, note)
