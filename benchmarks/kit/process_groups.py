"""Groups of processes that time train steps and reductions together, as one run.

    python -m benchmarks.kit.process_groups COORDINATOR P INDEX DEVICES      # one process; ``group`` starts it

Each line on a process's standard input asks for one turn of a contender, which is made for its first turn:

    step CONFIG UPDATES[/K] [KEY=VALUE ...]      # see step_loop.Loop; K steps a call, 1 by default
    reduce LAYOUT:FLOATS REDUCER                 # see leaves and candidates

or for another number of a contender of the first kind:

    compile CONTENDER                            # the seconds of tracing and compiling a step, which is not taken
    peak CONTENDER                               # the most bytes that the first device has held; NaN if it is unknown
"""

import concurrent.futures
import contextlib
import functools
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from benchmarks.kit import candidates, leaves, reducer_times
from benchmarks.kit.step_loop import Loop, load
from benchmarks.kit.taking_turns import Child, Turn, serve
from launch.children import with_repository
from launch.local import free_port
from parallel import Layout, configure_cpu_devices, keep_freed_memory, processes

_CALLS = 3  # calls of a reducer in a turn


@contextlib.contextmanager
def group(*, num_processes: int = 1, num_devices: int = 1) -> Iterator[Callable[[str], Turn]]:
    """Starts P processes on this machine's CPU; they end with the block.

    Args:
      num_processes: P.
      num_devices: the number of devices of all processes together, each with one worker or more.

    Yields:
      A function: line -> the turn of the contender that it names; its time is that of the slowest process.
    """
    jax.config.update("jax_platforms", "cpu")  # this process describes the devices of the results
    command = ["-m", "benchmarks.kit.process_groups", f"127.0.0.1:{free_port()}", str(num_processes)]
    environment = with_repository({**os.environ, "JAX_PLATFORMS": "cpu"})
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(num_processes))
        children = [
            stack.enter_context(Child(*command, str(index), str(num_devices), environment=environment))
            for index in range(num_processes)
        ]
        yield lambda contender: lambda: max(threads.map(lambda child: child(contender), children))


def make(contender: str, *, num_devices: int) -> Turn:
    """Makes the contender that a line names; a turn of a reducer takes the mean seconds of a call.

    Raises:
      ValueError: if the line names no contender.
    """
    kind, *rest = contender.split()
    if kind == "step":
        name, num_updates, *overrides = rest
        num_updates, _, size = num_updates.partition("/")
        setup = load(name, overrides)
        layout = Layout.of(setup.config.num_workers, num_devices=num_devices)
        return Loop(setup, layout, num_updates=int(num_updates), steps_per_call=int(size or 1))
    if kind == "reduce":
        sized, reducer = rest
        name, num_floats = sized.split(":")
        shapes = leaves.SIZED[name](int(num_floats))
        layout = Layout.of(num_devices, num_devices=num_devices)
        # The first call compiles it, because a program of several processes cannot be compiled for shapes alone.
        program = reducer_times.lift_reducer(candidates.parse(reducer), shapes, layout)
        gradients = reducer_times.random_gradients(shapes, layout)

        def mean_seconds() -> float:
            program.seconds(gradients)  # not counted: it waits for the other processes
            return statistics.fmean(program.seconds(gradients) for _ in range(_CALLS))

        return mean_seconds
    raise ValueError(f"{contender!r}: must be step or reduce")


def answer(line: str, *, made: Callable[[str], Any]) -> float:
    """Returns the number that a line asks for.

    Args:
      line: a line of the kinds that the module's docstring lists.
      made: line -> the contender that it names, always the same object.
    """
    verb, _, contender = line.partition(" ")
    if verb == "peak":
        return float((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", math.nan))
    if verb == "compile":
        return made(contender).compile()
    return made(line)()


def main(coordinator: str, num_processes: str, index: str, num_devices: str) -> None:
    """Serves turns as one process of a group, until standard input ends."""
    count, devices = int(num_processes), int(num_devices)
    processes.join(coordinator=coordinator, num_processes=count, process_id=int(index))
    keep_freed_memory()
    configure_cpu_devices(devices, num_devices=devices, num_processes=count)
    made = functools.cache(functools.partial(make, num_devices=devices))
    with contextlib.suppress(KeyboardInterrupt):  # the parent process gets it, too
        serve(functools.partial(answer, made=made))
    processes.abandon(0)  # the other processes end when their own input ends, at another time


if __name__ == "__main__":
    main(*sys.argv[1:])
