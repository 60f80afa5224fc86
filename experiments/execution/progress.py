"""The finished and the missing runs of an experiment, and how long all take by the times of its published rows."""

import re
from pathlib import Path
from typing import NamedTuple

from experiments import claims
from experiments.execution import results, saved_rows
from experiments.execution.stages import Stage, stages
from experiments.study.claim import Claim
from experiments.study.run import Row, Rows, Run, Scale
from launch.output import say


class Progress(NamedTuple):
    """How far the runs of an experiment are at a scale.

    Attributes:
      name: the experiment's name.
      experiment: the experiment.
      scale: the scale of the runs.
      root: the folder that holds their folders.
      stages: the stages of its runs.
      saved: its saved rows that count under the present rule.
    """

    name: str
    experiment: Claim
    scale: Scale
    root: Path
    stages: list[Stage]
    saved: list[Row]

    @property
    def runs(self) -> list[Run]:
        """All runs that are known from the finished ones."""
        return self.stages[-1].runs

    @property
    def rows(self) -> list[Row]:
        """Rows of the finished runs."""
        return self.stages[-1].rows

    def __str__(self) -> str:
        counts = f"{len(self.rows)} of {len(self.runs)} runs are finished"
        _, time = time_of(self.experiment, self.scale, published=results.published(self.name))
        return f"{self.name} at scale {self.scale}: {counts}; all take {time}"


def progress_of(name: str, *, scale: Scale, out: Path, anew: bool = False) -> Progress:
    """Returns how far an experiment is; says on standard error how many saved rows do not count, and why.

    Args:
      name: the experiment.
      scale: the scale of the runs.
      out: the folder of the folders of experiments.
      anew: whether only folders of this machine count as finished runs, and no saved rows.

    Raises:
      ValueError: one line, if there is no such experiment, it has no such scale, or a saved row is damaged.
    """
    experiment, root = claims.load(name), out / name / scale
    if scale not in experiment.hours:
        raise ValueError(f"scale={scale!r}: {name} has {', '.join(experiment.hours)}")
    saved = [] if anew else saved_rows.read(name, scale)
    alike = experiment.decides_alike
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


def time_of(experiment: Claim, scale: Scale, *, published: Rows) -> tuple[float, str]:
    """Returns the seconds of all runs one after another, and a text with the source of this number.

    Args:
      experiment: the experiment.
      scale: the scale of the runs.
      published: the experiment's published rows.
    """
    rows = of_scale(published, scale)
    recorded = [row["origin"]["wall_seconds"] for row in rows]
    measured = [seconds for seconds in recorded if seconds is not None]
    total, basis = 3600 * experiment.hours[scale], "estimated, never measured"
    if measured:
        machines = sorted({machine(row) for row in rows}, key=str.lower)
        total, basis = sum(measured), f"measured on {', '.join(machines)}"
    return total, f"{minutes(total)} ({basis})"


def of_scale(rows: Rows, scale: Scale) -> list[Row]:
    """Returns the rows of runs of a scale."""
    return [row for row in rows if row["origin"].get("scale") == scale]


def machine(row: Row) -> str:
    """Returns in words the devices that a row comes from, and for CPUs the cores that the run had.

    >>> machine({"origin": {"devices": ["cuda:0 NVIDIA H100", "cuda:1 NVIDIA H100"], "cores": 16}})
    '2 x NVIDIA H100'
    >>> machine({"origin": {"devices": ["cpu:0 cpu"], "cores": 2}})
    'cpu (2 cores)'
    """
    devices, cores = row["origin"]["devices"], row["origin"].get("cores")
    kind = re.sub(r"^\w+:\d+ ", "", devices[0]) if devices else "an unknown device"
    if kind == "cpu":
        return f"cpu ({cores} cores)" if cores else "cpu"
    return kind if len(devices) == 1 else f"{len(devices)} x {kind}"


def minutes(seconds: float) -> str:
    """Returns a time in minutes, or in hours if it is many.

    >>> minutes(2), minutes(150), minutes(2000), minutes(16043), minutes(7.2e7)
    ('0.033 min', '2.5 min', '33 min', '4.5 h', '20,000 h')
    """
    found, unit = (seconds / 3600, "h") if seconds >= 7200 else (seconds / 60, "min")
    return f"{float(f'{found:.2g}'):,g} {unit}"
