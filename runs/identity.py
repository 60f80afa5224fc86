"""Which experiment a folder holds: its config.json, and how another config differs from it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runs import files

# Where the data lie is a matter of the machine: the same experiment may go on where they lie elsewhere. What is done
# about a number that is not finite says nothing of a run that meets none, and one that stopped at it may go on.
NOT_IDENTITY = ("data.dir", "on_nonfinite")

_ABSENT = object()
_MAX_SHOWN = 5
_WAY_OUT = "use another --workdir, or --fresh"


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as JSON gives it back: tuples become lists."""
    return json.loads(json.dumps(config, allow_nan=False))


def read_config(workdir: str) -> dict[str, Any] | None:
    """The config of the run in a folder, or None where no run was started.

    Raises:
        ValueError: in one line, if config.json is damaged.
    """
    return read_object(workdir, expand(workdir) / "config.json", way_out=_WAY_OUT)


def expand(workdir: str) -> Path:
    """A folder as people name it, ~ and ~user included.

    Raises:
        ValueError: if there is no such user.
    """
    try:
        return Path(workdir).expanduser()
    except RuntimeError as error:
        raise ValueError(f"workdir={workdir!r}: {error}") from None


def check_same(workdir: str, config: Mapping[str, Any]) -> None:
    """Refuses a folder that holds another experiment.

    Raises:
        ValueError: in one line that lists the first few differing keys with both values.
    """
    there = read_config(workdir)
    if there is None:
        path = expand(workdir)
        if left := [name for name in ("metrics.jsonl", "checkpoints") if (path / name).exists()]:
            named = " and ".join(left)
            raise ValueError(f"workdir={workdir!r}: holds {named} of a run but no config.json; {_WAY_OUT}")
    elif found := differences(there, config):
        more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        keys = "; ".join(found[:_MAX_SHOWN]) + more
        raise ValueError(f"workdir={workdir!r}: holds a run with another config: {keys}; {_WAY_OUT}")


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Where two configs differ, as "dotted.key=<there> there, <here> here", but for NOT_IDENTITY.

    A block whose name differs counts as one difference: its other keys belong to the name.

    >>> differences({"a": {"name": "x", "k": 1}, "b": 2}, {"a": {"name": "y"}, "b": 3})
    ["a.name='x' there, 'y' here", 'b=2 there, 3 here']
    """
    old, new = dict(_flatten(plain(there))), dict(_flatten(plain(here)))
    keys = sorted(key for key in old.keys() | new.keys() if not _same(old.get(key, _ABSENT), new.get(key, _ABSENT)))
    renamed = tuple(key.removesuffix("name") for key in keys if key.endswith(".name"))
    return [
        f"{key}={_shown(old.get(key, _ABSENT))} there, {_shown(new.get(key, _ABSENT))} here"
        for key in keys
        if key not in NOT_IDENTITY and (key.endswith(".name") or not key.startswith(renamed))
    ]


def fingerprint(config: Mapping[str, Any]) -> str:
    """A name for an experiment: 64 hexadecimal digits, the same for configs that `check_same` holds to be the same.

    >>> fingerprint({"seed": 0, "data": {"dir": "x"}}) == fingerprint({"data": {"dir": "y"}, "seed": 0})
    True
    """
    identity = sorted((key, value) for key, value in _flatten(plain(config)) if key not in NOT_IDENTITY)
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def read_object(workdir: str, path: Path, *, way_out: str) -> dict[str, Any] | None:
    """A JSON object from one of the folder's own files, or None where there is no such file."""
    try:
        value = files.from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"workdir={workdir!r}: {path.name} cannot be read ({error.strerror})") from error
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"workdir={workdir!r}: {path.name} is damaged ({error}); mend it, or {way_out}") from error
    if not isinstance(value, dict):
        raise ValueError(f"workdir={workdir!r}: {path.name} is damaged (not an object); mend it, or {way_out}")
    return value


def _same(old: Any, new: Any) -> bool:
    # Python holds True == 1; a config does not.
    return old == new and isinstance(old, bool) == isinstance(new, bool)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
