"""Several processes over loopback: Adasum against the mean, and the time that each process adds to a step.

    python -m benchmarks.processes
    python -m benchmarks.processes --repeats=9 --json=out/processes.json

Four processes with one worker each reduce 25 MB of float32, in 161 leaves and in one, as in the train step, by the mean
and by Adasum (`gram` and `halving`), in turns. Then one, two and four processes train LeNet-5 with 32 examples per
worker; a least-squares slope gives the time that each process adds. All processes share this machine's cores, so
processes on machines of their own would add less.
"""

import contextlib
import sys

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np

from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.process_groups import group
from benchmarks.kit.result import Measured, Target

NUM_FLOATS = 6_250_000  # 25 MB
ALGORITHMS = ("gram", "halving")
LEAVES = {"resnet50_like": "161 leaves", "plain": "one leaf"}
COUNTS = (1, 2, 4)
_UPDATES = 8  # updates in a turn


def benchmark(
    *, repeats: int, log: command.Log, num_floats: int = NUM_FLOATS, counts: tuple[int, ...] = COUNTS
) -> command.Found:
    """Measures reductions and steps of several processes, in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      num_floats: the number of floats of a gradient.
      counts: the numbers of processes that train; the last of these groups also reduces.
    """
    with contextlib.ExitStack() as stack:
        groups = {n: stack.enter_context(group(num_processes=n, num_devices=n)) for n in counts}
        most = groups[counts[-1]]
        reduce = {
            f"{layout} {label}": most(f"reduce {layout}:{num_floats} {label}")
            for layout in LEAVES
            for label in ("mean", *_adasums())
        }
        steps = {
            str(n): turn_of(f"step mnist {_UPDATES} num_workers={n} batch_size_per_worker=32")
            for n, turn_of in groups.items()
        }
        seconds = taking_turns.in_turns({**reduce, **steps}, repeats=repeats, log=log)
    found = []
    for layout, leaves in LEAVES.items():
        where = f"{counts[-1]} processes, {num_floats / 250_000:g} MB in {leaves}"
        found.append(Measured(f"mean, {where}", seconds[f"{layout} mean"], "s"))
        for algorithm, label in zip(ALGORITHMS, _adasums(), strict=True):
            target = Target("<=", 1.2) if algorithm == "gram" else None
            over = taking_turns.ratios(seconds, f"{layout} {label}", f"{layout} mean")
            found.append(Measured(f"adasum ({algorithm}) over mean, {where}", over, target=target))
    found += [Measured(f"step of LeNet-5, 32 a worker, {n} processes", seconds[str(n)], "s") for n in counts]
    slope, _ = np.polyfit(counts, [seconds[str(n)] for n in counts], 1)
    found.append(Measured("another process adds to that step", slope.tolist(), "s"))
    return command.Found(found, step_loop.devices())


def _adasums() -> list[str]:
    return [f"adasum:algorithm={algorithm}" for algorithm in ALGORITHMS]


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="processes", doc=__doc__, argv=sys.argv[1:], repeats=5)
