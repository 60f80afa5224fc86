"""The fraction of time that runs of train.py wait for data.

    TFDS_DATA_DIR=... python -m benchmarks.waiting
    TFDS_DATA_DIR=... python -m benchmarks.waiting --repeats=5 --json=out/waiting.json

Computes from a run's records the seconds in which the loop waited for a feed or made it, over the seconds of all laps.
A lap is the time between two records. The first one, in which programs are compiled, is not counted, and neither are
evaluation and checkpoints. The devices may still be busy while the loop waits, so this is an upper bound for the cost
of data. Data sets that are not available are left out.
"""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import runs
from benchmarks.kit import command, step_loop
from benchmarks.kit.result import Measured, Target
from configs import flags
from data import sources
from launch.children import ROOT


class Run(NamedTuple):
    """A run of train.py.

    Attributes:
      name: a description.
      config: the name of a file in configs/.
      num_steps: the number of training steps.
      lap_steps: the number of steps between two records; several, because the pipeline delivers unevenly.
      target: the target for the fraction; None for a step so short, half a millisecond, that its feed always shows.
    """

    name: str
    config: str
    num_steps: int
    lap_steps: int
    target: Target | None = Target("<", 0.02)


RUNS = (
    Run("digits, MLP", "digits", 600, 60, target=None),
    Run("MNIST, LeNet-5", "mnist", 50, 10),
    Run("CIFAR-10, ResNet-20", "cifar10", 20, 5),
)


def waiting_share(records: Sequence[Mapping[str, Any]]) -> float:
    """Returns the fraction of waiting in all laps after the first.

    >>> lap = lambda step, rate, share: dict(kind="train", step=step, steps_per_second=rate, data_wait_share=share)
    >>> waiting_share([lap(10, 1.0, 0.9), lap(20, 10.0, 0.1), lap(50, 10.0, 0.5)])  # 0.1 s of 1 s and 1.5 s of 3 s
    0.4
    """
    laps = [record for record in records if record["kind"] == "train"]
    if len(laps) < 2:
        raise ValueError(f"records: hold {len(laps)} laps, must be 2 or more")
    all_seconds = waited_seconds = 0.0
    for before, lap in itertools.pairwise(laps):
        seconds = (lap["step"] - before["step"]) / lap["steps_per_second"]
        all_seconds += seconds
        waited_seconds += lap["data_wait_share"] * seconds
    return waited_seconds / all_seconds


def train(run: Run) -> float:
    """Trains, and returns the run's fraction of waiting.

    Raises:
      RuntimeError: one line, if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        steps = {"train": run.num_steps, "log_every": run.lap_steps}
        steps |= {"eval_every": run.num_steps, "checkpoint_every": run.num_steps}
        line = [sys.executable, "train.py", f"--config=configs/{run.config}.py", f"--workdir={workdir}"]
        line += [f"--config.{key}_steps={count}" for key, count in steps.items()]
        done = subprocess.run(line, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise RuntimeError(f"{' '.join(line)}: ended with code {done.returncode}, and said: {last}")
        return waiting_share(runs.read(workdir / "metrics.jsonl"))


def at_hand(candidates: Sequence[Run], *, log: command.Log) -> list[Run]:
    """Returns the runs whose data are available, and logs the others."""
    found = []
    for run in candidates:
        config = flags.load(f"{ROOT}/configs/{run.config}.py")
        try:
            sources.make(**config.data)
        except ValueError as error:
            log(f"{run.name}: left out: {error}")
        else:
            found.append(run)
    return found


def benchmark(*, repeats: int, log: command.Log, candidates: Sequence[Run] = RUNS) -> command.Found:
    """Measures the runs whose data are available.

    Args:
      repeats: the number of runs of each config.
      log: called with lines of progress.
      candidates: the runs.
    """
    found = at_hand(candidates, log=log)
    shares: dict[str, list[float]] = {run.name: [] for run in found}
    for number in range(repeats):
        for run in found:
            log(f"round {number + 1} of {repeats}: {run.name}")
            shares[run.name].append(train(run))
    measured = [Measured(f"waiting for data: {run.name}", shares[run.name], "share", run.target) for run in found]
    return command.Found(measured, step_loop.devices())


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="waiting", doc=__doc__, argv=sys.argv[1:], repeats=3)
