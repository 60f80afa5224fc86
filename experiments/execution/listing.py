"""The list of the runs below a folder: the keys in which they differ, their steps, last evaluations and states."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import runs as run_folders
from experiments.execution import results
from launch.output import clipped, printable
from optim.factors import first_step_at
from runs import saved_runs
from runs.errors import one_line
from runs.reporting import done

NO_FOLDER_IS_A_RUN = "holds no runs: no folder below it has a config.json or metrics.jsonl"


class Listed(NamedTuple):
    """A run as the list shows it.

    Attributes:
      folder: relative to the folder that is listed.
      config: its config; None if it has none.
      steps: the steps that are done, and the total.
      final: its last evaluation.
      state: finished, held (by a process that works on it), begun or damaged.
      note: what is wrong with it; "" if nothing is.
    """

    folder: str
    config: saved_runs.Config | None
    steps: str
    final: str
    state: str
    note: str = ""


def of_folder(folder: Path) -> str:
    """Returns the list as text, one line for each run; nothing that a run names is executed.

    Raises:
      ValueError: one line, if there is no such folder, or it holds no runs.
    """
    if not folder.is_dir():
        raise ValueError(f"ls: {str(folder)!r}: no such folder")
    found = [_listed(path, folder) for path in saved_runs.below(folder)]
    if not found:
        raise ValueError(f"ls: {str(folder)!r} {NO_FOLDER_IS_A_RUN}")
    known = [run.config for run in found if run.config is not None]
    keys, flat = saved_runs.differing(known)
    values = iter(flat)
    lines = [["folder", *(_short(key) for key in keys), "steps", "last evaluation", "state"]]
    for run in found:
        config = next(values) if run.config is not None else {}
        cells = [clipped(str(config.get(key, "-"))) for key in keys]
        lines.append([run.folder, *cells, run.steps, run.final, run.state])
    notes = [one_line(f"{run.folder}: {run.note}") for run in found if run.note]
    return "\n".join([*_aligned(lines), *notes])


def _listed(path: Path, root: Path) -> Listed:
    config, steps, final = None, "-", "-"
    try:
        config = run_folders.identity.read_object(path / "config.json")
        records = run_folders.read(path / "metrics.jsonl") if (path / "metrics.jsonl").is_file() else []
        done.check(path)
        last: saved_runs.Record = next((record for record in reversed(records) if record["kind"] == "eval"), {})
        steps, final = _steps(records, config or {}), run_folders.in_words(last) or "-"
        note = "has no config.json" if config is None else saved_runs.lost_of(records)
        state: str = results.state_of(path)
    except (ValueError, OSError, TypeError) as error:  # TypeError: of a number that is none
        note, state = str(error).partition("\n")[0], "damaged"
    return Listed(str(path.relative_to(root)), config, steps, final, state, note)


def _steps(records: Sequence[saved_runs.Record], config: saved_runs.Config) -> str:
    """Returns the steps that are done, and the total if the config and the records tell it.

    >>> _steps([{"kind": "train", "step": 5, "epoch": 0.5}], {"train_steps": None, "train_epochs": 2})
    '5 of 20'
    """
    if not records:
        return "-"
    step, epoch, total = records[-1]["step"], records[-1].get("epoch"), config.get("train_steps")
    if total is None and epoch and config.get("train_epochs"):
        total = first_step_at(config["train_epochs"], steps_per_epoch=step / epoch)
    return str(step) if total is None else f"{step} of {total}"


def _short(key: str) -> str:
    return key.removeprefix("measure.").removesuffix(".name")


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    lines = [[printable(cell) for cell in line] for line in cells]  # names are those of files
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
