"""The list of the runs below a folder: the keys in which they differ, their steps, last evaluations and states."""

from collections.abc import Sequence
from pathlib import Path

import runs as run_folders
from configs.listing import aligned
from experiments.execution import results
from launch.output import clipped, printable
from optim.factors import first_step_at
from runs import saved_runs
from runs.errors import one_line
from runs.reporting import done

NO_FOLDER_IS_A_RUN = "holds no runs: no folder below it has a config.json or metrics.jsonl"


def of_folder(folder: Path) -> str:
    """Returns the list as text, one line for each run; nothing that a run names is executed.

    Raises:
      ValueError: one line, if there is no such folder, or it holds no runs.
    """
    if not folder.is_dir():
        raise ValueError(f"ls: {str(folder)!r}: no such folder")
    found = {str(path.relative_to(folder)): _listed(path) for path in saved_runs.below(folder)}
    if not found:
        raise ValueError(f"ls: {str(folder)!r} {NO_FOLDER_IS_A_RUN}")
    keys, flat = saved_runs.differing([config for config, _, _ in found.values() if config is not None])
    values = iter(flat)
    short = [key.removeprefix("measure.").removesuffix(".name") for key in keys]
    lines = [["folder", *short, "steps", "last evaluation", "state"]]
    notes = []
    for name, (config, cells, note) in found.items():
        own = next(values) if config is not None else {}
        lines.append([name, *(clipped(str(own.get(key, "-"))) for key in keys), *cells])
        if note:
            notes.append(one_line(f"{name}: {note}"))
    shown = [list(map(printable, line)) for line in lines]  # names are those of files
    return "\n".join([*aligned(shown), *notes])


def _listed(path: Path) -> tuple[saved_runs.Config | None, list[str], str]:
    """Returns a run's config; its steps, last evaluation and state; and what is wrong with it, "" if nothing is."""
    config, steps, final = None, "-", "-"
    try:
        config = run_folders.identity.read_object(path / "config.json")
        records = run_folders.read(path / "metrics.jsonl") if (path / "metrics.jsonl").is_file() else []
        done.check(path)
        evaluated = [record for record in records if record["kind"] == "eval"]
        steps = _steps(records, config or {})
        final = run_folders.in_words(evaluated[-1] if evaluated else {}) or "-"
        note = "has no config.json" if config is None else saved_runs.lost_of(records)
        return config, [steps, final, results.state_of(path)], note
    except (ValueError, OSError, TypeError) as error:  # TypeError: of a number that is none
        return config, [steps, final, "damaged"], str(error).partition("\n")[0]


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
