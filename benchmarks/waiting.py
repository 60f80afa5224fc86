"""Share of the loop's time that is spent waiting for data, in runs of train.py.

    TFDS_DATA_DIR=... python -m benchmarks.waiting
    TFDS_DATA_DIR=... python -m benchmarks.waiting --repeats=5 --json=out/waiting.json

Of the records of a run: the seconds in which the loop waited for a feed, or made it, over all seconds of its laps. The
first lap, in which programs are compiled, does not count, and neither do evaluation and checkpoints. While the loop
waits the devices may still have steps to do, so what data cost is at most this. Sets that are not at hand are left out.
"""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import runs
from benchmarks import command, loops
from benchmarks.measured import Measured, Target
from configs import flags
from data import sources


class Run(NamedTuple):
    """A run of train.py.

    Attributes:
      name: in words.
      config: a file in configs/.
      num_steps: that it trains.
      lap_steps: of a record; several, since what is in the pipeline comes out unevenly.
      target: of the share; None where a step is so short, half a millisecond, that its feed is seen in any case.
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
    """Returns the share of all laps after the first.

    >>> lap = lambda step, rate, share: dict(kind="train", step=step, steps_per_second=rate, data_wait_share=share)
    >>> waiting_share([lap(10, 1.0, 0.9), lap(20, 10.0, 0.1), lap(50, 10.0, 0.5)])  # 0.1 s of 1 s and 1.5 s of 3 s
    0.4
    """
    laps = [record for record in records if record["kind"] == "train"]
    if len(laps) < 2:
        raise ValueError(f"records: of {len(laps)} laps, must be of 2 or more")
    all_seconds = waited_seconds = 0.0
    for before, lap in itertools.pairwise(laps):
        seconds = (lap["step"] - before["step"]) / lap["steps_per_second"]
        all_seconds += seconds
        waited_seconds += lap["data_wait_share"] * seconds
    return waited_seconds / all_seconds


def train(run: Run) -> float:
    """Trains, and returns the share of the run.

    Raises:
      RuntimeError: one line, if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        steps = {"train": run.num_steps, "log_every": run.lap_steps}
        steps |= {"eval_every": run.num_steps, "checkpoint_every": run.num_steps}
        line = [sys.executable, "train.py", f"--config=configs/{run.config}.py", f"--workdir={workdir}"]
        line += [f"--config.{key}_steps={count}" for key, count in steps.items()]
        done = subprocess.run(line, cwd=loops.ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise RuntimeError(f"{' '.join(line)}: ended with code {done.returncode}, and said: {last}")
        return waiting_share(runs.read(workdir / "metrics.jsonl"))


def at_hand(candidates: Sequence[Run], *, tell: command.Tell) -> list[Run]:
    """Returns the runs whose data are here, and tells which are not."""
    found = []
    for run in candidates:
        config = flags.load(str(loops.ROOT / "configs" / f"{run.config}.py"))
        try:
            sources.make(**config.data)
        except ValueError as error:
            tell(f"{run.name}: left out: {error}")
        else:
            found.append(run)
    return found


def benchmark(*, repeats: int, tell: command.Tell, candidates: Sequence[Run] = RUNS) -> command.Found:
    """Measures the runs whose data are here.

    Args:
      repeats: runs of each config.
      tell: called with lines of progress.
      candidates: what to run.
    """
    found = at_hand(candidates, tell=tell)
    shares: dict[str, list[float]] = {run.name: [] for run in found}
    for number in range(repeats):
        for run in found:
            tell(f"round {number + 1} of {repeats}: {run.name}")
            shares[run.name].append(train(run))
    measured = [Measured(f"waiting for data: {run.name}", shares[run.name], "share", run.target) for run in found]
    return command.Found(measured, loops.devices())


if __name__ == "__main__":
    sys.exit(command.run(benchmark, name="waiting", doc=__doc__, argv=sys.argv[1:], repeats=3))
