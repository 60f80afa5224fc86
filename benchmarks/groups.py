"""Processes of one run that take turns together, and what each of them does: a step, or a reduction.

    python -m benchmarks.groups COORDINATOR P INDEX DEVICES      # one process; a Group starts it

A line of its standard input names a contender, which is made when it is first named:

    step CONFIG UPDATES [KEY=VALUE ...]      # see loops.Loop; its part "local" by that name
    reduce LAYOUT:FLOATS REDUCER             # see leaves and candidates
"""

import concurrent.futures
import contextlib
import functools
import os
import sys
import time

import jax
import numpy as np

from benchmarks import candidates, leaves, measure
from benchmarks.loops import ROOT, Loop, Part, load
from benchmarks.rounds import Child, Turn, serve
from launch.local import free_port
from parallel import Layout, configure_cpu_devices, keep_freed_memory, processes

_CALLS = 3  # of a reducer in a turn


class Group:
    """P processes on this machine's CPU. Another number of devices needs other processes, and they start afresh.

    Args:
      num_processes: P.
      num_devices: of all processes, one worker or more each.
    """

    def __init__(self, *, num_processes: int = 1, num_devices: int = 1):
        where = f"127.0.0.1:{free_port()}"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        with contextlib.ExitStack() as started:
            self._threads = started.enter_context(concurrent.futures.ThreadPoolExecutor(num_processes))
            self._children = [
                started.enter_context(
                    Child.module(
                        "benchmarks.groups",
                        where,
                        *map(str, (num_processes, index, num_devices)),
                        environment=environment,
                    )
                )
                for index in range(num_processes)
            ]
            self._stack = started.pop_all()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def turn(self, contender: str) -> Turn:
        """Returns a turn of all processes; it takes as long as it takes the slowest."""
        return lambda: max(self._threads.map(lambda child: child(contender), self._children))


def make(contender: str, *, num_devices: int) -> Turn:
    """Returns what a line names.

    Raises:
      ValueError: if it names nothing.
    """
    kind, *rest = contender.split()
    if kind == "step" or kind == "local":
        name, num_updates, *overrides = rest
        setup = load(name, overrides)
        layout = Layout.of(setup.config.num_workers, num_devices=num_devices)
        part: Part = "step" if kind == "step" else "local"
        return Loop(setup, layout, num_updates=int(num_updates), part=part)
    if kind == "reduce":
        (shapes, num_floats), reducer = rest[0].split(":"), rest[1]
        layout = Layout.of(num_devices, num_devices=num_devices)
        return Reduction(leaves.SIZED[shapes](int(num_floats)), reducer, layout=layout)
    raise ValueError(f"{contender!r}: must be step, local or reduce")


class Reduction:
    """A contender: a reducer as the train step has it.

    Args:
      shapes: of one worker's gradient.
      reducer: with its options, as ``candidates.parse`` reads it.
      layout: of the workers, on the devices of all processes.
    """

    def __init__(self, shapes: leaves.Leaves, reducer: str, *, layout: Layout):
        # Compiled by its first call: of several processes, nothing can be compiled for shapes alone.
        self._reduce, self._state = measure.lift_reducer(candidates.parse(reducer), shapes, layout)
        rng = np.random.default_rng(0)
        draw = lambda leaf: rng.standard_normal((layout.num_workers, *leaf.shape), np.float32)  # noqa: E731
        self._gradients = [layout.put_per_worker(draw(leaf)) for leaf in shapes]

    def __call__(self) -> float:
        """Returns the mean seconds of a call; one before them, which is not counted, waits for the other processes."""
        self._call()
        began = time.perf_counter()
        for _ in range(_CALLS):
            self._call()
        return (time.perf_counter() - began) / _CALLS

    def _call(self) -> None:
        jax.block_until_ready(self._reduce(self._gradients, self._state))


def main(coordinator: str, num_processes: str, index: str, num_devices: str) -> None:
    """Is one process of a group, until its standard input ends."""
    count, devices = int(num_processes), int(num_devices)
    processes.join(coordinator=coordinator, num_processes=count, process_id=int(index))
    keep_freed_memory()
    configure_cpu_devices(devices, num_devices=devices, num_processes=count)
    made = functools.cache(functools.partial(make, num_devices=devices))
    with contextlib.suppress(KeyboardInterrupt):  # who started this one was told, too
        serve(lambda line: made(line)())
    processes.abandon(0)  # the others end when they are told to, and not all at once


if __name__ == "__main__":
    main(*sys.argv[1:])
