"""How long an experiment takes: the times of its published rows, or else its own estimate."""

import re

from experiments.study.claim import Claim
from experiments.study.run import Row, Rows, Scale


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
    if measured:
        machines = sorted({machine(row) for row in rows}, key=str.lower)
        total, basis = sum(measured), f"measured on {', '.join(machines)}"
    else:
        total, basis = 3600 * experiment.hours[scale], "estimated, never measured"
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
