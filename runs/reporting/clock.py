"""The duration of a run over all its starts, and its rates."""

import contextlib
import time
from collections.abc import Callable, Iterator

_SHORTEST_LAP_SECONDS = 0.02


class Clock:
    """A monotonic clock, which a change of the machine's time does not affect.

    >>> seconds = iter([0.0, 2.0, 4.0]).__next__
    >>> clock = Clock(wall_seconds=100.0, now=seconds)
    >>> clock.lap(step=10, num_examples=32, waited_seconds=0.5)["steps_per_second"]  # 10 steps in 2 seconds
    5.0
    >>> clock.wall_seconds()
    104.0

    Args:
      wall_seconds: total duration of the run's earlier starts.
      step: the step from which this start goes on.
      now: returns seconds that only grow; tests replace it.
    """

    def __init__(self, *, wall_seconds: float = 0.0, step: int = 0, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._origin = now() - wall_seconds
        self._lap = (step, self._origin + wall_seconds, 0.0)  # step, time, waited seconds at the end of the last lap
        self._lap_before = self._lap
        self._first_lap: tuple[int, float] | None = None
        self._paused_seconds = 0.0

    def wall_seconds(self) -> float:
        """Returns the duration of the run over all its starts."""
        return self._now() - self._origin

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time of the block, such as an evaluation's, from all rates."""
        began = self._now()
        try:
            yield
        finally:
            self._paused_seconds += self._now() - began

    def lap(self, step: int, *, num_examples: float, waited_seconds: float) -> dict[str, float]:
        """Ends a lap at ``step``; returns its rates.

        Args:
          step: the last finished step.
          num_examples: number of examples per step that are used.
          waited_seconds: total time that steps have waited for data.

        Returns:
          steps_per_second, examples_per_second, and data_wait_share, the share of the lap that steps waited.
        """
        now = self._now() - self._paused_seconds
        # Steps finish together when the pipeline is drained. Such a short lap is merged with the one before.
        if now - self._lap[1] >= _SHORTEST_LAP_SECONDS:
            self._lap_before = self._lap
        since = self._lap_before
        steps = step - since[0]
        seconds = max(now - since[1], 1e-9)
        waited = waited_seconds - since[2]
        self._lap = (step, now, waited_seconds)
        self._first_lap = self._first_lap or (step, now)
        rate = steps / seconds
        return {
            "steps_per_second": rate,
            "examples_per_second": rate * num_examples,
            "data_wait_share": min(waited / seconds, 1.0),
        }

    def steps_per_second(self) -> float | None:
        """Returns the rate since the first lap, in which programs are compiled; None until a second lap has ended.

        It is also None if all laps ended together, as in a run that is shorter than the pipeline.
        """
        if self._first_lap is None:
            return None
        (last, ended, _) = self._lap
        (first, began) = self._first_lap
        return (last - first) / (ended - began) if ended - began >= _SHORTEST_LAP_SECONDS else None
