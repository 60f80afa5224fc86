"""Runs published rows again, each from its own record, and says how equal the numbers are."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import runs as run_folders
from experiments import claims
from experiments.execution import queue, reruns, results
from experiments.execution.finish import command_of
from experiments.study import datasets
from experiments.study.run import Row, Run
from reducers.registry import suggest

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
    found: dict[str, list[Row]] = {}
    for each in [name] if name else claims.in_order():
        tuned = claims.load(each).tuned
        published = {row["run"]: row for row in results.published(each)}
        if of_run and of_run not in published:
            hint = f"see `python -m experiments list {name}`; {suggest(of_run, published)}"
            raise ValueError(f"row={named!r}: no published row of that name; {hint}")
        if of_run:
            found[each] = [published[of_run]]
        else:
            within = ("seed", tuned.key) if tuned else ("seed",)
            found[each] = reruns.cheapest([*published.values()], count=count, within=within)
    if not any(found.values()):
        raise ValueError(f"name={name!r}: has no published rows")
    return found


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
    runs_of = {name: {reruns.run_of(row): row for row in rows} for name, rows in rows_of.items()}
    datasets.check([run for runs in runs_of.values() for run in runs])
    for name, runs in runs_of.items():
        numbered = (out / name / str(i) for i in itertools.count(1))
        root = next(folder for folder in numbered if not (folder / DONE).exists())
        yield _again(name, runs, root=root, jobs=jobs)


def _again(name: str, rows: Mapping[Run, Row], *, root: Path, jobs: int) -> tuple[str, bool]:
    """Runs rows of an experiment again in a folder, and compares."""
    experiment = claims.load(name)
    failures = queue.execute(
        list(rows),
        root=root,
        command=lambda run, folder: [*reruns.environment_of(rows[run]), *command_of(name)(run, folder)],
        jobs=jobs,
        title=f"verify {name}",
    )
    lines = [f"{name}/{run.name}: failed: {reason} ({folder / 'output.log'})" for run, folder, reason in failures]
    are_equal = not failures
    failed = {failure.run for failure in failures}
    for run, published in rows.items():
        if run in failed:
            continue
        now = results.row_of(run, results.folder_of(run, root), reduce=experiment.reduce)
        rerun = reruns.compare(published, now, timings=experiment.timings)
        lines.append(f"{name}/{rerun}")
        are_equal &= rerun.is_equal
    text = "\n".join(lines)
    run_folders.write_atomically(root / DONE, f"{text}\n".encode())
    return text, are_equal
