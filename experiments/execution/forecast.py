"""How long the runs of an experiment will take: recorded times where rows are published, else its own estimate."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from experiments.study.experiment import AnyClaim
from experiments.study.run import Row, Rows, Run, Scale


class Forecast(NamedTuple):
    """How long runs take one after another.

    Attributes:
      seconds: name of a run -> its seconds.
      basis: where these come from, in words.
    """

    seconds: dict[str, float]
    basis: str

    @property
    def total(self) -> float:
        """The seconds of all runs."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        return f"{minutes(self.total)} ({self.basis})"


def forecast(experiment: AnyClaim, scale: Scale, runs: Sequence[Run], *, published: Rows) -> Forecast:
    """Returns the time of each run: as recorded, or else by its cost.

    A run without a published row costs what published runs of this scale do, in proportion to ``Run.cost``; where none
    is published, the runs divide the estimated hours of the experiment among them.

    Args:
      experiment: the experiment.
      scale: the scale of the runs.
      runs: all runs of the experiment at that scale, as far as they are known.
      published: the experiment's published rows.
    """
    rows = of_scale(published, scale)
    times = {row["run"]: row["origin"]["wall_seconds"] for row in rows}
    recorded = {run: seconds for run, seconds in times.items() if seconds is not None}  # 0.0: less than 0.05 s
    measured = [run for run in runs if run.name in recorded]
    if measured:
        basis = f"measured on {machines(rows)}"
        if len(measured) < len(runs):
            basis += f", {len(runs) - len(measured)} of {len(runs)} runs by their cost"
        unit = sum(recorded[run.name] for run in measured) / (sum(run.cost for run in measured) or 1.0)
    else:
        basis = "estimated, never measured"
        unit = 3600 * experiment.hours[scale] / (sum(run.cost for run in runs) or 1.0)
    return Forecast({run.name: recorded.get(run.name, unit * run.cost) for run in runs}, basis)


def all_runs(experiment: AnyClaim, scale: Scale, rows: Rows, *, published: Rows) -> list[Run]:
    """Returns the runs that the finished ones give rise to, then those that will come later, as far as can be known.

    Runs with a value that is picked come once the rows to pick from are finished. Until then published runs stand for
    them, and where none is published runs with a value from the middle of the grid.

    Args:
      experiment: the experiment.
      scale: the scale of the runs.
      rows: rows of the finished runs.
      published: the experiment's published rows.
    """
    ahead = of_scale(published, scale) or rows
    with experiment.reading_rows():
        known, whole = list(experiment.runs(scale, rows)), list(experiment.runs(scale, ahead))
        if experiment.tuned:
            whole += experiment.tuned.awaited_runs(scale, ahead)
    names = {run.name for run in known}
    return known + [run for run in whole if run.name not in names][: max(0, len(whole) - len(known))]


def of_scale(rows: Rows, scale: Scale) -> list[Row]:
    """Returns the rows of runs of a scale."""
    return [row for row in rows if row["origin"].get("scale") == scale]


def machines(rows: Rows) -> str:
    """Returns in words the machines that rows come from.

    >>> machines([{"origin": {"devices": ["cpu:0 cpu"], "cores": 2}}, {"origin": {"devices": ["cuda:0 NVIDIA H100"]}}])
    'cpu (2 cores), NVIDIA H100'
    """
    return ", ".join(sorted({machine(row) for row in rows}, key=str.lower))


def machine(row: Row) -> str:
    """Returns in words the devices that a row comes from, and for CPUs the cores that the run had.

    >>> machine({"origin": {"devices": ["cuda:0 NVIDIA H100", "cuda:1 NVIDIA H100"], "cores": 16}})
    '2 x NVIDIA H100'
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
    found = seconds / 60
    if found >= 120:
        return f"{found / 60:,.1f} h" if found < 6000 else f"{found / 60:,.0f} h"
    return f"{found:.2g} min" if found < 1 else f"{found:.1f} min" if found < 10 else f"{found:.0f} min"
