"""Rows of an experiment that is not whole yet, in the repository, so that other machines go on from them."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def refusals(rows: Rows, scale: Scale, *, alike: Container[str]) -> list[str]:
    """Returns, for each row, why no run of a claim as it is stated now can have it; "" if one can.

    Args:
      rows: the rows.
      scale: the scale of the runs.
      alike: hashes of the texts of rules that decide as the one of now.
    """

    def refusal(origin: Mapping[str, Any]) -> str:
        if origin.get("scale") != scale:
            return "made at another scale"
        return "" if (origin.get("rule") or {}).get("hash") in alike else "made under another rule"

    return [refusal(row["origin"]) for row in rows]


def current(rows: Rows, scale: Scale, *, alike: Container[str]) -> list[Row]:
    """Returns the rows that runs of a claim can have as it is stated now; the arguments are those of `refusals`."""
    return [row for row, why in zip(rows, refusals(rows, scale, alike=alike), strict=True) if not why]


def note(rows: Rows, scale: Scale, *, alike: Container[str], runs: Sequence[Run], finished: Rows) -> str:
    """Returns how many saved rows do not count as finished runs, and why; "" if all do.

    Args:
      rows: the saved rows.
      scale, alike: as of `refusals`.
      runs: all runs of the claim.
      finished: rows of the finished ones, whether from their folders or saved.
    """
    known, done = {run.name for run in runs}, {row["run"] for row in finished}

    def why_not(row: Row) -> str:
        if row["run"] not in known:
            return "of runs that the experiment does not have, or not yet"
        return "" if row["run"] in done else "made with another config"

    refused = zip(rows, refusals(rows, scale, alike=alike), strict=True)
    reasons = Counter(reason for row, why in refused if (reason := why or why_not(row)))
    if not reasons:
        return ""
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{reasons.total()} of {len(rows)} saved rows do not count as finished runs: {counts}"
