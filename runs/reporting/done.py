"""DONE, the mark of a finished run: its summary, and the hashes of the files that hold its results.

A bit that flips in one of these files, or a line that is lost, would change what a sweep or a claim finds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reducers.arrivals import foreign_files
from runs import files, identity

NAME = "DONE"
HASHED = ("config.json", "metrics.jsonl", "row.jsonl", "rule.json", "labels.csv", "staleness.csv")


def content(folder: Path, summary: Mapping[str, Any]) -> bytes:
    """Returns the content of DONE: a summary, the hashes of the files in the folder, and one of itself."""
    hashes = {name: found for name in HASHED if (found := _sha256(folder / name)) is not None}
    return files.to_json(files.sealed({**files.encode_numbers(summary), "files": hashes}))


def read(folder: Path) -> dict[str, Any] | None:
    """Returns the summary of a finished run; None if the run is not finished.

    Raises:
      ValueError: one line, if DONE is damaged.
    """
    return _read(folder)[0]


def check(folder: Path) -> None:
    """Raises ValueError if a finished run's files have changed; does nothing for a run that is not finished.

    Raises:
      ValueError: one line that names the first changed file.
    """
    _, hashes = _read(folder)
    for name, known in hashes.items():
        found = _sha256(folder / name)
        if found != known and _read(folder)[1] == hashes:  # else the run now goes on with more steps
            fault = "is missing" if found is None else "was changed"
            raise ValueError(
                f"{str(folder)!r}: {name} {fault} since the run was finished; copy the folder again, or run it anew"
            )


def _read(folder: Path) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Returns the summary and the hashes."""
    body = identity.read_object(folder / NAME, way_out="remove it")
    if body is None:
        return None, {}
    if not files.is_sealed(body):
        raise identity.damaged(folder / NAME, "it was changed", way_out="remove it")
    del body["sha256"]
    hashes = body.pop("files")
    return files.decode_numbers(body), hashes


def _sha256(path: Path) -> str | None:
    try:
        return foreign_files.sha256(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
