"""Runs on disk: finds them below a folder, reads their files, and lists the keys by which they differ."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import runs as run_folders
from runs import identity
from runs.reporting import done

Record = Mapping[str, Any]
Config = Mapping[str, Any]

MARKS = ("config.json", "metrics.jsonl")  # a folder with one of these is the folder of a run
NOT_SEARCHED = {"checkpoints", "profile", "tensorboard", "xla", "compiled"}
MAX_LABEL = 120  # characters; runs whose values are longer are named by their folders


class SavedRun(NamedTuple):
    """A run as read from its folder.

    Attributes:
      records: its train and evaluation records.
      config: its config; None if the folder has none.
      folder: its folder.
      lost: which steps' records are lost, in words; "" if none are.
    """

    records: Sequence[Record]
    config: Config | None
    folder: Path
    lost: str = ""


def below(folder: Path) -> Iterator[Path]:
    """Yields the folders of the runs in a folder and below it, sorted; --fresh puts runs below others."""
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in NOT_SEARCHED and not name.startswith("."))
        if not set(files).isdisjoint(MARKS):
            yield Path(path)


def read(run: str) -> SavedRun:
    """Returns the train and evaluation records of a run, finished or not, and its config, if it has one.

    Raises:
      ValueError: one line, if the folder does not exist, holds no records, or is damaged, or if a file of a finished
        run has changed.
    """
    folder = Path(run).expanduser()
    if not folder.is_dir():
        raise ValueError(f"run={run!r}: {'is not a folder' if folder.exists() else 'no such folder'}")
    if not (folder / "metrics.jsonl").is_file():
        raise ValueError(f"run={run!r}: holds no metrics.jsonl; is it the folder of a run?")
    done.check(folder)
    records = run_folders.read(folder / "metrics.jsonl")
    found = [record for record in records if record["kind"] in ("train", "eval")]
    if not found:
        raise ValueError(f"run={run!r}: its metrics.jsonl holds no records yet")
    return SavedRun(found, identity.read_object(folder / "config.json"), folder, lost_of(records))


def lost_of(records: Sequence[Record]) -> str:
    """Returns in words which steps' records a run has noted as lost; "" if none are.

    >>> lost_of([{"kind": "train", "step": 1}, {"kind": "gap", "first_step": 2, "step": 4}])
    'the records of steps 2 to 4 are lost'
    """
    gaps = [f"{record.get('first_step')} to {record['step']}" for record in records if record["kind"] == "gap"]
    return f"the records of steps {', '.join(gaps)} are lost" if gaps else ""


def differing(configs: Sequence[Config]) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the dotted keys by which configs differ, and each config by its dotted keys.

    If a block's name differs, the block's other keys are left out.

    >>> differing([{"seed": 0, "reducer": {"name": "mean"}}, {"seed": 0, "reducer": {"name": "krum", "f": 1}}])[0]
    ['reducer.name']
    """
    flat = [dict(identity.flatten(config)) for config in configs]
    values: dict[str, set[str]] = {key: set() for config in flat for key in config}
    for key, found in values.items():
        found.update(repr(config.get(key)) for config in flat)
    return identity.without_renamed([key for key, found in values.items() if len(found) > 1]), flat


def labels(configs: Mapping[str, Config | None]) -> dict[str, str]:
    """Names each run by the config keys in which the runs differ; runs of equal names have their folders, too.

    If a block's name differs, the block's other keys are left out. Names that would be too long have keys without their
    blocks, and then the first keys that tell the runs apart. A run without a config has the name of its folder.

    >>> labels({"runs/a": {"seed": 0, "reducer": {"name": "mean"}}, "runs/b": {"seed": 0, "reducer": {"name": "sum"}}})
    {'runs/a': 'reducer=mean', 'runs/b': 'reducer=sum'}
    """
    folders = {run: Path(run).resolve().name for run in configs}
    if len(set(folders.values())) < len(folders):
        folders = {run: str(run) for run in configs}
    known = {run: config for run, config in configs.items() if config is not None}
    words = dict(zip(known, _words(*differing([*known.values()])), strict=True))
    found = {}
    for run, folder in folders.items():
        label = words.get(run) or folder
        found[run] = f"{label}, {folder}" if list(words.values()).count(label) > 1 else label
    return found


def _words(keys: Sequence[str], flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns each config's values of these keys, as short as `labels` says; "" if they are too long still."""

    def worded(names: Mapping[str, str]) -> list[str]:
        return [", ".join(f"{name}={own[key]}" for key, name in names.items() if key in own) for own in flat]

    names = {key: key.removesuffix(".name") for key in keys}
    found = worded(names)
    if max(map(len, found), default=0) > MAX_LABEL:
        names = {key: name.rpartition(".")[2] for key, name in names.items()}
        found = worded(names)
    for key in reversed(keys):
        fewer = worded({other: name for other, name in names.items() if other != key})
        if max(map(len, found)) > MAX_LABEL and len(set(fewer)) == len(set(found)):
            del names[key]
            found = fewer
    return found if max(map(len, found), default=0) <= MAX_LABEL else [""] * len(flat)


def by_seed(configs: Mapping[str, Config | None]) -> list[list[str]]:
    """Groups runs that differ in their seed alone; a run without a config is its own group.

    >>> by_seed({"a": {"seed": 0, "n": 2}, "b": {"seed": 1, "n": 2}, "c": {"seed": 0, "n": 4}})
    [['a', 'b'], ['c']]
    """
    groups: dict[str, list[str]] = {}
    for run, config in configs.items():
        groups.setdefault(run if config is None else run_folders.fingerprint(without_seed(config)), []).append(run)

    parts = []
    for group in groups.values():
        seeds = {repr((configs[run] or {}).get("seed")) for run in group}
        parts += [group] if len(seeds) == len(group) else [[run] for run in group]
    return parts


def without_seed(config: Config) -> dict[str, Any]:
    """Returns a config without its seed."""
    return {key: value for key, value in config.items() if key != "seed"}
