"""Times the trainer beside ``benchmarks.twins.bare``, a training loop as flax's examples write it.

    python -m benchmarks.bare
    python -m benchmarks.bare --repeats=3 --json=out/bare.json

Both train the MLP of the digits and LeNet-5 on random images with 8 workers, the mean of their gradients and momentum
SGD, on one device and on 8, with one step and with 8 in a call. Ours reads the numbers of every step, and finds out
whether all are finite; the other one reads the losses. "start" is the time from the start of a process to the end of
its first step, with programs that an earlier process has compiled; ours has written a record then. Ratios are those of
our times over the other one's.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np

import models
from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.result import Measured, Target
from benchmarks.twins.bare import Loop
from launch.children import ROOT, last_line
from parallel import Layout, configure_cpu_devices, keep_freed_memory

NUM_WORKERS = 8
POLL_SECONDS = 0.005
OUR_START = ("train.py", "--config=configs/digits.py", "--config.train_steps=1", "--num_devices=1")
PLAIN = ("schedule.name=constant", "optimizer.learning_rate=0.01", "ema_decay=None", "task.label_smoothing=0.0")


class Case(NamedTuple):
    """A config of this repository, and its updates in a turn."""

    name: str
    config: str
    num_updates: int


CASES = (Case("MLP of the digits", "digits", 160), Case("LeNet-5", "mnist", 8))


def benchmark(
    *,
    repeats: int,
    log: command.Log,
    cases: Sequence[Case] = CASES,
    sizes: Sequence[tuple[int, int]] = ((1, 1), (1, 8), (8, 1), (8, 8)),
    starts: int = 5,
) -> command.Found:
    """Measures all cases with each number of devices and of steps per call, then the starts."""
    keep_freed_memory()
    configure_cpu_devices(NUM_WORKERS, num_devices=NUM_WORKERS)
    found = []
    for case in cases:
        setup = step_loop.load(case.config, PLAIN)
        config, info = setup.config, setup.source.info
        index = np.arange(step_loop.NUM_EXAMPLES)[None]
        made = {name: column[0] for name, column in step_loop.made_up(info).train.gather(index, index[0, :1]).items()}
        for num_devices, steps_per_call in sizes:
            name = f"{case.name}, {num_devices} device{'s' if num_devices > 1 else ''}, {steps_per_call} a call"
            log(name)
            layout = Layout.of(NUM_WORKERS, num_devices=num_devices)
            options = {key: value for key, value in config.model.items() if key != "name"}
            network = models.MODELS[config.model.name](**options, num_classes=info.sizes["num_classes"])
            contenders: dict[str, taking_turns.Turn] = {
                "ours": step_loop.Loop(setup, layout, num_updates=case.num_updates, steps_per_call=steps_per_call),
                "bare": Loop(
                    network,
                    made["image"],
                    made["label"],
                    num_workers=NUM_WORKERS,
                    num_devices=num_devices,
                    batch_size=config.batch_size_per_worker,
                    num_updates=case.num_updates,
                    steps_per_call=steps_per_call,
                ),
            }
            seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
            ratio = taking_turns.ratios(seconds, "ours", "bare")
            found.append(Measured(f"{name}, step over bare", ratio, target=Target("<=", 1.05)))
            found += [Measured(f"{name}, {who}", taken, unit="s") for who, taken in seconds.items()]
    with tempfile.TemporaryDirectory() as compiled:
        contenders = {
            "ours": lambda: _our_start(Path(compiled)),
            "bare": lambda: _bare_start(Path(compiled)),
        }
        seconds = taking_turns.in_turns(contenders, repeats=starts, log=log)
    found.append(Measured("start over bare", taking_turns.ratios(seconds, "ours", "bare"), target=Target("<=", 1.5)))
    found += [Measured(f"start, {who}", taken, unit="s") for who, taken in seconds.items()]
    return command.Found(found, step_loop.devices(NUM_WORKERS))


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
                time.sleep(POLL_SECONDS)
            seconds = time.perf_counter() - began
        if process.returncode or not _is_not_empty(metrics):
            raise RuntimeError(f"{' '.join(line)}: ended with code {process.returncode}, and said: {last_line(output)}")
    return seconds


def _is_not_empty(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _our_start(compiled: Path) -> float:
    """Returns the seconds from the start of train.py to the end of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        environment = {**os.environ, **taking_turns.keeping_programs(compiled)}
        line = [sys.executable, *OUR_START, f"--workdir={workdir}"]
        return until_record(line, workdir / "metrics.jsonl", environment=environment)


def _bare_start(compiled: Path) -> float:
    """Returns the seconds from the start of the bare program to the end of its first step."""
    environment = {**os.environ, **taking_turns.keeping_programs(compiled)}
    line = [sys.executable, "-m", "benchmarks.twins.bare"]
    began = time.perf_counter()
    with subprocess.Popen(line, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        seconds = time.perf_counter() - began
    if process.returncode or not said:
        raise RuntimeError(f"{' '.join(line)}: ended with code {process.returncode}")
    return seconds


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="bare", doc=__doc__, argv=sys.argv[1:], repeats=7)
