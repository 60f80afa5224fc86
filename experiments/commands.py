"""The actions behind the commands: finish runs, report on them, publish them."""

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import runs as run_folders
from experiments import claims
from experiments.execution import queue, reruns, results, saved_rows
from experiments.execution.finish import Shard, command_of, finish
from experiments.execution.progress import Progress, minutes, of_scale, time_of
from experiments.execution.queue import Failure
from experiments.plots import drawing
from experiments.study import datasets, publications, report
from experiments.study.claim import Claim
from experiments.study.publications import Publication
from experiments.study.run import SCALES, Rows, Run, are_same, scale_of
from experiments.sweeps import early_stopping
from experiments.sweeps import figure as sweep_figure
from experiments.sweeps import groups as sweep_groups
from experiments.sweeps import table as sweep_table
from experiments.sweeps.goal import Goal
from experiments.sweeps.results import SweepResults
from experiments.sweeps.sweep import Sweep
from launch.output import say
from runs import saved_runs
from runs.reporting.figures import DPI
from runs.reporting.trackers import GROUPS


class Picture(NamedTuple):
    """A figure's format, the ending of its file; its width in columns of a page, None for its own; dots an inch."""

    format: str = "png"
    columns: int | None = None
    dpi: int = DPI


def run_experiment(progress: Progress, *, shard: Shard) -> list[Failure]:
    """Finishes the runs of an experiment, unless its time is up earlier.

    Raises:
      ValueError: one line, if the data of the runs are not prepared.
    """
    name, experiment = progress.name, progress.experiment
    datasets.check(progress.runs)
    say(str(progress), error=True)
    return finish(
        name,
        lambda rows: experiment.runs(progress.scale, rows),
        root=progress.root,
        command=command_of(name),
        shard=shard,
        reduce=experiment.reduce,
        rule={**experiment.stated, "code": claims.code_of(name)},
        saved=progress.saved,
    )


def dry_run(progress: Progress, *, shard: Shard) -> str:
    """Returns the commands of this shard's unfinished runs, and the time of all runs; runs and writes nothing."""
    ours = {run.name for stage in progress.stages for run in shard.own(stage.new)}
    missing = ours - {row["run"] for row in progress.rows}
    lines = [str(progress)]
    for run in progress.runs:
        if run.name in missing:
            lines.append(shlex.join(command_of(progress.name)(run, results.folder_of(run, progress.root))))
    if missing and progress.experiment.tuned:
        lines.append("and runs with values that are picked from these")
    return "\n".join(lines)


def compare(progress: Progress) -> str:
    """Returns how the rows of the finished runs differ from the published rows of the same runs."""
    now = {row["run"]: row for row in progress.rows}
    found = []
    for published in of_scale(results.published(progress.name), progress.scale):
        row = now.get(published["run"])
        if row is not None and are_same(published, row):
            found.append(reruns.compare(published, row, timings=progress.experiment.timings))
    if not found:
        return f"None of the {len(now)} finished runs is published at scale {progress.scale}: nothing to compare with."
    return f"{len(found)} of the {len(now)} finished runs are published: {reruns.summary(found)}"


def write_report(progress: Progress) -> str:
    """Writes report.md and figure.png of the finished runs into their folder, and returns the text."""
    log = publications.read(results.PUBLISHED / progress.name)
    progress.root.mkdir(parents=True, exist_ok=True)
    return _write(progress.experiment, progress.rows, progress.root, log=log)


def save(progress: Progress) -> str:
    """Writes the rows of the finished runs into the repository, from which other machines go on; returns a summary.

    Rows that were saved before under the same rule stay until a row of the same name replaces them: a row that does not
    count now may be of other data, or of a value that is not picked yet.

    Raises:
      ValueError: one line, if no run is finished under the rule as it is stated now.
    """
    name, scale = progress.name, progress.scale
    path = saved_rows.path_of(name, scale)
    rows = saved_rows.current(progress.rows, scale, alike=progress.experiment.decides_alike)
    counts = f"{name}: {len(rows)} of {len(progress.runs)} runs at scale {scale} are"
    before = len(progress.rows) - len(rows)
    others = f" ({before} more were begun under another rule)" if before else ""
    if not rows:
        raise ValueError(f"{counts} finished{others}; run it first")
    names = {row["run"] for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    results.write_rows(path, [*rows, *(row for row in progress.saved if row["run"] not in names)])
    named = f"{name} --scale={scale}"
    then = f"Commit it before further runs: `python -m experiments run {named}` goes on from it on other machines"
    if len(progress.rows) == len(progress.runs):
        then = f"All are finished: `python -m experiments publish {named}` makes the report of them"
    return f"{counts} saved in {path}{others}\n{then}"


def publish(progress: Progress, *, accept_scale_change: bool) -> str:
    """Writes rows, report and figure of the finished runs into the repository, and returns the text.

    Raises:
      ValueError: one line, if a run is not finished or is of uncommitted code, or if rows of a larger
        scale are published, unless ``accept_scale_change``.
    """
    name, scale, experiment, rows = progress.name, progress.scale, progress.experiment, progress.rows
    changed = [row["run"] for row in rows if row["origin"]["tree"] == "dirty"]
    if changed:
        counts = f"{len(changed)} of {len(rows)} runs are of code that no commit has, such as {changed[0]}"
        raise ValueError(f"{name}: {counts}; commit it, and run them again with another --out")
    if len(rows) < len(progress.runs):
        counts = f"{len(rows)} of {len(progress.runs)} runs at scale {scale} are finished"
        raise ValueError(f"{name}: {counts}; `run` finishes the others, `save` lets another machine do so")
    larger = [row for row in results.published(name) if SCALES.index(scale_of([row])) > SCALES.index(scale)]
    if larger and not accept_scale_change:
        found = f"{len(larger)} rows of scale {scale_of(larger)} are published; --accept_scale_change replaces them"
        raise ValueError(f"scale={scale!r}: {name}: {found}")
    report.section(experiment, rows)  # before anything is replaced
    folder = results.PUBLISHED / name
    folder.mkdir(parents=True, exist_ok=True)
    results.write_rows(folder / "rows.jsonl", rows)
    written = results.read_rows(folder / "rows.jsonl")
    publications.record(report.publication(experiment, written), folder, alike=experiment.decides_alike)
    text = _write(experiment, written, folder, log=publications.read(folder))
    saved_rows.path_of(name, scale).unlink(missing_ok=True)
    return text


def overview() -> str:
    """Returns the tables of docs/claims.md: one row per claim, with the verdict of the published rows."""
    return report.overview(_published())


def run_sweep(
    sweep: Sweep,
    *,
    root: Path,
    goal: Goal,
    shard: Shard,
    code_change: run_folders.CodeChange = "refuse",
    by: str | None = None,
    median_of: int | None = None,
    figure: Picture,
) -> tuple[str, list[Failure]]:
    """Finishes the runs of a sweep, writes their table and figure into its folder, and returns what it found.

    Args:
      sweep: the sweep.
      root: its folder.
      goal: what its points are compared by.
      shard: the share of this machine.
      code_change: what follows if code of the user's own has changed.
      by: the key whose values are compared.
      median_of: number of finished runs from which on the median rule stops others early; None never stops any.
      figure: how the figure is drawn.

    Raises:
      ValueError: one line, for a config that is not valid, for ``by`` if the points do not differ in it, and unless all
        runs have the same code of the user's own.
    """
    key = sweep_groups.key_of(SweepResults(sweep=sweep, rows=[], goal=goal), by)
    results.check_code(sweep.runs, root=root, code_change=code_change)
    group = [f"{name}={root.name}" for name in GROUPS if name not in os.environ] if sweep.flags.get("sink") else []

    def command(run: Run, folder: Path) -> Sequence[str]:
        line = queue.train_command(run, folder)
        return ["env", *group, *line] if group else line

    judge = early_stopping.EarlyStopping(sweep.runs, root=root, goal=goal, median_of=median_of)
    failures = finish(root.name, lambda rows: sweep.runs, root=root, command=command, shard=shard, judge=judge)
    if code_change == "refuse":  # it may have been edited meanwhile
        results.check_code(sweep.runs, root=root, code_change=code_change)
    rows = early_stopping.rows(sweep.runs, root=root)
    root.mkdir(parents=True, exist_ok=True)  # the time may be up before a run has begun
    return _write_sweep(SweepResults(sweep=sweep, rows=rows, goal=goal), root=root, key=key, picture=figure), failures


def _write_sweep(found: SweepResults, *, root: Path, key: str | None, picture: Picture) -> str:
    """Writes table.md, table.csv and the figure into the folder of a sweep, and returns the text of the command."""
    own = {results.folder_of(run, root) for run in found.sweep.runs}
    notes = []
    if others := len(set(saved_runs.below(root)) - own):
        notes.append(f"{others} more runs in this folder are of other points: python -m experiments ls {root}")
    groups = sweep_groups.table(found, key) if key else None
    best_group = sweep_groups.answer(found, key) if key else []
    text = sweep_table.text(found, groups=groups, best_group=best_group, notes=notes)
    table, csv, figure = root / "table.md", root / "table.csv", root / f"figure.{picture.format}"
    run_folders.write_atomically(table, text.encode())
    run_folders.write_atomically(csv, sweep_table.comma_separated(found).encode())
    drawn = str(figure)
    try:
        drawing.save(sweep_figure.draw(found, columns=picture.columns), figure, dpi=picture.dpi)
    except ValueError as error:
        figure.unlink(missing_ok=True)  # a figure of another grid would not fit this table
        drawn = f"no figure: {error}"
    return f"{table}\n{csv}\n{drawn}\n\n{text}".rstrip()


def listing(*, out: Path) -> str:
    """Returns a list of the experiments, the shortest first: name, claim, predicted time, state."""
    found = {}
    for name, (experiment, rows) in _published().items():
        states = [f"{experiment.verdict(rows).word} ({len(rows)} published runs)" if rows else "not published"]
        times = []
        for scale in experiment.hours:
            times.append(f"{scale} {time_of(experiment, scale, published=rows)[1]}")
            if here := list((out / name / scale).glob("*/DONE")):
                states.append(f"{len(here)} runs here at {scale}")
            if saved := saved_rows.current(saved_rows.read(name, scale), scale, alike=experiment.decides_alike):
                states.append(f"{len({row['run'] for row in saved})} runs saved at {scale}")
        text = f"{name}\n    {experiment.prose.claim}\n    {', '.join(times)}; {', '.join(states)}"
        found[text] = time_of(experiment, "laptop", published=rows)
    return "\n".join(sorted(found, key=found.__getitem__))


def rows_of(name: str) -> str:
    """Returns a list of the published rows of an experiment: minutes that the run took, and its name for `verify`."""
    claims.load(name)
    lines = []
    for row in results.published(name):
        seconds = row["origin"]["wall_seconds"]
        lines.append(f"{minutes(math.nan if seconds is None else seconds):>10}  {name}/{row['run']}")
    return "\n".join(lines) or f"{name}: nothing is published"


def _published() -> dict[str, tuple[Claim, Rows]]:
    """Returns all experiments, each with its published rows."""
    return {name: (experiment, results.published(name)) for name, experiment in claims.in_order().items()}


def draw(name: str | None, *, folder: Path, figure: Picture) -> str:
    """Draws the published rows of an experiment, or of all, into a folder; returns the files.

    Raises:
      ValueError: one line, if there is no such experiment, or it has no rows to draw.
    """
    found = _published() if name is None else {name: (claims.load(name), results.published(name))}
    drawn = {folder / f"{name}.{figure.format}": of for name, of in found.items() if of[0].enough(of[1])}
    if not drawn:
        raise ValueError(f"{name}: nothing is published to be drawn")
    folder.mkdir(parents=True, exist_ok=True)
    for path, (experiment, rows) in drawn.items():
        _draw(experiment, rows, path, figure)
    return "\n".join(map(str, drawn))


def _draw(experiment: Claim, rows: Rows, path: Path, how: Picture) -> None:
    picture = report.draw(experiment, rows, columns=how.columns)
    with experiment.reading_rows():  # matplotlib lays texts out as it saves
        drawing.save(picture, path, dpi=how.dpi)


def _write(experiment: Claim, rows: Rows, folder: Path, *, log: Sequence[Publication]) -> str:
    figure = "figure.png" if experiment.enough(rows) else ""
    if figure:
        _draw(experiment, rows, folder / figure, Picture())
    text = report.section(experiment, rows, figure=figure, log=log)
    run_folders.write_atomically(folder / "report.md", text.encode())
    return text
