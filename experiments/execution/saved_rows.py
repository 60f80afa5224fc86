"""Rows of an experiment that is not whole yet, in the repository, so that other machines go on from them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.execution import results
from experiments.study.experiment import Experiment, Row, Rows, Run, Scale


def path_of(name: str, scale: Scale) -> Path:
    """Returns the path of the saved rows of an experiment."""
    return results.PUBLISHED / name / f"unfinished-{scale}.jsonl"


def read(name: str, scale: Scale) -> list[Row]:
    """Returns the saved rows of an experiment; an empty list if there are none.

    Raises:
      ValueError: one line, if a line is damaged, or is not the row of a run.
    """
    return [*results.read_run_rows(path_of(name, scale))]


def refusal(row: Row, experiment: Experiment, scale: Scale) -> str:
    """Returns why no run of an experiment can have a row, as the experiment is stated now; "" if one can."""
    origin = row["origin"]
    if origin.get("scale") != scale:
        return "made at another scale"
    if not experiment.states((origin.get("rule") or {}).get("text", "")):
        return "made under another rule"
    return ""


def current(rows: Rows, experiment: Experiment, scale: Scale) -> list[Row]:
    """Returns the rows that runs of an experiment can have as it is stated now."""
    return [row for row in rows if not refusal(row, experiment, scale)]


def note(rows: Rows, experiment: Experiment, scale: Scale, *, runs: Sequence[Run], finished: Rows) -> str:
    """Returns how many saved rows do not count as finished runs, and why; "" if all do.

    Args:
      rows: the saved rows.
      experiment: the experiment.
      scale: the scale of its runs.
      runs: all its runs.
      finished: rows of the finished ones, whether from their folders or saved.
    """
    known, done = {run.name for run in runs}, {row["run"] for row in finished}

    def why_not(row: Row) -> str:
        if row["run"] not in known:
            return "of runs that the experiment does not have, or not yet"
        return "" if row["run"] in done else "made with another config"

    reasons = Counter(reason for row in rows if (reason := refusal(row, experiment, scale) or why_not(row)))
    if not reasons:
        return ""
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{reasons.total()} of {len(rows)} saved rows do not count as finished runs: {counts}"
