"""How far the runs of an experiment are, of which some depend on values that are picked from the rows of others."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.execution import results, saved_rows
from experiments.study.experiment import Experiment, Row, Rows, Run, Scale


class Stage(NamedTuple):
    """The runs that are known at a time.

    Attributes:
      runs: all that the finished ones give rise to, in their order.
      new: those that were in no stage before.
      rows: rows of the finished ones.
    """

    runs: list[Run]
    new: list[Run]
    rows: list[Row]


def stages(wanted: Callable[[Rows], Sequence[Run]], finished: Callable[[Sequence[Run]], list[Row]]) -> Iterator[Stage]:
    """Yields the stages, as far as runs are finished when each is asked for; the last one has no new runs.

    Args:
      wanted: rows so far -> runs.
      finished: runs -> rows of the finished ones.

    >>> def wanted(rows):
    ...     return [Run(labels={"rate": 1}), *(Run(labels={"rate": row["best"], "seed": 0}) for row in rows[:1])]
    >>> of_stages = stages(wanted, lambda runs: [{"run": run.name, "best": 1} for run in runs])
    >>> [[run.name for run in stage.new] for stage in of_stages]
    [['rate=1'], ['rate=1,seed=0'], []]
    """
    stage = Stage([], [], [])
    while True:
        known, rows = {run.name for run in stage.runs}, finished(stage.runs)
        runs = list(wanted(rows))
        stage = Stage(runs, [run for run in runs if run.name not in known], rows)
        yield stage
        if not stage.new:
            return


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


def progress_of(experiment: Experiment, scale: Scale, *, root: Path, saved: Rows = ()) -> Progress:
    """Returns how far the runs of an experiment are.

    Args:
      experiment: the experiment.
      scale: the scale of the runs.
      root: the folder that holds their folders.
      saved: its saved rows, of which some may not count any more.
    """
    current = saved_rows.current(saved, experiment, scale)

    def wanted(rows: Rows) -> Sequence[Run]:
        with experiment.reading_rows():
            return experiment.runs(scale, rows)

    found = stages(
        wanted,
        lambda runs: results.finished(runs, root=root, reduce=experiment.reduce, scale=scale, saved=current),
    )
    *before, last = found
    note = saved_rows.note(saved, experiment, scale, runs=last.runs, finished=last.rows)
    return Progress([*before, last], current, note)
