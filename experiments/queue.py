"""Runs one after another, or some at once: what is finished stays, what was killed goes on, what fails is told."""

import contextlib
import io
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import runs as run_folders
from experiments import results
from experiments.experiment import Run
from launch.children import collected_signals, last_line

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.2
SHOW_SECONDS = {"terminal": 2.0, "log": 60.0}  # between two looks at the records, which are read whole


class Failure(NamedTuple):
    """A run that ended without being finished."""

    run: Run
    folder: Path
    reason: str  # the last line that it printed


class Interrupted(Exception):
    """A signal asked to stop; the runs were asked to save, and ended."""


class _Job(NamedTuple):
    run: Run
    folder: Path
    process: subprocess.Popen
    cores: frozenset[int]


def execute(
    runs: Sequence[Run], *, root: Path, command: Callable[[Run, Path], Sequence[str]], jobs: int = 1, title: str = ""
) -> list[Failure]:
    """Finishes those runs that are not finished, and shows how far all of them are.

    Each is a process of its own, so that one that fails takes nothing with it. Several at once share the cores of this
    process out among them. The first SIGINT or SIGTERM is handed on, and a run of train.py then saves and stops; the
    next one kills what has not stopped by then.

    Args:
      runs: what to run, in this order.
      root: folder of their folders.
      command: run, folder -> the command line that does it, or goes on with it, in that folder.
      jobs: how many at once.
      title: of the progress bar.

    Returns:
      Those that failed. The rest is finished.

    Raises:
      Interrupted: after a signal.
    """
    from tqdm import tqdm

    folders = {run: results.folder_of(run, root) for run in _unique(runs)}
    waiting = [run for run in folders if results.state_of(folders[run]) != "finished"]
    free = _shares(jobs)
    active: list[_Job] = []
    failures: list[Failure] = []
    total = sum(run.cost for run in folders)
    at_start = total - sum(run.cost for run in waiting)
    stream, interval = (sys.stderr, "terminal") if sys.stderr.isatty() else (_Lines(), "log")
    with (
        collected_signals() as caught,
        _ending(active),
        tqdm(total=round(total, 3), initial=round(at_start, 3), desc=title, file=stream, bar_format=_BAR) as bar,
    ):
        handed_on, shown = 0, -math.inf
        while waiting or active:
            for job in [job for job in active if job.process.poll() is not None]:
                active.remove(job)
                free.append(job.cores)
                if results.state_of(job.folder) != "finished" and not caught:
                    failures.append(_failure(job))
            if caught:
                if not active:
                    raise Interrupted(signal.Signals(caught[0]).name)
                if len(caught) > handed_on:  # the first asks runs to save, a second one to stop at once
                    handed_on = len(caught)
                    _tell(active, signal.SIGTERM if handed_on == 1 else signal.SIGKILL)
            while free and not caught and (run := _next(waiting, folders)) is not None:
                waiting.remove(run)
                active.append(_start(run, folders[run], command(run, folders[run]), free.pop(), cache=root / "xla"))
            waiting = [run for run in waiting if results.state_of(folders[run]) != "finished"]  # elsewhere, meanwhile
            if time.monotonic() - shown >= SHOW_SECONDS[interval]:
                _show(bar, folders, waiting, active, failures)
                shown = time.monotonic()
            time.sleep(POLL_SECONDS)
        _show(bar, folders, waiting, active, failures)
    return failures


def fraction_done(run: Run, folder: Path) -> float:
    """Returns how much of a run of train.py its records say is done, 0 to 1; 0 for what keeps none, or damaged ones.

    >>> fraction_done(Run(labels={}), Path("nowhere"))
    0.0
    """
    if not run.spec:
        return 0.0
    try:
        last = run_folders.read(folder / "metrics.jsonl")[-1]
        steps, epochs = run.config["train_steps"], run.config["train_epochs"]
        return min(1.0, last["step"] / steps if steps else last["epoch"] / epochs)
    except (OSError, ValueError, LookupError, TypeError):  # the run itself says what is wrong, not its progress
        return 0.0


class _Lines(io.TextIOBase):
    """Makes each state of a progress bar a line of standard error, for logs."""

    def write(self, text: str) -> int:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)
        return len(text)


_BAR = "{desc}: {percentage:3.0f}%|{bar:24}| {elapsed} so far, {remaining} left{postfix}"


def _show(bar: Any, folders: dict, waiting: Sequence[Run], active: Sequence[_Job], failures: Sequence[Failure]) -> None:
    done = len(folders) - len(waiting) - len(active) - len(failures)
    ahead = sum(run.cost for run in waiting) + sum(
        job.run.cost * (1 - fraction_done(job.run, job.folder)) for job in active
    )
    failed = f", {len(failures)} failed" if failures else ""
    elsewhere = ", waiting for another process" if waiting and not active else ""
    bar.set_postfix_str(f"{done} of {len(folders)} runs{failed}{elsewhere}", refresh=False)
    bar.n = max(bar.n, round(bar.total - ahead, 3))
    bar.refresh()


def _unique(runs: Sequence[Run]) -> list[Run]:
    names = [run.name for run in runs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"runs: {sorted(twice)[0]!r} is there twice")
    return list(runs)


def _next(waiting: Sequence[Run], folders: dict) -> Run | None:
    """The first run that nobody else is at."""
    return next((run for run in waiting if results.state_of(folders[run]) in ("new", "begun")), None)


def _start(run: Run, folder: Path, command: Sequence[str], cores: frozenset[int], *, cache: Path) -> _Job:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"JAX_COMPILATION_CACHE_DIR": str(cache), **os.environ}  # runs of one experiment compile the same
    with open(folder / "output.log", "ab") as log:
        # In a group of its own: Ctrl-C is for the queue, which hands it on once.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    if cores:
        with contextlib.suppress(OSError):  # it may have ended
            os.sched_setaffinity(process.pid, cores)  # before it has threads, which inherit it
    return _Job(run, folder, process, cores)


def _shares(jobs: int) -> list[frozenset[int]]:
    """The cores of this process, shared out; the empty set where there is nothing to share out."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if jobs == 1 or len(cores) < jobs:
        return [frozenset()] * jobs
    return [frozenset(cores[i::jobs]) for i in range(jobs)]


def _failure(job: _Job) -> Failure:
    said = ""
    with contextlib.suppress(OSError), open(job.folder / "output.log", "rb") as log:  # the folder may be gone
        said = last_line(log)
    said = said or "it said nothing"
    return Failure(job.run, job.folder, f"exit code {job.process.returncode}: {said[-300:]}")


def _tell(jobs: Sequence[_Job], number: int) -> None:
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, number)


@contextlib.contextmanager
def _ending(active: Sequence[_Job]) -> Iterator[None]:
    """Leaves no run behind, however the queue ends, but for SIGKILL: such a run ends by itself, and is waited for."""
    try:
        yield
    finally:
        _tell(active, signal.SIGKILL)


def train_command(run: Run, folder: Path) -> list[str]:
    """Returns the command that does a run of a config."""
    return [sys.executable, "train.py", *run.arguments, f"--workdir={folder}"]
