"""Folders of runs, their states, and the row of each finished run."""

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import runs as run_folders
from data import sources
from experiments.execution import stopped
from experiments.study.run import SCALES, Reduce, Row, Rows, Run, Scale, are_same, evaluations
from launch.output import printable
from reducers.arrivals import foreign_files
from runs.reporting import done as mark

State = Literal["finished", "diverged", "stopped", "held", "begun", "new"]
ENDED: tuple[State, ...] = ("finished", "diverged", "stopped")  # states of runs that do not go on
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
    """Returns the state of the run in a folder; "held" means that a process is working on it.

    Raises:
      ValueError: one line, if the mark of a run that was stopped early is damaged.
    """
    if (folder / "DONE").exists():
        return "finished"
    if (early := stopped.read(folder)) is not None:
        return early.state
    with contextlib.suppress(OSError):  # a lock that cannot be opened: the run itself will report it
        if folder.exists() and run_folders.holder(folder):
            return "held"
    return "begun" if (folder / "config.json").exists() else "new"


def check_code(runs: Sequence[Run], *, root: Path, code_change: run_folders.CodeChange) -> None:
    """Checks that the code as it is now has made the runs in the folders.

    Args:
      runs: runs of a sweep.
      root: the folder that holds their folders.
      code_change: "refuse" raises an error; "accept" records the code in the folders of runs that do not go on.

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
        if changed and state_of(folder) in ENDED:
            devices = starts[-1].get("devices", ())
            inputs = run_folders.Inputs(run.code)
            run_folders.open_run(
                str(folder), run.config, devices=devices, inputs=inputs, code_change=code_change
            ).close()


def _changed_data(starts: Sequence[Mapping[str, Any]], run: Run) -> list[str]:
    """Returns the data of a run if they have changed since its last start."""
    before = starts[-1].get("data") if starts else None
    if not before:
        return []
    try:
        now = sources.make(**run.config["data"]).info.fingerprint
    except (ValueError, OSError):  # they are on another machine
        return []
    return [] if now in ("", before) else ["config.data"]


def finished(
    runs: Sequence[Run], *, root: Path, reduce: Reduce = evaluations, scale: Scale | None = None, saved: Rows = ()
) -> list[Row]:
    """Returns the rows of the finished runs: from their folders, or else from the saved rows.

    Args:
      runs: runs of an experiment or a sweep.
      root: the folder that holds their folders.
      reduce: records of a run of train.py -> the measurements in its row.
      scale: the scale of an experiment that they are runs of.
      saved: rows of runs that another machine has finished.
    """
    rows = []
    for run in runs:
        folder = folder_of(run, root)
        if state_of(folder) == "finished":
            rows.append(row_of(run, folder, reduce=reduce, scale=scale))
        elif (row := saved_row(run, saved)) is not None:
            rows.append(row)
    return rows


def unfinished(runs: Sequence[Run], *, root: Path, saved: Rows = ()) -> list[Run]:
    """Returns the runs that are to be finished, by the arguments of `finished`."""
    return [run for run in runs if state_of(folder_of(run, root)) not in ENDED and saved_row(run, saved) is None]


def saved_row(run: Run, saved: Rows) -> Row | None:
    """Returns the first saved row with the name, the config and the flags that a run has now.

    The fingerprint must be the same, too: the config file may have changed, which the recorded overrides do not show.
    """
    name = run.name
    for row in saved:
        if row["run"] != name:  # to load a config takes a while
            continue
        origin = {"config": recorded_config(run), "flags": dict(run.flags)}
        is_same = are_same(row, {"origin": origin})
        if is_same and row["origin"].get("fingerprint") == run_folders.fingerprint(run.config):
            return row
    return None


def row_of(run: Run, folder: Path, *, reduce: Reduce = evaluations, scale: Scale | None = None) -> Row:
    """Returns the row of a finished run: its labels, its measurements, and its origin.

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
    """Returns the measurements of a finished run, and its origin."""
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
    """Returns the record of a run's config in its row, from which ``reruns`` makes the run again.

    A row that does not name late workers is from when all were interrupted.
    """
    if not run.spec:
        return {"measure": dict(run.labels)}
    overrides = run.all_overrides
    overrides.pop("late_workers", None)
    if run.config["late_workers"] == "finish":
        overrides["late_workers"] = "finish"
    return {"spec": run.spec, "overrides": overrides}


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
      ValueError: one line that names the line, if one is damaged, or lacks what every row of a run has.
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


_ORIGIN: Mapping[str, Any] = {  # key -> type
    **dict.fromkeys(("config", "flags", "settings"), Mapping),
    **dict.fromkeys(("commit", "tree", "jax"), str | None),
    "devices": list,
    "wall_seconds": int | float | None,
}


def _fault(row: Row) -> str:
    """Returns a remark on a row that lacks something that every row of a run has; "" if it lacks nothing."""
    if not isinstance(row.get("run"), str) or not row["run"]:
        return f"run={row.get('run')!r} must be a text"
    origin = row.get("origin")
    if not isinstance(origin, Mapping):
        return f"origin={origin!r} must be an object"
    for key, kind in _ORIGIN.items():
        if key not in origin or not isinstance(origin[key], kind):
            return f"origin.{key}={origin.get(key)!r} is missing, or of another type"
    if "measure" not in origin["config"] and not {"spec", "overrides"} <= origin["config"].keys():
        return "origin.config has neither measure nor spec and overrides"
    return "" if origin.get("scale", "laptop") in SCALES else f"origin.scale={origin['scale']!r} is no scale"
