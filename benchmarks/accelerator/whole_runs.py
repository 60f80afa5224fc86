"""Whole runs of train.py as commands, from the start to the end, on a made-up MNIST where none is prepared."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accelerator.parts import Size
from benchmarks.kit import command
from benchmarks.kit.result import Measured, Target
from benchmarks.kit.time_limit import Clock
from data import decoded
from launch.children import ROOT, last_line

NUM_TRAIN, NUM_TEST, MNIST_SHAPE = 60_000, 10_000, (28, 28, 1)


class Seconds(NamedTuple):
    """The seconds of a run.

    Attributes:
      process: from the start of the process to its end.
      loop: from the opened folder of the run to its summary: data, programs, steps, evaluations and checkpoints.
    """

    process: float
    loop: float


class WholeRuns:
    """Times runs of LeNet-5 with Adasum, with several steps a call and with one, and of the digits.

    Args:
      size: "full", or "tiny" for the smallest variants of the configs.
      folder: an empty folder for made-up data.
    """

    def __init__(self, size: Size, *, folder: Path):
        self._variant, self._folder = "" if size == "full" else ":smoke", folder
        self._environment: dict[str, str] = {}
        self._error: RuntimeError | None = None

    def prepare(self) -> None:
        """Makes the data ahead; what fails is the reason that ``measure`` gives."""
        try:
            self._environment = {} if self._variant else with_mnist(self._folder)
        except RuntimeError as error:
            self._error = error

    def measure(self, *, repeats: int, clock: Clock, log: command.Log) -> list[Measured]:
        """Returns the rows of the rounds that the clock allows; each run is a process, the only one of its time."""
        lenet5, digits = f"mnist_adasum{self._variant}", f"digits{self._variant}"
        lines: list[tuple[str, tuple[str, ...]]] = [(lenet5, ()), (lenet5, ("--steps_per_dispatch=1",)), (digits, ())]
        done: list[list[Seconds]] = []
        environment, error = {**os.environ, **self._environment}, self._error
        try:
            while error is None and len(done) < repeats:
                log(f"whole runs: round {len(done) + 1} of {repeats}")
                done.append([run(*line, environment=environment, timeout=max(0.0, clock.left)) for line in lines])
        except RuntimeError as failure:
            error = failure
        reason = "" if done else clock.reason(error)

        def row(name: str, value: Callable[..., float], target: Target | None = None, unit: str = "s") -> Measured:
            return Measured(name, [value(*seconds) for seconds in done], unit, target, missing=reason)

        over = f"configs/{lenet5}, default steps a call over 1, seconds in the loop"
        return [
            row(f"configs/{lenet5}, seconds in the loop", lambda a, b, c: a.loop, Target("<=", 6)),
            row(f"configs/{lenet5}, start to end", lambda a, b, c: a.process),
            row(over, lambda a, b, c: a.loop / b.loop, Target("<=", 1), "x"),
            row(f"configs/{digits}, start to end", lambda a, b, c: c.process, Target("<=", 12)),
            row(f"configs/{digits}, seconds in the loop", lambda a, b, c: c.loop),
        ]


def run(
    config: str,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    timeout: float | None = None,
) -> Seconds:
    """Trains from the start to the end, with an empty folder of compiled programs.

    Args:
      config: the name of a file in configs/, with an optional ":variant".
      arguments: further arguments of train.py.
      environment: the environment variables of the process.
      timeout: the seconds after which the process is killed; None for no limit.

    Raises:
      RuntimeError: one line, if the run fails or reaches the limit.
    """
    name, *variant = config.split(":")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        workdir = Path(folder) / "run"
        spec = ":".join([f"configs/{name}.py", *variant])
        line = [sys.executable, "train.py", f"--config={spec}", f"--workdir={workdir}", *arguments]
        line.append(f"--compilation_cache={folder}/compiled")
        began = time.perf_counter()
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            done = subprocess.run(line, cwd=ROOT, env=environment, timeout=timeout, **streams)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{' '.join(line)}: reached the limit of {timeout:.0f} s") from None
        seconds = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(line)}: ended with code {done.returncode}, and said: {last_line(output)}")
        opened, finished = ((workdir / file).stat().st_mtime for file in ("config.json", "DONE"))
        return Seconds(seconds, finished - opened)


def with_mnist(folder: Path, *, num_train: int = NUM_TRAIN, num_test: int = NUM_TEST) -> dict[str, str]:
    """Returns environment variables of processes that find MNIST, decoded: the prepared one, or else a made-up one.

    Args:
      folder: an empty folder for made-up and for decoded images.
      num_train: the number of made-up training images.
      num_test: the number of made-up test images.

    Raises:
      RuntimeError: one line, if they cannot be written or decoded.
    """
    environment = {"XDG_CACHE_HOME": str(folder / "cache")}
    try:
        decoded.check("mnist")
    except ValueError:
        environment["TFDS_DATA_DIR"] = str(folder / "tfds")
        try:
            write_mnist(folder / "tfds", num_train=num_train, num_test=num_test)
        except (ImportError, OSError) as error:
            raise RuntimeError(f"MNIST is not prepared, and cannot be made up: {error}") from None
    program = "from data import decoded; decoded.load('mnist')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, **environment})
    if done.returncode:
        raise RuntimeError("MNIST cannot be decoded")
    return environment


def write_mnist(root: Path, *, num_train: int, num_test: int) -> None:
    """Writes random images with random labels as TFDS prepares MNIST under a folder."""
    from benchmarks.kit import prepared_sets

    rng = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", num_train), ("test", num_test)):
        images = rng.integers(256, size=(count, *MNIST_SHAPE), dtype=np.uint8)
        splits[split] = prepared_sets.encoded(images, rng.integers(10, size=count))
    prepared_sets.write_images(root, "mnist", splits, image_shape=MNIST_SHAPE, version="3.0.1", num_shards=1)
