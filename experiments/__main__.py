"""Experiments: list, run, report, reproduce, save, publish, figure, verify, sweep, ls, export; each with --help.

    python -m experiments reproduce convergence_constants
    python -m experiments verify convergence_constants --rows=2
    python -m experiments run lenet_workers --scale=laptop --jobs=2 --shard=1/4
    python -m experiments save lenet_workers
    python -m experiments report lenet_workers
    python -m experiments figure lenet_workers --format=pdf --columns=2
    python -m experiments sweep --config=configs/digits.py --grid reducer.name=mean,adasum --seeds=3
    python -m experiments ls out/sweeps --until accuracy=0.97
    python -m experiments export out/digits --output=params.safetensors

Finished runs are not run again, killed runs resume, and failed runs are listed without stopping the rest.
"""

import argparse
import math
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import runs as run_folders
from experiments import commands
from experiments.execution import listing, verify
from experiments.execution.export import export
from experiments.execution.finish import Shard
from experiments.execution.progress import Progress, progress_of
from experiments.execution.queue import Interrupted
from experiments.study import datasets
from experiments.study.run import SCALES
from experiments.sweeps import sweep
from experiments.sweeps.goal import Goal
from experiments.sweeps.sweep import Sweep
from launch.output import say
from launch.parser import Parser
from runs import CodeChange
from runs.errors import one_line
from runs.reporting import sinks
from runs.reporting.figures import FORMATS, add_size

MAX_RUNS = 100_000  # in a sweep, whose points are made before the first one runs
TRUST = "modules outside of this repository that a config.json may run, separated by commas"
OUT, SWEEPS, VERIFIED, FIGURES = "out/experiments", "out/sweeps", "out/verify", "out/figures"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    top = Parser(prog="python -m experiments", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    kinds = top.add_subparsers(dest="command", required=True, parser_class=Parser)

    scaled, imaged, queued, dry, drawn = (Parser(add_help=False) for _ in range(5))
    scaled.add_argument("name")
    scaled.add_argument("--scale", choices=SCALES, default="laptop", help="default: laptop")
    imaged.add_argument("--data", choices=[datasets.STAND_IN], help="images that stand in for MNIST")
    queued.add_argument(
        "--jobs", type=int, default=1, help="number of runs at once, which share the cores (default: 1)"
    )
    queued.add_argument("--minutes", type=float, help="after so many minutes, runs save and stop, to be gone on with")
    queued.add_argument("--shard", default="1/1", help="i/n: run every n-th run, as machine i of n")
    drawn.add_argument("--format", choices=[ending[1:] for ending in FORMATS], default="png", help="default: png")
    add_size(drawn)
    dry.add_argument("--dry_run", action="store_true", help="print the commands, run nothing")

    def command(name: str, does: str, *parents: Parser, out: str = OUT, folder: str = "") -> argparse.ArgumentParser:
        kind = kinds.add_parser(name, help=does, description=does, allow_abbrev=False, parents=parents)
        if folder:
            kind.add_argument("out", metavar="FOLDER", type=Path, help=folder)
        else:
            kind.add_argument("--out", type=Path, default=Path(out), help=f"folder of the runs (default: {out})")
        return kind

    listed = command("list", "print names, claims, predicted times and state, or the published rows of one experiment")
    listed.add_argument("name", nargs="?")
    listed.add_argument("--readme", action="store_true", help="print the tables of docs/claims.md")
    command("run", "finish the runs of an experiment", scaled, imaged, queued, dry)
    command("report", "table, figure and verdict of the finished runs", scaled, imaged)
    command("reproduce", "run, report, and compare with the published rows", scaled, imaged, queued, dry)
    does = "write the rows of the finished runs into the repository, for other machines to go on from"
    command("save", does, scaled, imaged)
    published = command("publish", "write rows, report and figure into the repository", scaled)
    published.add_argument(
        "--accept_scale_change", action="store_true", help="replace published rows of a larger scale"
    )

    does = "draw the published rows of an experiment, in the format and the width of a paper"
    figure = command("figure", does, drawn, out=FIGURES)
    figure.add_argument("name", nargs="?", help="an experiment (default: every experiment)")

    does = "run published rows again, and say how equal the numbers are"
    verified = command("verify", does, out=VERIFIED)
    verified.add_argument(
        "name", nargs="?", help="an experiment, or NAME/RUN as in `list NAME` (default: every experiment)"
    )
    verified.add_argument("--rows", type=int, default=2, help="number of rows, the cheapest first (default: 2)")
    verified.add_argument("--jobs", type=int, default=1, help="number of runs at once (default: 1)")

    does = "run a config with many values, and compare them on the validation split"
    swept = command("sweep", does, queued, drawn, out=SWEEPS)
    swept.add_argument("--config", required=True, help="config file, with an optional :variant")
    swept.add_argument("--set", action="append", default=[], help="key=value for all runs")
    swept.add_argument("--grid", action="append", default=[], help="key=a,b,c: combine each value with the other grids")
    swept.add_argument("--zip", action="append", default=[], help="key=a,b,c: take values in step with the other zips")
    swept.add_argument("--draw", action="append", default=[], help="key=loguniform(a,b), uniform(a,b) or choice(x,y)")
    swept.add_argument("--draws", type=int, default=8, help="number of points to draw (default: 8)")
    swept.add_argument("--seeds", type=int, default=1, help="number of seeds per point (default: 1)")
    swept.add_argument("--metric", help="metric that points are compared by (default: the task's own)")
    swept.add_argument("--goal", choices=("max", "min"), help="which values are better (default: by the metric)")
    swept.add_argument(
        "--median_rule",
        type=int,
        metavar="N",
        help="stop runs early that are behind N or more finished ones",
    )
    swept.add_argument("--sink", action="append", default=[], help="send the records of each run, as train.py's flag")
    swept.add_argument("--by", help="key whose values are compared (default: the first whose values are no numbers)")
    swept.add_argument("--name", help="name of the sweep's folder (default: from the config and --set)")
    swept.add_argument("--trust_module", help=TRUST)
    swept.add_argument("--num_devices", type=int, help="number of devices per run")
    swept.add_argument("--accept_code_change", action="store_true", help="keep runs of your own code as it was")

    held = command("ls", "list the runs below a folder", folder="a sweep, an experiment, or any other folder with runs")
    held.add_argument(
        "--until",
        metavar="NAME=VALUE",
        help="add when each run first reached a value of its evaluations, in steps and seconds, such as accuracy=0.97",
    )
    held.add_argument(
        "--goal",
        choices=["max", "min"],
        help="which values --until takes for better (default: max of accuracies, else min)",
    )
    does = "write the parameters and statistics with which a run is evaluated as a safetensors file"
    exported = command("export", does, folder="of the run, finished or not")
    exported.add_argument("--checkpoint", default="best", help="best (the default), latest, or a step")
    exported.add_argument("--trust_module", default="", help=TRUST)
    exported.add_argument("--output", type=Path, help="the file (default: FOLDER/params.safetensors)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, 1 if a run failed or a row differs, 2 for bad input, or 128 + n after signal n."""
    try:
        given = parser().parse_args(argv)
        given.out = run_folders.expand(str(given.out), key="out")
        for key in ("jobs", "seeds", "draws", "rows", "num_devices", "median_rule"):
            value = getattr(given, key, None)
            if value is not None and value < 1:
                raise ValueError(f"{key}={value}: must be in [1, inf)")
        with datasets.stand_in(getattr(given, "data", None)):
            return _execute(given)
    except (ValueError, OSError, run_folders.SaveError) as error:
        say(one_line(f"experiments: {run_folders.files.reason(error)}"), error=True)
        return 2
    except Interrupted as stopped:
        print(f"stopped by {stopped}; the same command resumes", file=sys.stderr)
        return 128 + signal.Signals[str(stopped)]


def _shard(given: argparse.Namespace) -> Shard:
    """Returns the share of this machine; its time begins now."""
    until = math.inf
    if given.minutes is not None:
        if not 0 < given.minutes < math.inf:
            raise ValueError(f"minutes={given.minutes:g}: must be in (0, inf)")
        until = time.monotonic() + 60 * given.minutes
    return Shard.parse(given.shard)._replace(jobs=given.jobs, until=until)


def _execute(given: argparse.Namespace) -> int:
    """Executes a command whose arguments are in their ranges."""
    match given.command:
        case "list" if given.readme:
            say(commands.overview())
        case "list" if given.name is not None:
            say(commands.rows_of(given.name))
        case "list":
            say(commands.listing(out=given.out))
        case "run" | "reproduce":
            return _run(given)
        case "verify":
            chosen = verify.chosen(given.name, count=given.rows)
            are_equal = True
            for text, is_equal in verify.verify(chosen, out=given.out, jobs=given.jobs):
                say(text)
                are_equal &= is_equal
            return 0 if are_equal else 1
        case "report":
            say(commands.write_report(_progress(given)))
        case "save":
            say(commands.save(_progress(given)))
        case "publish":
            say(commands.publish(_progress(given), accept_scale_change=given.accept_scale_change))
        case "figure":
            say(commands.draw(given.name, folder=given.out, figure=_picture(given)))
        case "sweep":
            swept = _sweep_of(given)
            code_change: CodeChange = "accept" if given.accept_code_change else "refuse"
            text, failures = commands.run_sweep(
                swept,
                root=given.out / _folder_name(given.name or swept.name),
                goal=Goal.of(swept.runs, metric=given.metric, mode=given.goal),
                shard=_shard(given),
                code_change=code_change,
                by=given.by,
                median_of=given.median_rule,
                figure=_picture(given),
            )
            say(text)
            return 1 if failures else 0
        case "ls":
            until = None if given.until is None else listing.Until.parse(given.until, mode=given.goal)
            say(listing.of_folder(given.out, until=until))
        case "export":
            trusted = given.trust_module.split(",")
            say(str(export(given.out, checkpoint=given.checkpoint, output=given.output, trusted=trusted)))
    return 0


def _picture(given: argparse.Namespace) -> commands.Picture:
    return commands.Picture(given.format, given.columns, given.dpi)


def _progress(given: argparse.Namespace) -> Progress:
    """Returns how far an experiment is; `reproduce` ignores saved rows, so that this machine makes every row itself."""
    return progress_of(given.name, scale=given.scale, out=given.out, anew=given.command == "reproduce")


def _run(given: argparse.Namespace) -> int:
    """Runs an experiment."""
    shard = _shard(given)
    if given.dry_run:
        say(commands.dry_run(_progress(given), shard=shard))
        return 0
    failures = commands.run_experiment(_progress(given), shard=shard)
    if given.command == "reproduce":
        progress = _progress(given)
        say(commands.write_report(progress))
        say(commands.compare(progress))
    return 1 if failures else 0


def _sweep_of(given: argparse.Namespace) -> Sweep:
    """Returns the sweep that the arguments describe.

    Raises:
      ValueError: one line, for a key that is given twice or is not valid.
    """
    keys = [text.partition("=")[0] for text in (*given.grid, *given.zip, *given.draw, *given.set)]
    if repeated := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"{repeated[0]}: is given twice; list its values in one place, as in {repeated[0]}=A,B")
    if "seed" in keys and given.seeds > 1:
        raise ValueError(f"seeds={given.seeds}: must be left out where the sweep sets seed")
    drawn = {key: str(law) for key, law in map(sweep.value_of, given.draw)}
    grids = dict(sweep.values_of(text) for text in given.grid)
    count = math.prod(map(len, grids.values())) * (given.draws if drawn else 1) * given.seeds
    if count > MAX_RUNS:
        raise ValueError(f"sweep: would have {count} runs; must be in [1, {MAX_RUNS}]")
    parts: list[Sequence[sweep.Point]] = []
    if grids:
        parts.append(sweep.grid(grids))
    if given.zip:
        parts.append(sweep.zipped(dict(sweep.values_of(text) for text in given.zip)))
    if drawn:
        parts.append(sweep.drawn(drawn, count=given.draws))
    for name in given.sink:
        sinks.find(name)
    flags = {}
    for key in ("num_devices", "accept_code_change", "trust_module", "sink"):
        if value := getattr(given, key):
            flags[key] = value
    return Sweep(
        spec=given.config,
        fixed=dict(sweep.value_of(text) for text in given.set),
        points=sweep.combined(*(parts or [sweep.of_config(given.config)])),
        drawn=drawn,
        seeds=given.seeds,
        flags=flags,
    )


def _folder_name(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"name={name!r}: must be the name of one folder")
    return name


if __name__ == "__main__":
    sys.exit(main())
