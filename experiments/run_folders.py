"""Folders of runs as figures and tables read them: records, config, and a short name for each run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import runs
from runs import identity

MAX_LABEL = 60
"""Runs that need longer labels, in characters, are named by their folders."""


def read(run: str) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any] | None]:
    """Returns the train and evaluation records of a run, finished or not, and its config, if it has one.

    Raises:
        ValueError: one line, if the folder does not exist, holds nothing to draw, or is damaged.
    """
    folder = Path(run).expanduser()
    if not folder.is_dir():
        raise ValueError(f"run={run!r}: no such folder")
    if not (folder / "metrics.jsonl").is_file():
        raise ValueError(f"run={run!r}: holds no metrics.jsonl; is it the folder of a run?")
    found = [r for r in runs.read(folder / "metrics.jsonl") if r.get("kind") in ("train", "eval")]
    if not found:
        raise ValueError(f"run={run!r}: its metrics.jsonl holds no records yet")
    config = folder / "config.json"
    try:
        return found, runs.from_json(config.read_bytes()) if config.is_file() else None
    except ValueError as error:
        raise ValueError(f"run={run!r}: config.json is damaged ({error})") from None


def labels(configs: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """Names each run by the config keys in which the runs differ, or by its folder where those are not unique.

    Where a block's name differs, the block's other keys are left out.

    >>> labels({"runs/a": {"seed": 0, "reducer": {"name": "mean"}}, "runs/b": {"seed": 0, "reducer": {"name": "sum"}}})
    {'runs/a': 'reducer=mean', 'runs/b': 'reducer=sum'}
    """
    folders = {run: Path(run).resolve().name for run in configs}
    if len(set(folders.values())) < len(folders):
        folders = {run: str(run) for run in configs}
    flat = {run: dict(identity.flatten(config)) for run, config in configs.items() if config is not None}
    if len(flat) < len(configs):
        return folders
    keys = dict.fromkeys(key for config in flat.values() for key in config)
    differing = [key for key in keys if len({repr(config.get(key)) for config in flat.values()}) > 1]
    shown = identity.without_renamed(differing)
    named = {
        run: ", ".join(f"{key.removesuffix('.name')}={config[key]}" for key in shown if key in config)
        for run, config in flat.items()
    }
    are_unique = len(set(named.values())) == len(named) and all(0 < len(label) <= MAX_LABEL for label in named.values())
    return named if are_unique else folders
