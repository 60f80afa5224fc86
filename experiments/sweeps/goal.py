"""The goal of a sweep: the metric that its points are compared by, and whether it is to be maximal or minimal."""

import collections
from collections.abc import Sequence
from typing import NamedTuple

from data.assumed import make_or_assume
from experiments.study.run import Mode, Run
from models.tasks import Task
from runs.errors import ConfigError
from training.task import make_task, open_source

TIMES = ("simulated_seconds",)  # quantities of an evaluation besides the metrics of the task


class Goal(NamedTuple):
    """A metric of an evaluation, and which of its values are better."""

    metric: str
    mode: Mode

    @classmethod
    def of(cls, runs: Sequence[Run], *, metric: str | None = None, mode: Mode | None = None) -> "Goal":
        """Returns the goal of a sweep; nothing is compiled, and no device is used.

        Args:
          runs: its runs, which have the same task.
          metric: name of the metric; None for the task's own.
          mode: which values are better; None for the task's own metric's, and otherwise "max" for accuracies and "min"
            for all else.

        Raises:
          ValueError: one line, if the task has no such metric, or no run has a task that can be built.

        >>> Goal.of([Run(labels={}, spec="configs/digits.py")])
        Goal(metric='accuracy', mode='max')
        """
        task = task_of(runs)
        own, own_mode = task.best
        if metric is None:
            metric = own
        elif metric not in (known := [*metrics_of(task), *TIMES]):
            raise ValueError(f"metric={metric!r}: is not evaluated; allowed: {', '.join(known)}")
        if mode is None:
            mode = own_mode if metric == own else "max" if metric.endswith("accuracy") else "min"
        return cls(metric, mode)

    @property
    def sign(self) -> int:
        """1 if larger values are better, else -1."""
        return 1 if self.mode == "max" else -1


def task_of(runs: Sequence[Run]) -> Task:
    """Returns the task of the first run that has one; a run whose parts do not fit each other fails when it starts.

    Raises:
      ConfigError: one line, the error of the first run if none has a task.
    """
    errors = []
    for run in runs:
        try:
            config = run.load()
            return make_task(config, source=open_source(config, open_data=make_or_assume))
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def metrics_of(task: Task) -> list[str]:
    """Returns the names of the metrics that a task computes from its sums."""
    return sorted(task.metrics(collections.defaultdict(lambda: 1.0)))
