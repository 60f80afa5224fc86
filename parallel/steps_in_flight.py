"""A bounded pipeline of steps: the host runs a few steps ahead of the devices."""

from collections import deque
from typing import Any

import jax

# JAX 0.10.2 on CPU deadlocks, then aborts, with 32 or more multi-device steps in flight (28 never failed in 2,000
# steps); a device needs no more than a few to stay busy.
MAX_IN_FLIGHT = 8


class StepsInFlight:
    """Holds the outputs of dispatched steps; adding one beyond the limit waits for the oldest.

    Outputs that leave can be read without waiting for the latest step.

    >>> in_flight = StepsInFlight(limit=2)
    >>> [in_flight.push(step, jax.numpy.ones(())) for step in range(3)]
    [[], [], [(0, Array(1., dtype=float32))]]
    >>> [step for step, _ in in_flight.drain()]
    [1, 2]

    Args:
      limit: the most steps in flight.
      steps_per_call: number of steps of one call; at least two calls may be in flight, so that one runs while the next
        is dispatched.
    """

    def __init__(self, *, limit: int = MAX_IN_FLIGHT, steps_per_call: int = 1):
        self._limit = limit if steps_per_call == 1 else max(2, limit // steps_per_call)
        self._calls: deque[tuple[Any, Any]] = deque()

    def push(self, tag: Any, outputs: Any) -> list[tuple[Any, Any]]:
        """Adds a dispatched call; returns (tag, outputs) of the calls that left, oldest first."""
        self._calls.append((tag, outputs))
        return [self._pop() for _ in range(len(self._calls) - self._limit)]

    def drain(self) -> list[tuple[Any, Any]]:
        """Waits for all calls; returns them, oldest first."""
        return [self._pop() for _ in range(len(self._calls))]

    def _pop(self) -> tuple[Any, Any]:
        tag, outputs = self._calls.popleft()
        return tag, jax.block_until_ready(outputs)
