"""How long workers take at least, for studies of delays on machines that have none."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from reducers import arrivals
from reducers.arrivals.traces import SUFFIXES
from runs.errors import ConfigError, in_block
from training.setup import TrainSetup

Delay = Callable[[int, int], float]  # (step, worker) -> seconds


def none(step: int, worker: int) -> float:
    """Returns 0: no worker waits."""
    del step, worker
    return 0.0


def make(text: str | None, setup: TrainSetup) -> Delay:
    """Returns (step, worker) -> seconds that a worker takes at least, from the flag ``--delays``.

    Raises:
      ConfigError: one line, for a file or model that cannot be used.
    """
    if text is None:
        return none
    if text.endswith(SUFFIXES):
        block: Any = {"name": "trace", "path": text}
    else:
        try:
            block = json.loads(text) if text.startswith("{") else {"name": text}
        except json.JSONDecodeError as error:
            raise ConfigError(f"delays={text!r}: is no JSON: {error}") from None
    with in_block("delays"):
        model = arrivals.make(**block)
        key = jax.random.key(setup.config.seed)
        of_step = jax.jit(lambda step: model(key, step, setup.config.num_workers))
        of_step(0)  # compiles, before a step waits for it

    @functools.lru_cache(maxsize=2)
    def row(step: int) -> np.ndarray:
        return np.asarray(of_step(step))

    return lambda step, worker: float(row(step)[worker])
