"""Asynchronous simulation: time of a server update over that of a plain step, and how fast its planning is.

    python -m benchmarks.simulation
    python -m benchmarks.simulation --repeats=9 --json=out/simulation.json

LeNet-5 on made-up images of MNIST's shape, 32 a batch: 40 workers and a server, against one worker who computes and
applies one gradient after another, in one process in turns. Neither clips nor averages its parameters. Both read their
numbers on the host, as the trainer does. Then the order of 100,000 arrivals alone, of durations that are known, and
the drawing of arrival times of 100 machines, compilation included, as a plan of backup workers begins.
"""

import sys

import jax

import asynchronous
from benchmarks import command, loops, rounds
from benchmarks.groups import Group
from benchmarks.measured import Measured, Target
from reducers import arrivals

NUM_WORKERS = 40
NUM_EVENTS = 100_000
NUM_MACHINES, NUM_STEPS = 100, 100_000  # the planner's own number
_NUM_UPDATES = 60  # of a turn
_ARRIVALS = "paper_cluster"
_COMMON = ("model.name=lenet5", "batch_size_per_worker=32", "clip_norm=None", "ema_decay=None")
_SERVED = (*_COMMON, f"num_workers={NUM_WORKERS}", f"arrivals.name={_ARRIVALS}")
_PLAIN = (*_COMMON, "num_workers=1", "server.name=synchronous")


def benchmark(
    *,
    repeats: int,
    tell: command.Tell,
    num_updates: int = _NUM_UPDATES,
    num_events: int = NUM_EVENTS,
    num_steps: int = NUM_STEPS,
) -> command.Found:
    """Measures updates of a server and of plain SGD, the order of events, and the drawing of arrivals.

    Args:
      repeats: rounds that are counted.
      tell: called with lines of progress.
      num_updates: of a turn.
      num_events: to put in order.
      num_steps: of arrivals, to draw.
    """
    model = arrivals.make(_ARRIVALS)
    key = jax.random.key(0)
    tasks = 1000 + 2 * num_events // NUM_WORKERS  # of each worker: the fastest has some more than the mean
    durations = asynchronous.from_table(arrivals.sample(model, key, num_workers=NUM_WORKERS, num_steps=tasks))
    with Group() as alone:
        contenders = {
            "served": alone.turn(f"step mnist_async_53 {num_updates} {' '.join(_SERVED)}"),
            "plain": alone.turn(f"step mnist_async_53 {num_updates} {' '.join(_PLAIN)}"),
            "order": lambda: rounds.timed(
                lambda: list(asynchronous.order(durations, num_workers=NUM_WORKERS, num_events=num_events))
            ),
            "drawn": lambda: rounds.timed(
                lambda: arrivals.sample(model, key, num_workers=NUM_MACHINES, num_steps=num_steps)
            ),
        }
        seconds = rounds.in_turns(contenders, repeats=repeats, tell=tell)
    ratio = rounds.ratios(seconds, "served", "plain")
    found = [
        Measured(f"update of {NUM_WORKERS} workers' server over plain step, LeNet-5", ratio, target=Target("<=", 1.3)),
        Measured(f"updates of {NUM_WORKERS} workers' server, LeNet-5", [1 / s for s in seconds["served"]], "updates/s"),
        Measured("plain steps, LeNet-5", [1 / s for s in seconds["plain"]], "steps/s"),
        Measured(f"events of {NUM_WORKERS} workers", [num_events / s for s in seconds["order"]], "events/s"),
        Measured(f"arrivals of {NUM_MACHINES} machines", [num_steps / s for s in seconds["drawn"]], "steps/s"),
    ]
    return command.Found(found, loops.devices())


if __name__ == "__main__":
    sys.exit(command.run(benchmark, name="simulation", doc=__doc__, argv=sys.argv[1:], repeats=7))
