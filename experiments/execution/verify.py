"""Runs published rows again, each from its own record, and says how equal the numbers are."""

import itertools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import runs as run_folders
from experiments import claims
from experiments.execution import queue, reruns, results
from experiments.execution.finish import command_of
from experiments.study import datasets
from experiments.study.run import Row, Run
from launch.output import say

DONE = "verified.txt"  # what was found; a folder without it was interrupted


def verify(names: Sequence[str], *, count: int, out: Path, jobs: int) -> Iterator[tuple[str, bool]]:
    """Runs published rows again, the cheapest of each experiment, and compares.

    Args:
      names: the experiments.
      count: number of rows of each.
      out: folder of the folders of experiments.
      jobs: number of runs at once.

    Yields:
      For each experiment a text, and whether all its rows are equal.

    Raises:
      ValueError: one line, before anything runs, if one has no published rows, or the data of a run are not prepared.
    """
    chosen = {}
    for name in names:
        tuned = claims.load(name).tuned
        within = ("seed", tuned.key) if tuned else ("seed",)
        chosen[name] = reruns.cheapest(_published(name), count=count, within=within)
    datasets.check([reruns.run_of(row) for rows in chosen.values() for row in rows])
    for name, rows in chosen.items():
        yield _again(name, rows, root=_fresh(out / name), jobs=jobs)


def rerun(named: str, *, out: Path) -> tuple[str, bool]:
    """Runs the published row "NAME/RUN" again; returns how it compares, and whether it is equal.

    Raises:
      ValueError: one line, if there is no such row, or its data are not prepared.
    """
    name, row, run = _find(named)
    datasets.check([run])
    root = _fresh(out / name)
    say(_command_line(name, row, run, root=root), error=True)
    return _again(name, [row], root=root)


def dry_run(named: str, *, out: Path) -> str:
    """Returns the command that `rerun` would execute; runs and writes nothing."""
    name, row, run = _find(named)
    return _command_line(name, row, run, root=_fresh(out / name))


def _find(named: str) -> tuple[str, Row, Run]:
    name, _, of_run = named.partition("/")
    row = reruns.named(of_run, _published(name), of=name)
    return name, row, reruns.run_of(row)


def _published(name: str) -> list[Row]:
    claims.load(name)
    rows: list[Row] = [*results.published(name)]
    if not rows:
        raise ValueError(f"name={name!r}: has no published rows")
    return rows


def _fresh(folder: Path) -> Path:
    """Returns the first of the folders 1, 2, ... in which no rows have been verified."""
    return next(folder / str(i) for i in itertools.count(1) if not (folder / str(i) / DONE).exists())


def _command(name: str, row: Row, run: Run, folder: Path) -> list[str]:
    return [*reruns.environment_of(row), *command_of(name)(run, folder)]


def _command_line(name: str, row: Row, run: Run, *, root: Path) -> str:
    return shlex.join(_command(name, row, run, results.folder_of(run, root)))


def _again(name: str, rows: Sequence[Row], *, root: Path, jobs: int = 1) -> tuple[str, bool]:
    """Runs rows of an experiment again in a folder, and compares; goes on where it was interrupted."""
    experiment = claims.load(name)
    by_name = {row["run"]: row for row in rows}
    runs = {row["run"]: reruns.run_of(row) for row in rows}
    failures = queue.execute(
        list(runs.values()),
        root=root,
        command=lambda run, folder: _command(name, by_name[run.name], run, folder),
        jobs=jobs,
        title=f"verify {name}",
    )
    lines = [f"{name}/{run.name}: failed: {reason} ({folder / 'output.log'})" for run, folder, reason in failures]
    found = []
    for row_name, run in runs.items():
        if run not in [failure.run for failure in failures]:
            now = results.row_of(run, results.folder_of(run, root), reduce=experiment.reduce)
            found.append(reruns.compare(by_name[row_name], now, timings=experiment.timings))
            lines.append(f"{name}/{found[-1]}")
    text = "\n".join(lines)
    run_folders.write_atomically(root / DONE, f"{text}\n".encode())
    return text, not failures and all(rerun.is_equal for rerun in found)
