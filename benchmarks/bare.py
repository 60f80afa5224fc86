"""Times the trainer beside ``benchmarks.twins.bare``, a training loop as flax's examples write it.

    python -m benchmarks.bare
    python -m benchmarks.bare --repeats=3 --json=out/bare.json

Both train the MLP of the digits and LeNet-5 on random images with 8 workers, the mean of their gradients and momentum
SGD, on one device and on 8, with one step and with 8 in a call. Ours reads the numbers of every step and checks that
all are finite; the other one reads the losses. Ratios are our time over the time of the other one.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np

import models
from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.result import Measured, Target
from benchmarks.twins.bare import Loop
from parallel import Layout, configure_cpu_devices, keep_freed_memory

NUM_WORKERS = 8
PLAIN = ("schedule.name=constant", "optimizer.learning_rate=0.01", "ema_decay=None", "task.label_smoothing=0.0")


class Case(NamedTuple):
    """A config of this repository, and the number of its updates in a turn."""

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
) -> Iterator[Measured]:
    """Measures all cases with each number of devices and of steps per call."""
    keep_freed_memory()
    configure_cpu_devices(NUM_WORKERS, num_devices=NUM_WORKERS)
    for case in cases:
        setup = step_loop.load(case.config, PLAIN)
        config, info = setup.config, setup.source.info
        index = np.arange(step_loop.NUM_EXAMPLES)[None]
        made = step_loop.made_up(info).train.gather(index, index[0, :1])
        images, labels = made["image"][0], made["label"][0]
        network = models.make(**config.model, sizes=info.sizes)
        for num_devices, steps_per_call in sizes:
            devices = "1 device" if num_devices == 1 else f"{num_devices} devices"
            name = f"{case.name}, {devices}, {steps_per_call} a call"
            log(name)
            layout = Layout.of(NUM_WORKERS, num_devices=num_devices)
            length: dict[str, Any] = {"num_updates": case.num_updates, "steps_per_call": steps_per_call}
            batch = (NUM_WORKERS, config.batch_size_per_worker)
            contenders: dict[str, taking_turns.Turn] = {
                "ours": step_loop.Loop(setup, layout, **length),
                "bare": Loop(network, images, labels, batch=batch, num_devices=num_devices, **length),
            }
            seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
            ratio = taking_turns.ratios(seconds, "ours", "bare")
            yield Measured(f"{name}, step over bare", ratio, target=Target("<=", 1.05))
            for who, taken in seconds.items():
                yield Measured(f"{name}, {who}", taken, unit="s")


main = functools.partial(command.run, benchmark, name="bare", doc=__doc__, repeats=7)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
