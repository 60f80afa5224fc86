"""The time from the start of a command to the end of its first step, as a user sees it.

    python -m benchmarks.start_up
    python -m benchmarks.start_up --repeats=9 --json=out/start_up.json

Runs ``python train.py --config=configs/digits.py`` with one step. The first record is written when that step is done,
before the evaluation, and is flushed at once; the time is from the start of the process to that record, which is polled
every few milliseconds. "cold" has an empty folder of compiled programs; "warm" has the folder of an earlier run, with
all programs that it compiled. "import" is a process that imports train.py and ends, and "import reducers" one that
imports the package alone.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.result import Measured, Target
from launch.children import ROOT, last_line

_POLL_SECONDS = 0.005
_RUN = ("train.py", "--config=configs/digits.py", "--config.train_steps=1")


def until_record(line: Sequence[str], metrics: Path, *, environment: Mapping[str, str]) -> float:
    """Returns the seconds from the start of a process to its first record, and waits for the end of the process.

    Args:
      line: the command line.
      metrics: the file of its records.
      environment: its environment variables.

    Raises:
      RuntimeError: one line, if the process fails or writes no record.
    """
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        with subprocess.Popen(
            line, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            while not _is_not_empty(metrics) and process.poll() is None:
                time.sleep(_POLL_SECONDS)
            seconds = time.perf_counter() - began
        if process.returncode or not _is_not_empty(metrics):
            raise RuntimeError(f"{' '.join(line)}: ended with code {process.returncode}, and said: {last_line(output)}")
    return seconds


def _is_not_empty(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def first_step(compiled: Path, *flags: str) -> float:
    """Returns the seconds to the end of the first step, given a folder of compiled programs and flags of train.py."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        environment = {**os.environ, **taking_turns.keeping_programs(compiled)}
        line = [sys.executable, *_RUN, *flags, f"--workdir={workdir}"]
        return until_record(line, workdir / "metrics.jsonl", environment=environment)


def _cold() -> float:
    with tempfile.TemporaryDirectory() as compiled:
        return first_step(Path(compiled))


def _import(module: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, check=True)
    return time.perf_counter() - began


def benchmark(*, repeats: int, log: command.Log) -> command.Found:
    """Measures imports and first steps in turns; the first round fills the warm folder and is not counted."""
    with tempfile.TemporaryDirectory() as compiled:
        contenders = {
            "import": lambda: _import("train"),
            "reducers": lambda: _import("reducers"),
            "cold": _cold,
            "warm": lambda: first_step(Path(compiled)),
        }
        seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
    found = [
        Measured("import", seconds["import"], "s"),
        Measured("import reducers", seconds["reducers"], "s"),
        Measured("digits, start to first step, cold", seconds["cold"], "s"),
        Measured("digits, start to first step, warm", seconds["warm"], "s", Target("<=", 6)),
    ]
    return command.Found(found, step_loop.devices())


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="start_up", doc=__doc__, argv=sys.argv[1:], repeats=3)
