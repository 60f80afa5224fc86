"""Runs that depend on values which are picked from the rows of others: they become known stage by stage."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from experiments.study.run import Row, Rows, Run


class Stage(NamedTuple):
    """The runs that are known at some time.

    Attributes:
      runs: all runs that are known from the finished ones, in order.
      new: those that were in no stage before.
      rows: rows of the finished ones.
    """

    runs: list[Run]
    new: list[Run]
    rows: list[Row]


def stages(wanted: Callable[[Rows], Sequence[Run]], finished: Callable[[list[Run]], list[Row]]) -> Iterator[Stage]:
    """Yields stages by the runs that are finished when each is requested; the last one has no new runs.

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
