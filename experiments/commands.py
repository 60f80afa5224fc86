"""The actions behind the commands: finish runs, report on them, publish them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import runs as run_folders
from experiments import claims, queue, report, results, sweep_report
from experiments.experiment import Experiment, Reduce, Row, Rows, Run, Scale, evaluations
from experiments.goal import Goal
from experiments.measure import command as measure_command
from experiments.queue import Command, Failure
from experiments.sweep import Sweep
from experiments.sweep_results import SweepResults


class Shard(NamedTuple):
    """The share of one of several machines, which divide the runs among them: every n-th run."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses "2/4".

        >>> Shard.parse("2/4")
        Shard(number=2, of=4)
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise ValueError(f"shard={text!r}: must be i/n with 1 <= i <= n")
        return cls(int(index), int(count))

    def own(self, runs: Sequence[Run]) -> list[Run]:
        return list(runs[self.number - 1 :: self.of])


WHOLE = Shard(1, 1)
THUMBNAIL_DPI = 40


def finish(
    title: str,
    wanted: Callable[[Rows], Sequence[Run]],
    *,
    root: Path,
    command: Command,
    jobs: int = 1,
    shard: Shard = WHOLE,
    reduce: Reduce = evaluations,
    rule: Mapping[str, str] | None = None,
) -> list[Failure]:
    """Finishes this shard's runs; those that depend on picks start once the rows to pick from are finished.

    Args:
      title: title of the progress bar.
      wanted: rows so far -> runs.
      root: folder of the folders of runs.
      command: run, folder -> command line.
      jobs: number of runs at once.
      shard: the share of this machine.
      reduce: records of a run -> the measurements in its row.
      rule: the experiment's rule as stated now, for the record of each run.

    Returns:
      The runs that failed.
    """
    failures: list[Failure] = []
    known: dict[str, Run] = {}
    while True:
        rows = results.finished(list(known.values()), root=root, reduce=reduce)
        runs = wanted(rows)
        new = [run for run in runs if run.name not in known]
        if not new:
            break
        known = {run.name: run for run in runs}
        failures += queue.execute(shard.own(new), root=root, command=command, jobs=jobs, title=title, rule=rule)
    unfinished = [run for run in known.values() if results.state_of(results.folder_of(run, root)) != "finished"]
    others = len(unfinished) - len(failures)
    if others > 0:
        print(
            f"{title}: {others} runs are for other shards; copy their folders into {root} and repeat", file=sys.stderr
        )
    return failures


def runs_of(experiment: Experiment, scale: Scale, *, root: Path) -> tuple[list[Run], list[Row]]:
    """Returns all runs that the finished ones give rise to, and the rows of the finished ones."""
    rows: list[Row] = []
    while True:
        runs = list(experiment.runs(scale, rows))
        found = results.finished(runs, root=root, reduce=experiment.reduce)
        if len(found) == len(rows):
            return runs, found
        rows = found


def command_of(name: str) -> Command:
    """Returns the command of an experiment's runs: train.py, or the experiment's own measurement."""
    return lambda run, folder: queue.train_command(run, folder) if run.spec else measure_command(name, run, folder)


def run_experiment(name: str, *, scale: Scale, out: Path, jobs: int, shard: Shard) -> list[Failure]:
    """Finishes the runs of an experiment at a scale."""
    experiment, root = _load(name, scale), out / name / scale
    print(
        f"{name} at scale {scale}: about {experiment.hours[scale]:g} h predicted on 2 cores; in {root}", file=sys.stderr
    )
    return finish(
        name,
        lambda rows: experiment.runs(scale, rows),
        root=root,
        command=command_of(name),
        jobs=jobs,
        shard=shard,
        reduce=experiment.reduce,
        rule=experiment.stated,
    )


def write_report(name: str, *, scale: Scale, out: Path) -> str:
    """Writes report.md and figure.png of the finished runs beside them, and returns the text."""
    experiment, root = _load(name, scale), out / name / scale
    _, rows = runs_of(experiment, scale, root=root)
    root.mkdir(parents=True, exist_ok=True)
    return _write(experiment, rows, root)


def publish(name: str, *, scale: Scale, out: Path) -> str:
    """Writes rows, report and figure of the finished runs into the repository, and returns the text."""
    experiment = _load(name, scale)
    runs, rows = runs_of(experiment, scale, root=out / name / scale)
    if len(rows) < len(runs):
        raise ValueError(f"{name}: {len(rows)} of {len(runs)} runs at scale {scale} are finished; run it first")
    folder = results.PUBLISHED / name
    folder.mkdir(parents=True, exist_ok=True)
    results.write_rows(folder / "rows.jsonl", rows)
    return _write(experiment, results.read_rows(folder / "rows.jsonl"), folder)


def overview() -> str:
    """Returns the table of docs/experiments.md: one row per claim, with the verdict of the published rows."""
    return report.overview(_published())


def write_page(out: Path) -> Path:
    """Writes report.md and report.html of all published rows to a folder; returns the path of report.html."""
    found = _published()
    (out / "figures").mkdir(parents=True, exist_ok=True)
    figures, thumbnails = {}, {}
    for name, (experiment, rows) in found.items():
        if experiment.enough(rows):
            figures[name], thumbnails[name] = f"figures/{name}.png", f"figures/{name}-small.png"
            figure = report.draw(experiment, rows)
            figure.savefig(out / figures[name], dpi=200)
            figure.savefig(out / thumbnails[name], dpi=THUMBNAIL_DPI)
    text = report.page(found, figures=figures, thumbnails=thumbnails)
    run_folders.write_atomically(out / "report.md", text.encode())
    run_folders.write_atomically(out / "report.html", report.html(text, folder=out).encode())
    return out / "report.html"


def run_sweep(
    sweep: Sweep,
    *,
    root: Path,
    goal: Goal,
    jobs: int,
    shard: Shard,
    code_change: run_folders.CodeChange = "refuse",
) -> tuple[str, list[Failure]]:
    """Finishes the runs of a sweep, writes their table and figure into its folder, and returns what it found.

    Raises:
      ValueError: one line, for a config that is not valid, and unless all runs have the same code of the user's own.
    """
    results.check_code(sweep.runs, root=root, code_change=code_change)
    failures = finish(
        root.name, lambda rows: sweep.runs, root=root, command=queue.train_command, jobs=jobs, shard=shard
    )
    if code_change == "refuse":  # it may have been edited meanwhile
        results.check_code(sweep.runs, root=root, code_change=code_change)
    rows = results.finished(sweep.runs, root=root)
    return sweep_report.write(SweepResults(sweep=sweep, rows=rows, goal=goal), root=root), failures


def listing(*, out: Path) -> str:
    """Returns a list of the experiments: name, claim, predicted hours, state."""
    lines = []
    for name, (experiment, rows) in _published().items():
        done = {scale: len(list((out / name / scale).glob("*/DONE"))) for scale in experiment.hours}
        here = ", ".join(f"{count} runs here at {scale}" for scale, count in done.items() if count)
        state = f"{experiment.verdict(rows).word} ({len(rows)} published runs)" if rows else "not published"
        hours = ", ".join(f"{scale} {hours:g} h" for scale, hours in experiment.hours.items())
        lines += [name, f"    {experiment.claim}", f"    {hours}; {', '.join(filter(None, (state, here)))}"]
    return "\n".join(lines)


def _published() -> dict[str, tuple[Experiment, Rows]]:
    """Returns all experiments, each with its published rows."""
    return {name: (experiment, results.published(name)) for name, experiment in claims.in_order().items()}


def _load(name: str, scale: Scale) -> Experiment:
    experiment = claims.load(name)
    if scale not in experiment.hours:
        raise ValueError(f"scale={scale!r}: {name} has {', '.join(experiment.hours)}")
    return experiment


def _write(experiment: Experiment, rows: Rows, folder: Path) -> str:
    figure = "figure.png" if experiment.enough(rows) else ""
    if figure:
        report.draw(experiment, rows).savefig(folder / figure, dpi=200)
    text = report.section(experiment, rows, figure=figure)
    run_folders.write_atomically(folder / "report.md", text.encode())
    return text
