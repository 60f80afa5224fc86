"""The finished and the missing runs of an experiment; some depend on values that are picked from the rows of others."""

from pathlib import Path
from typing import Literal, NamedTuple

from experiments import claims
from experiments.execution import forecast, results, saved_rows
from experiments.execution.stages import Stage, stages
from experiments.study.claim import Claim
from experiments.study.run import Row, Rows, Run, Scale
from launch.output import say

Start = Literal["saved", "anew"]  # whether saved rows count as finished runs, or the folders of this machine alone


class Progress(NamedTuple):
    """How far the runs of an experiment are at a scale.

    Attributes:
      name: the experiment's name.
      experiment: the experiment.
      scale: the scale of the runs.
      root: the folder that holds their folders.
      stages: of its runs.
      saved: its saved rows, but for those that were made under another rule.
    """

    name: str
    experiment: Claim
    scale: Scale
    root: Path
    stages: list[Stage]
    saved: list[Row]

    @property
    def runs(self) -> list[Run]:
        """All runs that the finished ones give rise to."""
        return self.stages[-1].runs

    @property
    def rows(self) -> list[Row]:
        """Rows of the finished runs."""
        return self.stages[-1].rows

    def __str__(self) -> str:
        counts = f"{len(self.rows)} of {len(self.runs)} runs are finished"
        _, time = forecast.time_of(self.experiment, self.scale, published=results.published(self.name))
        return f"{self.name} at scale {self.scale}: {counts}; all take {time}"


def progress_of(name: str, *, scale: Scale, out: Path, start: Start = "saved") -> Progress:
    """Returns how far an experiment is; says on standard error how many saved rows do not count, and why.

    Args:
      name: the experiment.
      scale: the scale of the runs.
      out: the folder of the folders of experiments.
      start: whether saved rows count as finished runs.

    Raises:
      ValueError: one line, if there is no such experiment, it has no such scale, or a saved row is damaged.
    """
    experiment, root = claims.load(name), out / name / scale
    if scale not in experiment.hours:
        raise ValueError(f"scale={scale!r}: {name} has {', '.join(experiment.hours)}")
    saved, alike = saved_rows.read(name, scale) if start == "saved" else [], experiment.decides_alike
    current = saved_rows.current(saved, scale, alike=alike)

    def wanted(rows: Rows) -> list[Run]:
        with experiment.reading_rows():
            return list(experiment.runs(scale, rows))

    def finished(runs: list[Run]) -> list[Row]:
        return results.finished(runs, root=root, reduce=experiment.reduce, scale=scale, saved=current)

    found = list(stages(wanted, finished))
    if note := saved_rows.note(saved, scale, alike=alike, runs=found[-1].runs, finished=found[-1].rows):
        say(f"{name}: {note}", error=True)
    return Progress(name, experiment, scale, root, found, current)
