"""Several processes over loopback: Adasum against the mean, and the time that each process adds to a step.

    python -m benchmarks.processes
    python -m benchmarks.processes --repeats=9 --json=out/processes.json

Four processes with one worker each reduce 25 MB of float32, in 161 leaves and in one, as in the train step, by the mean
and by Adasum (`gram` and `halving`), in turns. Then one, two and four processes train LeNet-5 with 32 examples per
worker; a least-squares slope gives the time that each process adds. All processes share the cores of this machine, so
that processes on separate machines would add less.
"""

import contextlib
import functools
import sys

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np

from benchmarks.kit import command, taking_turns
from benchmarks.kit.process_groups import group
from benchmarks.kit.result import Measured, Target

NUM_FLOATS = 6_250_000  # 25 MB
ADASUMS = {"gram": "adasum:algorithm=gram", "halving": "adasum:algorithm=halving"}
LEAVES = {"resnet50_like": "161 leaves", "plain": "one leaf"}
COUNTS = (1, 2, 4)
_UPDATES = 8  # updates in a turn


def benchmark(
    *, repeats: int, log: command.Log, num_floats: int = NUM_FLOATS, counts: tuple[int, ...] = COUNTS
) -> list[Measured]:
    """Measures reductions and steps of several processes, in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      num_floats: the number of floats of a gradient.
      counts: the numbers of processes that train; the last of these groups also reduces.
    """
    step = f"step mnist {_UPDATES} batch_size_per_worker=32"
    with contextlib.ExitStack() as stack:
        groups = {n: stack.enter_context(group(num_processes=n, num_devices=n)) for n in counts}
        most = groups[counts[-1]]
        turns = {
            f"{layout} {reducer}": most(f"reduce {layout}:{num_floats} {reducer}")
            for layout in LEAVES
            for reducer in ("mean", *ADASUMS.values())
        }
        turns |= {str(n): turn_of(f"{step} num_workers={n}") for n, turn_of in groups.items()}
        seconds = taking_turns.in_turns(turns, repeats=repeats, log=log)
    found = []
    for layout, leaves in LEAVES.items():
        where = f"{counts[-1]} processes, {num_floats / 250_000:g} MB in {leaves}"
        found.append(Measured(f"mean, {where}", seconds[f"{layout} mean"], "s"))
        for algorithm, reducer in ADASUMS.items():
            target = Target("<=", 1.2) if algorithm == "gram" else None
            over = taking_turns.ratios(seconds, f"{layout} {reducer}", f"{layout} mean")
            found.append(Measured(f"adasum ({algorithm}) over mean, {where}", over, target=target))
    found += [Measured(f"step of LeNet-5, 32 a worker, {n} processes", seconds[str(n)], "s") for n in counts]
    slope, _ = np.polyfit(counts, [seconds[str(n)] for n in counts], 1)
    return [*found, Measured("another process adds to that step", slope.tolist(), "s")]


main = functools.partial(command.run, benchmark, name="processes", doc=__doc__, repeats=5)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
