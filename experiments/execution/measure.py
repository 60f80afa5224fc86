"""A measurement as a run: like a run of train.py, it has its own process, folder, lock and DONE."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax

import runs as run_folders
from experiments import claims
from experiments.execution import results
from experiments.study.run import Run
from launch.output import say


def measure(measured: Callable[..., dict[str, Any]] | None, run: Run, folder: Path) -> None:
    """Calls a claim's ``measure`` with the run's labels, and writes its row.

    Raises:
      ValueError: one line, if another process is working on it, or the folder holds another run.
    """
    devices = [device.device_kind for device in jax.devices()]
    if measured is None:
        raise ValueError(f"run={run.name!r}: has no config, and the claim measures nothing")
    with run_folders.open_run(str(folder), run.config, devices=devices) as held:
        if held.summary is not None:
            return
        start = time.perf_counter()
        row = measured(**run.labels)
        seconds = time.perf_counter() - start
        results.write_rows(held.path / "row.jsonl", [row])
        held.finish({"wall_seconds": seconds})


def command(name: str, run: Run, folder: Path) -> list[str]:
    """Returns the command line of a measurement."""
    labels = json.dumps(dict(run.labels))
    return [sys.executable, "-m", "experiments.execution.measure", name, labels, str(folder)]


def main(argv: list[str]) -> int:
    """Runs the measurement NAME LABELS FOLDER for the queue; returns the exit code."""
    name, labels, folder = argv
    try:
        measure(claims.load(name).measure, Run(labels=json.loads(labels)), Path(folder))
    except ValueError as error:
        say(str(error), error=True)
        return 2
    return 0


if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
