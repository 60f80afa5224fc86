"""The identity of a run: its config.json, and how another config differs from it."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reducers.arrivals import foreign_files
from runs import files

# These keys do not make another experiment. The folder of the data depends on the machine; if it determines the
# examples, a resumed run compares their fingerprint. The treatment of numbers that are not finite changes nothing in a
# run without any, and a run that stopped at one may go on with another. How many lanes compute at once, how many
# devices a worker has, and what of it lies in parts on them, depend on the machine, and change results by rounding
# alone. How often replicas are compared changes no result.
NOT_IDENTITY = (
    "data.dir",
    "on_nonfinite",
    "lanes_at_once",
    "devices_per_worker",
    "partition",
    "check_replicas_every_steps",
)

# A run may get more steps, or may log and save at other times, and is still the same experiment: it goes on from where
# it was. These keys are part of the fingerprint, and so of the default folder.
LENGTHS = ("train_steps", "train_epochs")
CADENCES = (
    *(f"{what}_every_{unit}" for what in ("log", "eval", "checkpoint") for unit in ("steps", "epochs")),
    "keep_checkpoints",
)

# Configs of published rows lacked the first four keys, and had another name for the last one. A config with these
# values has the same fingerprint as theirs, so that the rows still belong to their runs.
_NOT_IN_FINGERPRINT: Mapping[str, Any] = {
    "outer": {"name": "none"},
    "late_workers": "interrupt",
    "weigh": "workers",
    "split": {"name": "shuffled"},
}
_IN_FINGERPRINT_AS = {"mapping": "lift"}

_ABSENT = object()
_MAX_SHOWN = 5
WAY_OUT = "use another --workdir, or --fresh"


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config as if read from JSON: tuples become lists."""
    return json.loads(json.dumps(config, allow_nan=False))


def expand(folder: str, *, key: str = "workdir") -> Path:
    """Returns the path of a folder, with ~ and ~user expanded.

    Args:
      folder: the folder as the user wrote it.
      key: name of the folder in an error.

    Raises:
      ValueError: in one line, if the user or their home folder is not known, or if the path is not UTF-8, which
        libraries write into files.
    """
    try:
        path = Path(folder).expanduser()
        os.path.abspath(path).encode()
    except RuntimeError as error:
        raise ValueError(f"{key}={folder!r}: {error}") from None
    except UnicodeEncodeError:
        way_out = "rename the folder, or set PYTHONUTF8=1 if it is the locale that is not UTF-8"
        raise ValueError(f"{key}={folder!r}: its path must be UTF-8; {way_out}") from None
    return path


def check_same(path: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Raises ValueError if a folder has another experiment; returns the folder's config, None if it has no run.

    Raises:
      ValueError: in one line that lists the first few differing keys with both values, or says that config.json is
        damaged or missing.
    """
    saved = read_object(path / "config.json", way_out=WAY_OUT)
    if saved is None:
        if left := [name for name in ("metrics.jsonl", "checkpoints") if (path / name).exists()]:
            named = " and ".join(left)
            raise ValueError(f"workdir={str(path)!r}: holds {named} of a run but no config.json; {WAY_OUT}")
    elif (found := differences(saved, config)) and not goes_on(saved, config):
        more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        keys = "; ".join(found[:_MAX_SHOWN]) + more
        raise ValueError(f"workdir={str(path)!r}: holds a run with another config: {keys}; {WAY_OUT}")
    return saved


def differences(saved: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Returns the keys in which two configs differ, except for NOT_IDENTITY, with both values.

    A block with another name is one difference, because the name determines its other keys.

    >>> differences({"a": {"name": "x", "k": 1}, "b": 2}, {"a": {"name": "y"}, "b": 3})
    ["a.name='x' in the folder, 'y' now", 'b=2 in the folder, 3 now']
    """
    old, new = (dict(flatten(plain(config))) for config in (saved, config))
    values = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted(old.keys() | new.keys())}
    differing = []
    for key, (before, now) in values.items():
        if before != now or isinstance(before, bool) != isinstance(now, bool):  # True == 1 in Python
            differing.append(key)
    found = []
    for key in without_renamed(differing):
        if key not in NOT_IDENTITY:
            before, now = map(_shown, values[key])
            found.append(f"{key}={before} in the folder, {now} now")
    return found


def goes_on(saved: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Returns whether a saved run can go on with a config: it has the same one, or more steps, or other cadences.

    >>> goes_on({"seed": 0, "train_steps": 5}, {"seed": 0, "train_steps": 9, "log_every_steps": 2})
    True
    >>> goes_on({"seed": 0, "train_steps": 9}, {"seed": 0, "train_steps": 5})
    False
    """
    return is_longer(saved, config) or _differ_in_none_but(CADENCES, saved, config)


def is_longer(saved: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Returns whether a config is that of a saved one with more steps, in the same unit."""
    is_any = False
    for key in LENGTHS:
        before, now = saved.get(key), config.get(key)
        if before != now:
            is_any = True
            if not (isinstance(before, int | float) and isinstance(now, int | float) and before < now):
                return False
    return is_any and _differ_in_none_but((*CADENCES, *LENGTHS), saved, config)


def _differ_in_none_but(free: Sequence[str], saved: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    old, new = ({key: value for key, value in one.items() if key not in free} for one in (saved, config))
    return not differences(old, new)


def without_renamed(keys: Sequence[str]) -> list[str]:
    """Returns the differing keys without the other keys of blocks whose name differs.

    >>> without_renamed(["a.k", "a.name", "b"])
    ['a.name', 'b']
    """
    renamed = tuple(key.removesuffix("name") for key in keys if key.endswith(".name"))
    return [key for key in keys if key.endswith(".name") or not key.startswith(renamed)]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the keys of nested dicts, joined by dots, with their values.

    >>> dict(flatten({"a": {"name": "x", "k": 1}, "b": {}}))
    {'a.name': 'x', 'a.k': 1, 'b': {}}
    """
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def fingerprint(config: Mapping[str, Any]) -> str:
    """Returns 64 hexadecimal digits that are equal for configs of the same experiment.

    >>> fingerprint({"seed": 0, "data": {"dir": "x"}}) == fingerprint({"data": {"dir": "y"}, "seed": 0})
    True
    """
    kept = {
        _IN_FINGERPRINT_AS.get(key, key): value
        for key, value in config.items()
        if key not in _NOT_IN_FINGERPRINT or value != _NOT_IN_FINGERPRINT[key]
    }
    identity = sorted((key, value) for key, value in flatten(plain(kept)) if key not in NOT_IDENTITY)
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def read_object(path: Path, *, way_out: str = "move it away") -> dict[str, Any] | None:
    """Returns the JSON object in a file of a run's folder, or None if the file does not exist.

    Raises:
      ValueError: in one line, if it is damaged or cannot be read.
    """
    try:
        value = files.from_json(foreign_files.content(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"workdir={str(path.parent)!r}: {path.name} cannot be read ({error.strerror})") from error
    except ValueError as error:  # not JSON, or not text
        raise damaged(path, str(error), way_out=way_out) from error
    if not isinstance(value, dict):
        raise damaged(path, "not an object", way_out=way_out)
    return value


def damaged(path: Path, damage: str, *, way_out: str = "move it away") -> ValueError:
    """Returns the error of one line for a damaged file of a run's folder."""
    return ValueError(f"workdir={str(path.parent)!r}: {path.name} is damaged ({damage}); mend it, or {way_out}")


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
