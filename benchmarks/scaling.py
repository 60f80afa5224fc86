"""The cost of another worker: synchronous steps with more and more workers, as lanes of one device and as devices.

    python -m benchmarks.scaling
    python -m benchmarks.scaling --repeats=9 --json=out/scaling.json

Measures LeNet-5 with 8 examples per worker and 1 to 64 lanes on one device, by the mean and by Adasum; and the MLP of
the digits with 1 to 16 devices of one lane. The slopes are least-squares fits over all numbers of workers. All devices
share this machine's cores, so each worker adds at least its own computation. ``benchmarks.lanes`` measures the memory.
"""

import contextlib
import sys
from collections.abc import Sequence

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np

from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.process_groups import group
from benchmarks.kit.result import Measured

LANES = (1, 4, 16, 64)
DEVICES = (1, 4, 16)
REDUCERS = ("mean", "adasum")
BATCH_SIZE = 8
_GRADIENTS = 16  # gradients in a turn of lanes, but at least one step
_UPDATES = 64  # updates in a turn of devices


def slopes(counts: Sequence[int], values: Sequence[Sequence[float]]) -> list[float]:
    """Returns the least-squares slope of the values over the counts, round by round.

    Args:
      counts: [N], distinct.
      values: [N][repeats].

    >>> [round(slope, 6) for slope in slopes([1, 2, 4], [[5.0, 1.0], [7.0, 1.5], [11.0, 2.5]])]
    [2.0, 0.5]
    """
    return [float(slope) for slope in np.polyfit(counts, np.asarray(values, np.float64), 1)[0]]


def benchmark(
    *,
    repeats: int,
    log: command.Log,
    lanes: Sequence[int] = LANES,
    devices: Sequence[int] = DEVICES,
) -> command.Found:
    """Measures steps with each number of workers, in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      lanes: the numbers of lanes on one device.
      devices: the numbers of devices with one lane each.
    """
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(group())
        contenders = {}
        for reducer in REDUCERS:
            for n in lanes:
                contender = f"step mnist {max(1, _GRADIENTS // n)} {' '.join(_overrides(n, reducer))}"
                contenders[_lanes(n, reducer)] = alone(contender)
        for n in devices:
            turn_of = stack.enter_context(group(num_devices=n))
            contenders[_devices(n)] = turn_of(f"step digits {_UPDATES} num_workers={n}")
        seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
    found = [Measured(name, values, "s") for name, values in seconds.items()]
    for reducer in REDUCERS:
        slope = slopes(lanes, [seconds[_lanes(n, reducer)] for n in lanes])
        found.append(Measured(f"another lane adds, {reducer}", slope, "s"))
    slope = slopes(devices, [seconds[_devices(n)] for n in devices])
    found.append(Measured("another device adds, mean", slope, "s"))
    return command.Found(found, step_loop.devices())


def _overrides(num_workers: int, reducer: str) -> list[str]:
    return [f"num_workers={num_workers}", f"batch_size_per_worker={BATCH_SIZE}", f"reducer.name={reducer}"]


def _lanes(count: int, reducer: str) -> str:
    return f"step of LeNet-5, {BATCH_SIZE} a worker, {count} lanes, {reducer}"


def _devices(count: int) -> str:
    return f"step of digits' MLP, 16 a worker, {count} devices, mean"


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="scaling", doc=__doc__, argv=sys.argv[1:], repeats=5)
