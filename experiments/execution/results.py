"""Folders of runs, their states, and the row of each finished run."""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import runs as run_folders
from data import sources
from experiments.study.run import SCALES, Reduce, Row, Rows, Run, Scale, are_same, evaluations
from launch.output import printable
from reducers.arrivals import foreign_files
from runs.reporting import done as mark

State = Literal["finished", "held", "begun", "new"]
RULE = "rule.json"  # in the folder of an experiment's run: the rule as stated when the run began
MAX_NAME = 80  # bytes of a run's name in its folder's
PUBLISHED = Path(__file__).parents[1] / "claims"  # a folder for each, with its rows


def folder_of(run: Run, root: Path) -> Path:
    """Returns the folder of a run, named by its labels and a hash of everything that its result depends on.

    So runs of different configs never mix, and folders of several machines can be copied together. A run of a config
    that has a folder already keeps it, whatever its labels were.
    """
    name = printable(run.name).replace("/", "_").encode()[:MAX_NAME].decode(errors="ignore")  # values may be paths
    digits = run_folders.fingerprint(run.config)[:8]
    folder = root / f"{name}-{digits}"
    return folder if folder.exists() else min(root.glob(f"*-{digits}/"), default=folder)


def state_of(folder: Path) -> State:
    """Returns the state of the run in a folder; "held" means that a process is working on it."""
    if (folder / "DONE").exists():
        return "finished"
    with contextlib.suppress(OSError):  # a lock that cannot be opened: the run itself will report it
        if folder.exists() and run_folders.holder(folder):
            return "held"
    return "begun" if (folder / "config.json").exists() else "new"


def check_code(runs: Sequence[Run], *, root: Path, code_change: run_folders.CodeChange) -> None:
    """Makes sure that what the folders hold was made by the code as it is now.

    Args:
      runs: runs of a sweep.
      root: the folder that holds their folders.
      code_change: "refuse" raises an error; "accept" records the code in the folders of finished runs.

    Raises:
      ValueError: one line that names the files that differ.
    """
    for run in runs:
        folder = folder_of(run, root)
        starts = run_folders.read_starts(folder)
        changed = run_folders.changed_code(starts, run.code) + _changed_data(starts, run)
        if changed and code_change == "refuse":
            way_out = "another --out starts over, --accept_code_change keeps what is there"
            raise ValueError(f"{str(folder)!r}: {', '.join(changed)} changed since this run was started; {way_out}")
        if changed and state_of(folder) == "finished":
            devices = starts[-1].get("devices", ())
            inputs = run_folders.Inputs(run.code)
            run_folders.open_run(
                str(folder), run.config, devices=devices, inputs=inputs, code_change=code_change
            ).close()


def _changed_data(starts: Sequence[Mapping[str, Any]], run: Run) -> list[str]:
    """Returns the data of a run if they are there, and hold something else than at its last start."""
    before = starts[-1].get("data") if starts else None
    if not before:
        return []
    try:
        now = sources.make(**run.config["data"]).info.fingerprint
    except (ValueError, OSError):  # they are not here; what was made of them is
        return []
    return [] if now in ("", before) else ["config.data"]


def finished(
    runs: Sequence[Run], *, root: Path, reduce: Reduce = evaluations, scale: Scale | None = None, saved: Rows = ()
) -> list[Row]:
    """Returns the rows of the finished runs: from their folders, and from the saved rows where no folder is finished.

    Args:
      runs: runs of an experiment or a sweep.
      root: the folder that holds their folders.
      reduce: records of a run of train.py -> the measurements in its row.
      scale: the scale of an experiment that they are runs of.
      saved: rows of runs that were finished elsewhere.
    """
    folders = [(run, folder_of(run, root)) for run in runs]
    rows = [
        row_of(run, at, reduce=reduce, scale=scale) if state_of(at) == "finished" else saved_row(run, saved)
        for run, at in folders
    ]
    return [row for row in rows if row is not None]


def unfinished(runs: Sequence[Run], *, root: Path, saved: Rows = ()) -> list[Run]:
    """Returns the runs of which `finished` has no row, with the same arguments."""
    return [run for run in runs if state_of(folder_of(run, root)) != "finished" and saved_row(run, saved) is None]


def saved_row(run: Run, saved: Rows) -> Row | None:
    """Returns the first saved row of a run; None if there is none."""
    name = run.name
    return next((row for row in saved if row["run"] == name and is_of(row, run)), None)


def is_of(row: Row, run: Run) -> bool:
    """Returns whether a row is of a run as it is now: by the name, the config and the flags that the row records.

    The fingerprint must be the same, too: the config file may have changed, which the recorded overrides do not show.
    """
    now = {"config": recorded_config(run), "flags": dict(run.flags)}
    return (
        row["run"] == run.name
        and are_same(row, {"origin": now})
        and row["origin"].get("fingerprint") == run_folders.fingerprint(run.config)
    )


def row_of(run: Run, folder: Path, *, reduce: Reduce = evaluations, scale: Scale | None = None) -> Row:
    """Returns the row of a finished run: its labels, its measurements, and where it came from.

    Raises:
      ValueError: one line, if a file of the folder is missing or damaged, as after an incomplete copy.
    """
    try:
        measured, origin = _read(run, folder, reduce=reduce, scale=scale)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"run={run.name!r}: {str(folder)!r} has DONE but is not whole ({type(error).__name__}: {reason}); "
            "copy it again, or remove it"
        ) from error
    if twice := {"run", "origin", *run.labels} & set(measured):
        raise ValueError(f"run={run.name!r}: measures {sorted(twice)[0]!r}, which is one of its labels")
    return {"run": run.name, **run.labels, **measured, "origin": origin}


def _read(run: Run, folder: Path, *, reduce: Reduce, scale: Scale | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the measurements of a finished run, and where it came from."""
    config = run_folders.from_json(foreign_files.content(folder / "config.json"))
    start = run_folders.from_json(foreign_files.content(folder / "env.json"))["starts"][-1]
    mark.check(folder)
    done = mark.read(folder) or {}
    if run.spec:
        records = run_folders.read(folder / "metrics.jsonl")
        if gaps := [record for record in records if record["kind"] == "gap"]:
            raise ValueError(f"metrics.jsonl has lost records up to step {gaps[-1]['step']}")
        last = records[-1]["step"] if records else 0
        if (done.get("step") or 0) > last:  # a copy of the folder from before the run was finished lies over it
            raise ValueError(f"metrics.jsonl ends at step {last}, and the run at {done['step']}")
        measured = reduce(records)
        seconds = records[-1].get("wall_seconds") if records else None
    else:
        (measured,) = read_rows(folder / "row.jsonl")
        seconds = done["wall_seconds"]
    origin = {
        "config": recorded_config(run),
        "flags": dict(run.flags),
        **({"scale": scale} if scale else {}),
        "fingerprint": run_folders.fingerprint(config),
        "commit": start["commit"],
        "tree": start["tree"],
        "python": start["python"],
        "jax": start["packages"]["jax"],
        "devices": start["devices"],
        "cpu": start.get("cpu"),
        "cores": start.get("cores"),
        "settings": {key: value for key, value in start.get("settings", {}).items() if value is not None},
        "wall_seconds": seconds and round(seconds, 1),
    }
    if (folder / RULE).exists():
        origin["rule"] = run_folders.from_json(foreign_files.content(folder / RULE))
    return measured, origin


def recorded_config(run: Run) -> dict[str, Any]:
    """Returns what a row records of the config of its run, from which ``reruns`` makes the run again.

    Late workers of a row that does not name them are interrupted, as all were when rows began to be published.
    """
    if not run.spec:
        return {"measure": dict(run.labels)}
    named = {key: value for key, value in run.all_overrides.items() if key != "late_workers"}
    late = {"late_workers": "finish"} if run.config["late_workers"] == "finish" else {}
    return {"spec": run.spec, "overrides": {**named, **late}}


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows as lines of JSON, in which NaN and infinity are strings."""
    lines = (json.dumps(run_folders.encode_numbers(row), allow_nan=False) for row in rows)
    run_folders.write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file; an empty list if there is no such file.

    Raises:
      ValueError: one line, if a line is damaged.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(foreign_files.content(path).splitlines(), start=1):
        try:
            row = run_folders.from_json(line)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}: line {number} is damaged ({error})") from None
        if not isinstance(row, Mapping):
            raise ValueError(f"{str(path)!r}: line {number} is not a row")
        rows.append(run_folders.decode_numbers(row))
    return rows


def read_run_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of runs in a file; an empty list if there is no such file.

    Raises:
      ValueError: one line that names the line, if one is damaged, or has a run or an origin that no run writes.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows, start=1):
        if fault := _fault(row):
            raise ValueError(f"{str(path)!r}: line {number} is not the row of a run: {fault}")
    return rows


def published(name: str) -> list[dict[str, Any]]:
    """Returns the published rows of an experiment.

    Raises:
      ValueError: one line, in the cases of `read_run_rows`, and if a run has two rows.
    """
    path = PUBLISHED / name / "rows.jsonl"
    rows = read_run_rows(path)
    names = [row["run"] for row in rows]
    if twice := next((run for run, count in Counter(names).items() if count > 1), None):
        raise ValueError(f"{str(path)!r}: has {names.count(twice)} rows of run {twice!r}; keep one")
    return rows


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


_OBJECT = ("an object", lambda value: isinstance(value, Mapping))
_TEXT = ("a text", lambda value: isinstance(value, str))
_ORIGIN: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # key -> what it must be, unless it is null
    **dict.fromkeys(("config", "flags", "settings", "rule"), _OBJECT),
    **dict.fromkeys(("fingerprint", "commit", "tree", "python", "jax", "cpu"), _TEXT),
    "scale": (f"one of {', '.join(SCALES)}", lambda value: value in SCALES),
    "devices": ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value)),
    "cores": ("a whole number from 1", lambda value: type(value) is int and value >= 1),
    "wall_seconds": ("a number of seconds", _is_seconds),
}
_ALWAYS = ("config", "flags", "settings", "commit", "tree", "jax", "devices", "wall_seconds")
_NOT_NULL = ("config", "flags", "settings", "devices", "scale")
_CONFIG = {"measure": _OBJECT, "spec": _TEXT, "overrides": _OBJECT}
_RULE = {"hash": _TEXT, "text": _TEXT}


def _fault(row: Row) -> str:
    """Returns what a row lacks that every row of a run has, or what is of another type; "" if nothing."""
    if not isinstance(row.get("run"), str) or not row["run"]:
        return f"run={row.get('run')!r} must be a text"
    origin = row.get("origin")
    if not isinstance(origin, Mapping):
        return f"origin={origin!r} must be an object"
    missing = [key for key in _ALWAYS if key not in origin]
    missing += [key for key in _NOT_NULL if key in origin and origin[key] is None]
    if missing:
        return f"origin.{missing[0]} is missing"
    parts = ["measure"] if _of(origin["config"], "measure") is not None else ["spec", "overrides"]
    checks = [
        *((f"origin.{key}", origin[key], _ORIGIN[key]) for key in _ORIGIN if origin.get(key) is not None),
        *((f"origin.config.{key}", _of(origin["config"], key), _CONFIG[key]) for key in parts),
        *((f"origin.rule.{key}", _of(origin["rule"], key), _RULE[key]) for key in _RULE if origin.get("rule")),
    ]
    found = (f"{key}={value!r} must be {words}" for key, value, (words, fits) in checks if not fits(value))
    return next(found, "")


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
