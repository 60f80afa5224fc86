"""Rows of an unfinished experiment, saved in the repository, so that other machines go on from them."""

from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path

from experiments.execution import results
from experiments.study.run import Row, Rows, Run, Scale


def path_of(name: str, scale: Scale) -> Path:
    """Returns the path of the saved rows of an experiment."""
    return results.PUBLISHED / name / f"unfinished-{scale}.jsonl"


def read(name: str, scale: Scale) -> list[Row]:
    """Returns the saved rows of an experiment; an empty list if there are none.

    Raises:
      ValueError: one line, if a line is damaged, or is not the row of a run.
    """
    return [*results.read_run_rows(path_of(name, scale))]


def refusal(row: Row, scale: Scale, *, alike: Container[str]) -> str:
    """Returns why a row cannot belong to a run of the claim as it is stated now; "" if it can.

    Args:
      row: the row.
      scale: the scale of the runs.
      alike: hashes of the texts of rules that decide as the present one does.
    """
    if row["origin"].get("scale") != scale:
        return "made at another scale"
    return "" if (row["origin"].get("rule") or {}).get("hash") in alike else "made under another rule"


def current(rows: Rows, scale: Scale, *, alike: Container[str]) -> list[Row]:
    """Returns the rows that runs of a claim can have as it is stated now; the arguments are those of `refusal`."""
    return [row for row in rows if not refusal(row, scale, alike=alike)]


def note(rows: Rows, scale: Scale, *, alike: Container[str], runs: Sequence[Run], finished: Rows) -> str:
    """Returns how many saved rows do not count as finished runs, and why; "" if all do.

    Args:
      rows: the saved rows.
      scale, alike: see `refusal`.
      runs: all runs of the claim.
      finished: rows of the finished ones, whether from their folders or saved.
    """
    known, done = {run.name for run in runs}, {row["run"] for row in finished}
    reasons: Counter[str] = Counter()
    for row in rows:
        if why := refusal(row, scale, alike=alike):
            reasons[why] += 1
        elif row["run"] not in known:
            reasons["of runs that the experiment does not have, or not yet"] += 1
        elif row["run"] not in done:
            reasons["made with another config"] += 1
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return counts and f"{reasons.total()} of {len(rows)} saved rows do not count as finished runs: {counts}"
