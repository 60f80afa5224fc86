"""Least durations of workers, to study delays on machines without any."""

from collections.abc import Callable
from typing import Any

import jax

from asynchronous.events import BLOCK, from_model
from reducers import arrivals
from reducers.arrivals.traces import SUFFIXES
from runs.errors import ConfigError, in_block
from runs.files import from_json
from training.setup import TrainSetup

Delay = Callable[[int, int], float]  # (step, worker) -> seconds

_LONGEST = 1e9  # seconds; a process cannot sleep for 2^63 nanoseconds or more


def none(step: int, worker: int) -> float:
    """Returns 0: no worker waits."""
    del step, worker
    return 0.0


def make(text: str | None, setup: TrainSetup) -> Delay:
    """Returns (step, worker) -> least seconds of a worker's task, from the flag ``--delays``.

    A worker that is absent from a trace in a step never finishes it.

    Raises:
      ConfigError: one line, for a file or model that cannot be used.
    """
    if text is None:
        return none
    if text.endswith(SUFFIXES):
        block: Any = {"name": "trace", "path": text}
    else:
        try:
            block = from_json(text) if text.startswith("{") else {"name": text}
        except ValueError as error:
            raise ConfigError(f"delays={text!r}: is no JSON: {error}") from None
    with in_block("delays", of=""):
        arrivals.ARRIVALS.check(block)  # before its keys become arguments
        model = arrivals.make(**block)
        key = jax.random.key(setup.config.seed)
        seconds = from_model(lambda step: model(key, step, setup.config.num_workers))
        seconds(0)  # compiles, before a step waits for it
    return lambda step, worker: min(float(seconds(step // BLOCK)[step % BLOCK, worker]), _LONGEST)
