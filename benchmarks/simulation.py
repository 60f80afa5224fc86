"""Asynchronous simulation: the time of a server update against a plain step, and the speed of the event order.

    python -m benchmarks.simulation
    python -m benchmarks.simulation --repeats=9 --json=out/simulation.json

Compares 40 workers and a server with one worker that computes and applies one gradient after another, for LeNet-5 on
artificial images of MNIST's shape with a batch of 32, in turns in one process. Neither clips gradients nor averages
parameters, and both read their metrics on the host, as the trainer does. Then it times the order of 100,000 arrivals of
known durations, and the sampling of arrival times of 100 machines, with compilation, as the planner of backup workers
does.
"""

import sys

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax

import asynchronous
from benchmarks.kit import command, step_loop, taking_turns
from benchmarks.kit.process_groups import group
from benchmarks.kit.result import Measured, Target
from reducers import arrivals

NUM_WORKERS = 40
NUM_EVENTS = 100_000
NUM_MACHINES, NUM_STEPS = 100, 100_000  # as in the planner
_NUM_UPDATES = 60  # updates in a turn
_ARRIVALS = "paper_cluster"
_COMMON = ("model.name=lenet5", "batch_size_per_worker=32", "clip_norm=None", "ema_decay=None")
_SERVED = (*_COMMON, f"num_workers={NUM_WORKERS}", f"arrivals.name={_ARRIVALS}")
_PLAIN = (*_COMMON, "num_workers=1", "server.name=synchronous")


def benchmark(
    *,
    repeats: int,
    log: command.Log,
    num_updates: int = _NUM_UPDATES,
    num_events: int = NUM_EVENTS,
    num_steps: int = NUM_STEPS,
) -> command.Found:
    """Measures updates of a server and of plain SGD, the event order, and the sampling of arrival times.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      num_updates: the number of updates in a turn.
      num_events: the number of events to order.
      num_steps: the number of steps whose arrival times are sampled.
    """
    model = arrivals.make(_ARRIVALS)
    key = jax.random.key(0)
    tasks = 1000 + 2 * num_events // NUM_WORKERS  # per worker; the fastest worker has somewhat more than the mean
    durations = asynchronous.from_table(arrivals.sample(model, key, num_workers=NUM_WORKERS, num_steps=tasks))
    with group() as alone:
        contenders = {
            "served": alone(f"step mnist_async_53 {num_updates} {' '.join(_SERVED)}"),
            "plain": alone(f"step mnist_async_53 {num_updates} {' '.join(_PLAIN)}"),
            "order": lambda: taking_turns.timed(
                lambda: list(asynchronous.order(durations, num_workers=NUM_WORKERS, num_events=num_events))
            ),
            "drawn": lambda: taking_turns.timed(
                lambda: arrivals.sample(model, key, num_workers=NUM_MACHINES, num_steps=num_steps)
            ),
        }
        seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
    ratio = taking_turns.ratios(seconds, "served", "plain")
    found = [
        Measured(f"update of {NUM_WORKERS} workers' server over plain step, LeNet-5", ratio, target=Target("<=", 1.3)),
        Measured(f"updates of {NUM_WORKERS} workers' server, LeNet-5", [1 / s for s in seconds["served"]], "updates/s"),
        Measured("plain steps, LeNet-5", [1 / s for s in seconds["plain"]], "steps/s"),
        Measured(f"events of {NUM_WORKERS} workers", [num_events / s for s in seconds["order"]], "events/s"),
        Measured(f"arrivals of {NUM_MACHINES} machines", [num_steps / s for s in seconds["drawn"]], "steps/s"),
    ]
    return command.Found(found, step_loop.devices())


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="simulation", doc=__doc__, argv=sys.argv[1:], repeats=7)
