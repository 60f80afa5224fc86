"""Several steps in one device call, by a loop on the device, against one step per call: effect of --steps_per_dispatch.

    python -m benchmarks.dispatch
    python -m benchmarks.dispatch --repeats=3 --json=out/dispatch.json

Measures the MLP of the digits, whose step is short, and LeNet-5 with the recipe of Adasum's authors, which has
convolutions: 8 workers on 8 virtual devices, and the digits on one device, too. Ratios are of step times: below 1,
several steps per call are faster.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.result import Measured
from parallel import Layout, configure_cpu_devices, keep_freed_memory

NUM_WORKERS = 8


class Case(NamedTuple):
    """A config that is measured with one step and with several steps per call.

    Attributes:
      name: the model's name.
      config: the config's name and overrides.
      num_devices: the number of devices.
      together: the number of steps in one call.
      steps: the number of steps in a turn.
    """

    name: str
    config: Sequence[str]
    num_devices: int
    together: int
    steps: int


LENET5 = ("mnist_adasum", f"num_workers={NUM_WORKERS}")
CASES = (
    Case("MLP of the digits", ("digits",), num_devices=8, together=8, steps=80),
    Case("MLP of the digits", ("digits",), num_devices=1, together=8, steps=80),
    Case("LeNet-5, Adasum", LENET5, num_devices=8, together=2, steps=2),
)


def benchmark(*, repeats: int, log: command.Log, cases: Sequence[Case] = CASES) -> command.Found:
    """Measures all cases one after another, in one process."""
    keep_freed_memory()
    configure_cpu_devices(NUM_WORKERS, num_devices=NUM_WORKERS)
    found = []
    for case in cases:
        where = f"{case.num_devices} device{'s' if case.num_devices > 1 else ''}"
        log(f"{case.name}, {where}")
        config, *overrides = case.config
        setup, layout = step_loop.load(config, overrides), Layout.of(NUM_WORKERS, num_devices=case.num_devices)
        turns: dict[str, taking_turns.Turn] = {
            str(size): step_loop.Loop(setup, layout, num_updates=case.steps, steps_per_call=size)
            for size in (1, case.together)
        }
        seconds = taking_turns.in_turns(turns, repeats=repeats, log=log)
        name = f"{case.name}, {NUM_WORKERS} workers, {where}"
        ratio = taking_turns.ratios(seconds, str(case.together), "1")
        found.append(Measured(f"{name}, {case.together} steps a call over 1", ratio))
        found += [Measured(f"{name}, step of {size} a call", seconds[size], unit="s") for size in turns]
    return command.Found(found, step_loop.devices(NUM_WORKERS))


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="dispatch", doc=__doc__, argv=sys.argv[1:], repeats=7)
