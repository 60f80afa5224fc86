"""A bounded pipeline of steps: dispatch ahead, but never far."""

from collections import deque
from typing import Any

import jax

# JAX 0.10.2 on CPU deadlocks, then aborts, with 32 or more multi-device steps in flight (28 never failed in 2,000
# steps); a device needs no more than a few to stay busy.
MAX_IN_FLIGHT = 8


class Window:
    """Holds the outputs of the steps in flight; pushing one beyond the limit waits for the oldest.

    What comes out is ready to be read without waiting for the step just dispatched.

    >>> window = Window(limit=2)
    >>> [window.push(step, jax.numpy.ones(())) for step in range(3)]
    [[], [], [(0, Array(1., dtype=float32))]]
    >>> [step for step, _ in window.drain()]
    [1, 2]

    Args:
      limit: most steps in flight.
      steps_each: that are pushed at once; of two such pushes one may always be in flight while the next is made.
    """

    def __init__(self, *, limit: int = MAX_IN_FLIGHT, steps_each: int = 1):
        if limit < 1:
            raise ValueError(f"limit={limit}: must be at least 1")
        self._limit = limit if steps_each == 1 else max(2, limit // steps_each)
        self._steps: deque[tuple[Any, Any]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def push(self, tag: Any, outputs: Any) -> list[tuple[Any, Any]]:
        """Adds a dispatched step; returns the (tag, outputs) of those that left the window, oldest first."""
        self._steps.append((tag, outputs))
        return [self._pop() for _ in range(len(self._steps) - self._limit)]

    def drain(self) -> list[tuple[Any, Any]]:
        """Waits for all; returns them, oldest first."""
        return [self._pop() for _ in range(len(self._steps))]

    def _pop(self) -> tuple[Any, Any]:
        tag, outputs = self._steps.popleft()
        return tag, jax.block_until_ready(outputs)
