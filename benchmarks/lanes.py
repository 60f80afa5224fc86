"""The cost of many workers on one device: lanes against one large batch, Adasum's share of the step, and memory.

    python -m benchmarks.lanes
    python -m benchmarks.lanes --repeats=3 --json=out/lanes.json

Times whole train steps of LeNet-5 by ``configs/mnist_adasum.py`` with 32 examples per lane. 32 lanes of 32 examples are
compared with one worker with a batch of 1,024, both with one optimizer after the reduction; with ``mean`` both compute
the same. Adasum's share of a step is the time of its reduction minus that of the mean, both timed alone on gradients of
that size, over the time of the step; the difference of two steps would be noise. Memory is XLA's analysis of the
compiled step: its arguments, results and temporaries together.
"""

import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax

from benchmarks.kit import command, leaves, step_loop, taking_turns
from benchmarks.kit.command import Found, Log
from benchmarks.kit.process_groups import Reduction
from benchmarks.kit.result import Measured, Target
from parallel import Layout, configure_cpu_devices, keep_freed_memory
from training import dry_run
from training.train_setup import TrainSetup

LANES, BATCH = (8, 32, 64), 32
IMAGES = 2048  # images in a turn of steps
REDUCERS = ("mean", "adasum")
ONE_BATCH, ON_UPDATES = "one batch of 1024", "adasum on updates, 32 lanes"
# The timed steps: one batch, the same examples in lanes, and each number of lanes; name -> arguments of ``setup_of``.
STEPS: Mapping[str, dict[str, Any]] = {
    ONE_BATCH: {"lanes": 1, "batch": 1024, "reducer": "mean"},
    "mean, 32 lanes": {"lanes": 32, "reducer": "mean"},
    **{f"adasum, {lanes} lanes": {"lanes": lanes} for lanes in LANES},
    ON_UPDATES: {"lanes": 32, "reducer_on": "updates"},
}


def setup_of(*, lanes: int, batch: int = BATCH, reducer: str = "adasum", reducer_on: str = "gradients") -> TrainSetup:
    """Returns the setup of the recipe with one worker per lane."""
    overrides = (f"num_workers={lanes}", f"batch_size_per_worker={batch}", f"reducer_on={reducer_on}")
    return step_loop.load("mnist_adasum", [*overrides, f"reducer.name={reducer}"])


def contenders() -> dict[str, TrainSetup]:
    """Builds the steps that are timed."""
    return {name: setup_of(**options) for name, options in STEPS.items()}


def reduction(reducer: str, lanes: int) -> str:
    """Returns the name of a reduction alone.

    >>> reduction("adasum", 8)
    'reduction alone, adasum, 8 lanes'
    """
    return f"reduction alone, {reducer}, {lanes} lanes"


def rows(seconds: Mapping[str, Sequence[float]]) -> list[Measured]:
    """Returns the results of all contenders' turns."""
    share = {lanes: shares(seconds, lanes) for lanes in LANES}
    first, last = LANES[0], LANES[-1]
    growth = [b / a for a, b in zip(share[first], share[last], strict=True)]
    of_one_batch = functools.partial(taking_turns.ratios, seconds, below=ONE_BATCH)
    over = f"over {ONE_BATCH}, step time"
    return [
        Measured(f"32 lanes of 32, mean, {over}", of_one_batch("mean, 32 lanes"), target=Target("<=", 0.8)),
        Measured(f"32 lanes of 32, Adasum, {over}", of_one_batch("adasum, 32 lanes"), target=Target("<=", 1.0)),
        Measured(f"32 lanes of 32, Adasum on updates, {over}", of_one_batch(ON_UPDATES)),
        *(Measured(f"share of Adasum, {lanes} lanes", values, unit="of the step") for lanes, values in share.items()),
        Measured(f"share of Adasum, {last} lanes over {first}", growth, target=Target("<=", 1.0)),
        *(
            Measured(reduction(reducer, lanes), seconds[reduction(reducer, lanes)], unit="s")
            for lanes, reducer in itertools.product(LANES, REDUCERS)
        ),
        *(Measured(name, [IMAGES / s for s in seconds[name]], unit="images/s") for name in STEPS),
    ]


def shares(seconds: Mapping[str, Sequence[float]], lanes: int) -> list[float]:
    """Returns Adasum's share of a step: its reduction's time minus the mean's, over the step's, round by round.

    >>> alone = {reduction("mean", 8): [0.25], reduction("adasum", 8): [0.5]}
    >>> shares({**alone, "adasum, 8 lanes": [16.0]}, 8)  # 8 steps of 8 x 32 images
    [0.125]
    """
    steps = IMAGES / (lanes * BATCH)
    mean, adasum = (seconds[reduction(reducer, lanes)] for reducer in REDUCERS)
    of_turns = seconds[f"adasum, {lanes} lanes"]
    return [(longer - short) * steps / turn for longer, short, turn in zip(adasum, mean, of_turns, strict=True)]


# ---- memory ------------------------------------------------------------------------------------------------------


def step_bytes(setup: TrainSetup, layout: Layout) -> int:
    """Returns the largest number of bytes that XLA needs at once for a step on one device, without resident data.

    If a step calls a program once for each lane, all results are kept until the next program uses them.
    """
    inputs = dry_run.step_inputs(setup, layout)
    columns = inputs["resident"]["train"]
    inputs["resident"]["train"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), columns)
    shapes = dry_run.call_shapes(inputs, num_devices=1)
    needed = []
    for lowered, calls in step_loop.make_step(setup, layout).lower(*shapes).values():
        memory = lowered.compile().memory_analysis()
        kept = calls * memory.output_size_in_bytes - memory.alias_size_in_bytes
        needed.append(memory.argument_size_in_bytes + memory.temp_size_in_bytes + kept)
    return max(needed)


def bytes_per_worker(*, reducer_on: str, lanes: tuple[int, int] = (LANES[0], LANES[-1])) -> float:
    """Returns the bytes that each additional worker adds to a step of Adasum, between two numbers of lanes."""
    device = jax.devices()[:1]
    needed = [
        step_bytes(setup_of(lanes=count, reducer_on=reducer_on), Layout.of(count, devices=device)) for count in lanes
    ]
    return (needed[1] - needed[0]) / (lanes[1] - lanes[0])


# ---- the command -------------------------------------------------------------------------------------------------


def benchmark(*, repeats: int, log: Log) -> Found:
    """Measures lanes on the first device."""
    keep_freed_memory()
    configure_cpu_devices(1, num_devices=1)
    device = jax.devices()[0]

    def make(setup: TrainSetup) -> taking_turns.Turn:
        layout, steps = Layout.of(setup.config.num_workers, devices=[device]), IMAGES // setup.examples_per_step
        loop = step_loop.Loop(setup, layout, num_updates=steps)
        return lambda: loop() * steps

    turns: dict[str, taking_turns.Turn] = {name: make(setup) for name, setup in contenders().items()}
    gradient = leaves.lenet5()
    for lanes, reducer in itertools.product(LANES, REDUCERS):
        layout = Layout.of(lanes, devices=[device])
        turns[reduction(reducer, lanes)] = Reduction(gradient, reducer, layout=layout)
    measured = rows(taking_turns.in_turns(turns, repeats=repeats, log=log))
    for reducer_on in ("gradients", "updates"):
        log(f"memory of Adasum on {reducer_on}")
        name = f"bytes per additional worker, Adasum on {reducer_on}, {LANES[0]} to {LANES[-1]} lanes"
        measured.append(Measured(name, [bytes_per_worker(reducer_on=reducer_on)], unit="bytes"))
    return Found(measured, devices=step_loop.devices())


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="lanes", doc=__doc__, argv=sys.argv[1:], repeats=5)
