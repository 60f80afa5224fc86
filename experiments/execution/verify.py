"""Runs published rows again, each from its own record, and says how equal the numbers are."""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import runs as run_folders
from experiments import claims
from experiments.execution import queue, reruns, results
from experiments.execution.finish import command_of
from experiments.study import datasets
from experiments.study.run import Row, Run

DONE = "verified.txt"  # the findings; a folder without it was interrupted


def chosen(named: str | None, *, count: int) -> dict[str, list[Row]]:
    """Returns the published rows that are run again, by their experiments.

    Args:
      named: "NAME/RUN" for one row, NAME for the cheapest of an experiment, or None for the cheapest of each.
      count: number of rows of each experiment.

    Raises:
      ValueError: one line, if there is no such row or experiment.
    """
    name, _, of_run = (named or "").partition("/")
    found = {}
    for each in [name] if name else claims.in_order():
        tuned = claims.load(each).tuned
        published: list[Row] = [*results.published(each)]
        if of_run:
            found[each] = [reruns.named(of_run, published, of=each)]
        else:
            within = ("seed", tuned.key) if tuned else ("seed",)
            found[each] = reruns.cheapest(published, count=count, within=within)
    if not any(found.values()):
        raise ValueError(f"name={name!r}: has no published rows")
    return found


def commands(rows_of: Mapping[str, Sequence[Row]], *, out: Path) -> str:
    """Returns the commands that `verify` would execute, a line each; runs and writes nothing."""
    lines = []
    for name, rows in rows_of.items():
        root = _fresh(out / name)
        runs = [(row, reruns.run_of(row)) for row in rows]
        lines += [shlex.join(_command(name, row, run, results.folder_of(run, root))) for row, run in runs]
    return "\n".join(lines)


def verify(rows_of: Mapping[str, Sequence[Row]], *, out: Path, jobs: int) -> Iterator[tuple[str, bool]]:
    """Runs published rows again, and compares; goes on where it was interrupted.

    Args:
      rows_of: the rows, by experiment: `chosen`.
      out: folder of the folders of experiments.
      jobs: number of runs at once.

    Yields:
      A text for each experiment, and whether all its rows are equal.

    Raises:
      ValueError: one line, before anything runs, if the data of a run are not prepared.
    """
    datasets.check([reruns.run_of(row) for rows in rows_of.values() for row in rows])
    for name, rows in rows_of.items():
        yield _again(name, {reruns.run_of(row): row for row in rows}, root=_fresh(out / name), jobs=jobs)


def _again(name: str, rows: Mapping[Run, Row], *, root: Path, jobs: int) -> tuple[str, bool]:
    """Runs rows of an experiment again in a folder, and compares."""
    experiment = claims.load(name)
    failures = queue.execute(
        list(rows),
        root=root,
        command=lambda run, folder: _command(name, rows[run], run, folder),
        jobs=jobs,
        title=f"verify {name}",
    )
    lines = [f"{name}/{run.name}: failed: {reason} ({folder / 'output.log'})" for run, folder, reason in failures]
    found = []
    failed = {failure.run for failure in failures}
    for run in [run for run in rows if run not in failed]:
        now = results.row_of(run, results.folder_of(run, root), reduce=experiment.reduce)
        found.append(reruns.compare(rows[run], now, timings=experiment.timings))
    text = "\n".join([*lines, *(f"{name}/{rerun}" for rerun in found)])
    run_folders.write_atomically(root / DONE, f"{text}\n".encode())
    return text, not failures and all(rerun.is_equal for rerun in found)


def _fresh(folder: Path) -> Path:
    """Returns the first of the folders 1, 2, ... in which no rows have been verified."""
    return next(folder / str(i) for i in itertools.count(1) if not (folder / str(i) / DONE).exists())


def _command(name: str, row: Row, run: Run, folder: Path) -> list[str]:
    return [*reruns.environment_of(row), *command_of(name)(run, folder)]
