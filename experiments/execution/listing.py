"""The list of the runs below a folder: the keys in which they differ, their steps, last evaluations and states."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import runs as run_folders
from configs.listing import aligned
from experiments.execution import results
from experiments.study.run import Mode
from launch.output import clipped, printable
from optim.factors import first_step_at
from runs import saved_runs
from runs.errors import one_line
from runs.reporting import done

NO_FOLDER_IS_A_RUN = "holds no runs: no folder below it has a config.json or metrics.jsonl"


class Until(NamedTuple):
    """A value that a quantity of evaluations is to reach, and which of its values are better."""

    name: str
    value: float
    mode: Mode

    @classmethod
    def parse(cls, text: str, *, mode: Mode | None = None) -> "Until":
        """Parses ``NAME=VALUE``; without a mode, large values of accuracies are better, and small ones of all else.

        Raises:
          ValueError: one line, if the text is not a name and a finite number.

        >>> Until.parse("accuracy=0.97")
        Until(name='accuracy', value=0.97, mode='max')
        """
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value):
            raise ValueError(f"until={text!r}: must be NAME=VALUE with a finite number, such as accuracy=0.97")
        return cls(name, value, mode or ("max" if name.endswith("accuracy") else "min"))

    def first(self, evaluated: Sequence[saved_runs.Record]) -> str:
        """Returns in words when a run first reached the value, at an evaluation.

        >>> found = {"step": 40, "loss": 0.25, "wall_seconds": 2.5, "simulated_seconds": 61.0}
        >>> Until("loss", 0.3, "min").first([found])
        'step 40, 2.5 s, simulated 61.0 s'
        """
        known = [record for record in evaluated if record.get(self.name) is not None]
        sign = 1 if self.mode == "max" else -1
        for record in known:
            if sign * (record[self.name] - self.value) >= 0:
                simulated = record.get("simulated_seconds")  # 0 if no arrivals are simulated
                clock = f", simulated {simulated:,.1f} s" if simulated else ""
                return f"step {record['step']}, {record.get('wall_seconds') or 0.0:,.1f} s{clock}"
        return "not reached" if known else "-"


def of_folder(folder: Path, *, until: Until | None = None) -> str:
    """Returns the list as text, one line for each run; nothing that a run names is executed.

    Args:
      folder: the folder.
      until: adds a column that says when each run first reached a value; None adds none.

    Raises:
      ValueError: one line, if there is no such folder, or it holds no runs, or none has evaluated what ``until`` names.
    """
    if not folder.is_dir():
        raise ValueError(f"ls: {str(folder)!r}: no such folder")
    found = {str(path.relative_to(folder)): _listed(path, until) for path in saved_runs.below(folder)}
    if not found:
        raise ValueError(f"ls: {str(folder)!r} {NO_FOLDER_IS_A_RUN}")
    if until is not None and all(cells[2] == "-" and not note for _, cells, note in found.values()):
        raise ValueError(f"until={until.name!r}: no run below {str(folder)!r} has evaluations with this quantity")
    keys, flat = saved_runs.differing([config for config, _, _ in found.values() if config is not None])
    values = iter(flat)
    short = [key.removeprefix("measure.").removesuffix(".name") for key in keys]
    lines = [
        [
            "folder",
            *short,
            "steps",
            "last evaluation",
            *([f"until {until.name}={until.value:g}"] if until else []),
            "state",
        ]
    ]
    notes = []
    for name, (config, cells, note) in found.items():
        own = next(values) if config is not None else {}
        lines.append([name, *(clipped(str(own.get(key, "-"))) for key in keys), *cells])
        if note:
            notes.append(one_line(f"{name}: {note}"))
    shown = [list(map(printable, line)) for line in lines]  # names are those of files
    return "\n".join([*aligned(shown), *notes])


def _listed(path: Path, until: Until | None) -> tuple[saved_runs.Config | None, list[str], str]:
    """Returns a run's config; its cells from the steps to the state; and what is wrong with it, "" if nothing is."""
    config, steps, final = None, "-", "-"
    reached = ["-"] if until else []
    try:
        config = run_folders.identity.read_object(path / "config.json")
        records = run_folders.read(path / "metrics.jsonl") if (path / "metrics.jsonl").is_file() else []
        done.check(path)
        evaluated = [record for record in records if record["kind"] == "eval"]
        steps = _steps(records, config or {})
        final = run_folders.in_words(evaluated[-1] if evaluated else {}) or "-"
        reached = [until.first(evaluated)] if until else []
        note = "has no config.json" if config is None else saved_runs.lost_of(records)
        return config, [steps, final, *reached, results.state_of(path)], note
    except (ValueError, OSError, TypeError) as error:  # TypeError: of a number that is none
        return config, [steps, final, *reached, "damaged"], str(error).partition("\n")[0]


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
