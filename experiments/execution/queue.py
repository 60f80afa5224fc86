"""Executes runs one after another, or several at once: skips finished runs, resumes killed ones, lists failed ones."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import runs as run_folders
from experiments.execution import results, stopped
from experiments.execution.results import ENDED, RULE
from experiments.execution.stopped import Stopped
from experiments.study.run import Rows, Run
from launch import signals
from launch.children import ROOT, Children, last_line, with_repository
from launch.output import say
from reducers.arrivals import foreign_files
from runs import lock

POLL_SECONDS = 0.2
FULL_BYTES = 1 << 16  # a disk with less has no room for a run
STOPPED = {code for number in signals.STOPS for code in (128 + number, -number)}  # exit codes after a request to stop

Command = Callable[[Run, Path], Sequence[str]]  # run, folder -> the command line that starts or resumes it there
Judge = Callable[[Run, Path], Stopped | None]  # run, folder -> why the run is to be stopped early; None if it goes on


class Failure(NamedTuple):
    """A run whose process ended before the run was finished.

    Attributes:
      run: the run.
      folder: its folder, with output.log.
      reason: its exit code and the last line that it printed.
    """

    run: Run
    folder: Path
    reason: str


class Interrupted(Exception):
    """A signal stopped the queue, after the active runs had saved and ended."""


class _Job(NamedTuple):
    """An active run."""

    run: Run
    folder: Path
    process: subprocess.Popen
    cores: frozenset[int]


def execute(
    runs: Sequence[Run],
    *,
    root: Path,
    command: Command,
    jobs: int = 1,
    title: str = "",
    until: float = math.inf,
    rule: Mapping[str, str] | None = None,
    saved: Rows = (),
    judge: Judge = lambda run, folder: None,
) -> list[Failure]:
    """Finishes the runs that are not finished, and says on standard error how many are.

    Several queues may have the same runs: each leaves a run to the process that works on it, and waits for it in the
    end.

    Each run is a process of its own, so that its failure does not affect the others. Runs that are active at the same
    time divide the cores of this process among them. The first signal of ``signals.STOPS`` is forwarded to the active
    runs, at which train.py saves and stops; the second one kills those that have not stopped by then. When the time is
    up, the active runs are asked to save and stop in the same way, and no further one is started.

    Args:
      runs: the runs, in the order in which they start.
      root: the folder that contains the runs' folders.
      command: run, folder -> command line.
      jobs: how many runs are active at the same time.
      title: beginning of the lines on standard error.
      until: when the time is up, on the clock of ``time.monotonic``.
      rule: the experiment's rule as stated now, which is recorded in the folder of each run that has not begun.
      saved: rows of runs that another machine has finished.
      judge: is asked again and again about each active run; the runs that it stops count as finished.

    Returns:
      The runs that failed; all others are finished, or not yet if the time is up.

    Raises:
      ValueError: if two runs have the same name.
      Interrupted: after a signal.
    """
    names = [run.name for run in runs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"runs: two are named {min(repeated)!r}")
    folders = {run: results.folder_of(run, root) for run in runs}
    waiting = results.unfinished(runs, root=root, saved=saved)
    active: list[_Job] = []
    failures: list[Failure] = []
    free_cores = _divide_cores(jobs, num_runs=len(runs))
    cache = {"JAX_COMPILATION_CACHE_DIR": str(root / "xla")}  # similar runs share programs
    environment = with_repository({**cache, **os.environ})
    with Children() as children:

        def state() -> str:
            finished = len(folders) - len(waiting) - len(active) - len(failures)
            failed = f", {len(failures)} failed" if failures else ""
            holder = _holder(folders[waiting[0]]) if waiting and not active else ""
            return f"{title}: {finished} of {len(folders)} runs{failed}{holder and f', waiting: {holder}'}"

        def start(run: Run) -> bool:
            """Starts a run; returns False if another queue is quicker, and starts it itself."""
            folder, cores = folders[run], free_cores[-1]
            folder.mkdir(parents=True, exist_ok=True)
            try:
                claim = lock.take(str(folder), folder, name=lock.QUEUE)
            except lock.InUse:
                return False
            try:
                if rule and not (folder / RULE).exists():
                    run_folders.write_atomically(folder / RULE, json.dumps(rule).encode())
                line, allowed = command(run, folder), sorted(cores)[: run.cores]
                with foreign_files.opened_to_append(folder / "output.log") as log:
                    held = {"cores": allowed, "keep": [claim.descriptor]}
                    process = children.start(line, output=log, environment=environment, **held)
            finally:
                claim.release()  # the process keeps it
            waiting.remove(run)
            free_cores.pop()
            active.append(_Job(run, folder, process, cores))
            return True

        def stop_early() -> None:
            """Stops the active runs that the judge does not let go on."""
            for job in active:
                if results.state_of(job.folder) in ENDED or (why := judge(job.run, job.folder)) is None:
                    continue
                stopped.write(job.folder, why)  # before it ends, so that it stays stopped if this process is killed
                children.terminate(job.process)
                say(f"{title}: {job.run.name}: {why.state} at step {why.step}", error=True)

        stopping, said = False, ""
        while active or (waiting and not stopping):
            for job in [job for job in active if job.process.poll() is not None]:
                active.remove(job)
                free_cores.append(job.cores)
                if results.state_of(job.folder) in ENDED or children.signals:
                    continue
                elsewhere = results.state_of(job.folder) == "held"  # by a process that no queue started
                if elsewhere or (stopping and job.process.returncode in STOPPED):
                    waiting.append(job.run)
                else:
                    failures.append(_failure(job))
            children.forward_signals()
            stop_early()
            if not stopping and time.monotonic() >= until:
                stopping = True
                children.terminate()
            if children.signals and not active:
                raise Interrupted(signal.Signals(children.signals[0]).name)
            ending = children.signals or stopping
            while free_cores and not ending and (run := _next(waiting, folders, active)) is not None:
                try:
                    if not start(run):
                        break
                except OSError as error:  # a full disk, say
                    waiting.remove(run)
                    failures.append(Failure(run, folders[run], f"could not be started: {error}"))
            waiting = [run for run in waiting if results.state_of(folders[run]) not in ENDED]  # by another queue
            if (now := state()) != said:
                said = now
                say(said, error=True)
            time.sleep(POLL_SECONDS)
    return [failure for failure in failures if results.state_of(failure.folder) not in ENDED]  # by another queue


def train_command(run: Run, folder: Path) -> list[str]:
    """Returns the command line that executes a run of a config by train.py."""
    return [sys.executable, str(ROOT / "train.py"), *run.arguments, f"--workdir={folder}"]


def _next(waiting: Sequence[Run], folders: dict[Run, Path], active: Sequence[_Job]) -> Run | None:
    """Returns the first run that no process is working on, under this name or another one of the same config."""
    busy = {job.folder for job in active}
    for run in waiting:
        if folders[run] not in busy and results.state_of(folders[run]) in ("new", "begun"):
            return run
    return None


def _holder(folder: Path) -> str:
    """Returns the process that has a run, in words; "" if none has."""
    with contextlib.suppress(OSError):  # the run itself reports what is wrong
        return run_folders.holder(folder)
    return ""


def _divide_cores(jobs: int, *, num_runs: int) -> list[frozenset[int]]:
    """Divides the cores of this process among the jobs; too few cores give empty sets, which stand for all."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < jobs:
        return [frozenset()] * min(jobs, num_runs)
    return [frozenset(cores[i::jobs]) for i in range(jobs)]


def _failure(job: _Job) -> Failure:
    said = ""
    with contextlib.suppress(OSError), foreign_files.opened(job.folder / "output.log") as log:  # the folder may be gone
        said = last_line(log)[-300:]
    if not said:
        said = "it said nothing"
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(job.folder).free
            if free < FULL_BYTES:
                said += f"; the disk of {str(job.folder)!r} has {free} bytes left"
    return Failure(job.run, job.folder, f"exit code {job.process.returncode}: {said}")
