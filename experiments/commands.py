"""The actions behind the commands: finish runs, report on them, publish them."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import runs as run_folders
from experiments import claims
from experiments.execution import forecast, queue, reruns, results, saved_rows
from experiments.execution.finish import Shard, command_of, finish
from experiments.execution.progress import Progress, progress_of
from experiments.execution.queue import Failure
from experiments.plots import drawing
from experiments.study import datasets, publications, report
from experiments.study.claim import Claim
from experiments.study.publications import Publication
from experiments.study.run import SCALES, Rows, Scale, are_same, scale_of
from experiments.sweeps import figure as sweep_figure
from experiments.sweeps import groups as sweep_groups
from experiments.sweeps import table as sweep_table
from experiments.sweeps.goal import Goal
from experiments.sweeps.results import SweepResults
from experiments.sweeps.sweep import Sweep
from launch.output import say
from runs import saved_runs

Start = Literal["saved", "anew"]  # whether saved rows count as finished runs, or the folders of this machine alone
SWEEP_TABLE, SWEEP_CSV, SWEEP_FIGURE = "table.md", "table.csv", "figure.png"  # in the folder of a sweep


def run_experiment(
    name: str, *, scale: Scale, out: Path, jobs: int, shard: Shard, until: float = math.inf, start: Start = "saved"
) -> list[Failure]:
    """Finishes the runs of an experiment at a scale, unless the time is up before.

    Raises:
      ValueError: one line, if the data of the runs are not prepared.
    """
    experiment, root, published = _load(name, scale), out / name / scale, results.published(name)
    datasets.check(experiment.runs(scale, []))
    progress = _progress(name, scale=scale, out=out, start=start)
    every = forecast.all_runs(experiment, scale, progress.rows, published=published)
    _, time = forecast.time_of(experiment, scale, published=published)
    counts = f"{len(progress.rows)} of {len(every)} runs are finished"
    say(f"{name} at scale {scale}: {time}, one run after another; in {root}; {counts}", error=True)
    return finish(
        name,
        lambda rows: experiment.runs(scale, rows),
        root=root,
        command=command_of(name),
        jobs=jobs,
        shard=shard,
        reduce=experiment.reduce,
        until=until,
        rule={**experiment.stated, "code": claims.code_of(name)},
        saved=progress.saved,
    )


def dry_run(name: str, *, scale: Scale, out: Path, shard: Shard, start: Start = "saved") -> str:
    """Returns the commands of the runs that are not finished, and the time of all; runs and writes nothing."""
    experiment, root, published = _load(name, scale), out / name / scale, results.published(name)
    progress = _progress(name, scale=scale, out=out, start=start)
    runs, every = progress.runs, forecast.all_runs(experiment, scale, progress.rows, published=published)
    _, time = forecast.time_of(experiment, scale, published=published)
    ours = {run.name for stage in progress.stages for run in shard.own(stage.new)}
    finished = {row["run"] for row in progress.rows}
    lines = [f"{name} at scale {scale}: {len(progress.rows)} of {len(every)} runs are finished; all take {time}"]
    for run in runs:
        if run.name in ours - finished:
            lines.append(shlex.join(command_of(name)(run, results.folder_of(run, root))))
    if later := every[len(runs) :]:
        lines.append(f"and {len(later)} runs with values that are picked from these")
    return "\n".join(lines)


def compare(name: str, *, scale: Scale, out: Path) -> str:
    """Returns how the rows of the runs that this machine finished differ from the published rows of the same runs."""
    experiment, published = _load(name, scale), forecast.of_scale(results.published(name), scale)
    rows = _progress(name, scale=scale, out=out, start="anew").rows
    now = {row["run"]: row for row in rows}
    found = [
        reruns.compare(row, now[row["run"]], timings=experiment.timings)
        for row in published
        if row["run"] in now and are_same(row, now[row["run"]])
    ]
    if not found:
        return f"None of the {len(rows)} finished runs is published at scale {scale}: nothing to compare with."
    return f"{len(found)} of the {len(rows)} finished runs are published: {reruns.summary(found)}"


def published_report(name: str) -> str:
    """Returns the published report.

    Raises:
      ValueError: one line, if there is none.
    """
    claims.load(name)
    path = results.PUBLISHED / name / "report.md"
    if not path.is_file():
        raise ValueError(f"name={name!r}: nothing is published; `python -m experiments reproduce {name}` runs it")
    return path.read_text()


def write_report(name: str, *, scale: Scale, out: Path, start: Start = "saved") -> str:
    """Writes report.md and figure.png of the finished runs beside them, and returns the text."""
    experiment, root = _load(name, scale), out / name / scale
    rows = _progress(name, scale=scale, out=out, start=start).rows
    root.mkdir(parents=True, exist_ok=True)
    return _write(experiment, rows, root, log=publications.read(results.PUBLISHED / name))


def save(name: str, *, scale: Scale, out: Path) -> str:
    """Writes the rows of the finished runs into the repository, so that other machines go on; returns what is saved.

    Rows that were saved before under the same rule stay until a row of the same name replaces them: those that do not
    count now may be of other data, or of values that are not picked yet.

    Raises:
      ValueError: one line, if no run is finished under the rule as it is stated now.
    """
    experiment, path = _load(name, scale), saved_rows.path_of(name, scale)
    progress = _progress(name, scale=scale, out=out)
    rows = saved_rows.current(progress.rows, scale, alike=experiment.decides_alike)
    every = forecast.all_runs(experiment, scale, progress.rows, published=results.published(name))
    counts = f"{name}: {len(rows)} of {len(every)} runs at scale {scale} are"
    before = len(progress.rows) - len(rows)
    others = f" ({before} more were begun under another rule)" if before else ""
    if not rows:
        raise ValueError(f"{counts} finished{others}; run it first")
    names = {row["run"] for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    results.write_rows(path, [*rows, *(row for row in progress.saved if row["run"] not in names)])
    named = f"{name} --scale={scale}"
    then = (
        f"Commit it before further runs: `python -m experiments run {named}` goes on from it on any machine that has it"
    )
    if len(progress.rows) == len(progress.runs):
        then = f"All are finished: `python -m experiments publish {named}` makes the report of them"
    return f"{counts} saved in {path}{others}\n{then}"


def check(name: str, *, scale: Scale) -> None:
    """Raises ValueError, one line, if there is no such experiment, or it has no such scale."""
    _load(name, scale)


def publish(name: str, *, scale: Scale, out: Path, scale_change: run_folders.CodeChange = "refuse") -> str:
    """Writes rows, report and figure of the finished runs into the repository, and returns the text.

    Raises:
      ValueError: one line, if a run is not finished, or unless ``scale_change`` is "accept" if rows of a larger scale
        are published.
    """
    experiment, progress = _load(name, scale), _progress(name, scale=scale, out=out)
    runs, rows = progress.runs, progress.rows
    if len(rows) < len(runs):
        counts = f"{len(rows)} of {len(runs)} runs at scale {scale} are finished"
        raise ValueError(f"{name}: {counts}; `run` finishes the others, `save` lets another machine do so")
    larger = [row for row in results.published(name) if SCALES.index(scale_of([row])) > SCALES.index(scale)]
    if larger and scale_change == "refuse":
        found = f"{len(larger)} rows of scale {scale_of(larger)} are published, which these would replace"
        raise ValueError(
            f"scale={scale!r}: {name}: {found}; publish --scale={scale_of(larger)}, or --accept_scale_change"
        )
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
    """Returns the table of docs/experiments.md: one row per claim, with the verdict of the published rows."""
    return report.overview(_published())


def run_sweep(
    sweep: Sweep,
    *,
    root: Path,
    goal: Goal,
    jobs: int,
    shard: Shard,
    code_change: run_folders.CodeChange = "refuse",
    until: float = math.inf,
    by: str | None = None,
) -> tuple[str, list[Failure]]:
    """Finishes the runs of a sweep, writes their table and figure into its folder, and returns what it found.

    Raises:
      ValueError: one line, for a config that is not valid, for ``by`` if the points do not differ in it, and unless all
        runs have the same code of the user's own.
    """
    sweep_groups.key_of(SweepResults(sweep=sweep, rows=[], goal=goal), by)
    results.check_code(sweep.runs, root=root, code_change=code_change)
    failures = finish(
        root.name, lambda rows: sweep.runs, root=root, command=queue.train_command, jobs=jobs, shard=shard, until=until
    )
    if code_change == "refuse":  # it may have been edited meanwhile
        results.check_code(sweep.runs, root=root, code_change=code_change)
    rows = results.finished(sweep.runs, root=root)
    root.mkdir(parents=True, exist_ok=True)  # the time may be up before a run has begun
    return _write_sweep(SweepResults(sweep=sweep, rows=rows, goal=goal), root=root, by=by), failures


def _write_sweep(found: SweepResults, *, root: Path, by: str | None) -> str:
    """Writes table.md, table.csv and figure.png into the folder of a sweep, and returns the text of the command."""
    key = sweep_groups.key_of(found, by)
    of_groups = sweep_groups.text(found, key) if key else ""
    text = "\n\n".join(filter(None, [of_groups, sweep_table.text(found)]))
    others = _runs_of_other_points(found, root=root)
    if others:
        text += f"\n{others} more runs in this folder are of other points: python -m experiments ls {root}\n"
    run_folders.write_atomically(root / SWEEP_TABLE, text.encode())
    run_folders.write_atomically(root / SWEEP_CSV, sweep_table.comma_separated(found).encode())
    written = [str(root / SWEEP_TABLE), str(root / SWEEP_CSV)]
    try:
        drawing.save(sweep_figure.draw(found), root / SWEEP_FIGURE, dpi=drawing.DPI)
        written.append(str(root / SWEEP_FIGURE))
    except ValueError as error:
        (root / SWEEP_FIGURE).unlink(missing_ok=True)  # that of another grid would not be of this table
        written.append(f"no figure: {error}")
    return "\n".join([text, *written])


def _runs_of_other_points(found: SweepResults, *, root: Path) -> int:
    """Returns the number of runs in the folder of a sweep that are not of its points."""
    own = {results.folder_of(run, root) for run in found.sweep.runs}
    return len([folder for folder in saved_runs.below(root) if folder not in own])


def listing(*, out: Path) -> str:
    """Returns a list of the experiments, the shortest first: name, claim, predicted time, state."""
    found = {}
    for name, (experiment, rows) in _published().items():
        done = {scale: len(list((out / name / scale).glob("*/DONE"))) for scale in experiment.hours}
        alike = experiment.decides_alike
        saved = {scale: saved_rows.current(saved_rows.read(name, scale), scale, alike=alike) for scale in done}
        here = [f"{count} runs here at {scale}" for scale, count in done.items() if count]
        here += [f"{len({row['run'] for row in of})} runs saved at {scale}" for scale, of in saved.items() if of]
        state = f"{experiment.verdict(rows).word} ({len(rows)} published runs)" if rows else "not published"
        predicted = {scale: forecast.time_of(experiment, scale, published=rows) for scale in experiment.hours}
        times = ", ".join(f"{scale} {time}" for scale, (_, time) in predicted.items())
        text = f"{name}\n    {experiment.prose.claim}\n    {times}; {', '.join([state, *here])}"
        found[text] = predicted["laptop"]
    return "\n".join(sorted(found, key=found.__getitem__))


def rows_of(name: str) -> str:
    """Returns a list of the published rows of an experiment: minutes that the run took, and its name for `rerun`."""
    claims.load(name)
    lines = [
        f"{forecast.minutes(math.nan if seconds is None else seconds):>10}  {name}/{row['run']}"
        for row in results.published(name)
        for seconds in [row["origin"]["wall_seconds"]]
    ]
    return "\n".join(lines) or f"{name}: nothing is published"


def published_names() -> list[str]:
    """Returns the experiments that have published rows; says on standard error which have none."""
    without = [name for name in claims.in_order() if not results.published(name)]
    if without:
        say(f"nothing is published of {', '.join(without)}", error=True)
    return [name for name in claims.in_order() if name not in without]


def _published() -> dict[str, tuple[Claim, Rows]]:
    """Returns all experiments, each with its published rows."""
    return {name: (experiment, results.published(name)) for name, experiment in claims.in_order().items()}


def _progress(name: str, *, scale: Scale, out: Path, start: Start = "saved") -> Progress:
    """Returns how far an experiment is; says on standard error how many saved rows do not count, and why."""
    saved = saved_rows.read(name, scale) if start == "saved" else []
    progress = progress_of(_load(name, scale), scale, root=out / name / scale, saved=saved)
    if progress.note:
        say(f"{name}: {progress.note}", error=True)
    return progress


def _load(name: str, scale: Scale) -> Claim:
    experiment = claims.load(name)
    if scale not in experiment.hours:
        raise ValueError(f"scale={scale!r}: {name} has {', '.join(experiment.hours)}")
    return experiment


def _write(experiment: Claim, rows: Rows, folder: Path, *, log: Sequence[Publication]) -> str:
    figure = "figure.png" if experiment.enough(rows) else ""
    if figure:
        picture = report.draw(experiment, rows)
        with experiment.reading_rows():  # matplotlib lays texts out as it saves
            drawing.save(picture, folder / figure, dpi=200)
    text = report.section(experiment, rows, figure=figure, log=log)
    run_folders.write_atomically(folder / "report.md", text.encode())
    return text
