"""Counters of a run: simulated seconds, and batches that were used or dropped."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass
class RunCounters:
    """Sums over all steps so far, on the host; every checkpoint has them, so that a resumed run continues them.

    Attributes:
      simulated_seconds: duration of all steps, summed in float64.
      num_counted: batches of workers that are in an update.
      num_dropped: batches of workers that came too late.

    >>> counters = RunCounters()
    >>> counters.add(num_workers=8, contributors=6.0, step_seconds=1.5)
    >>> RunCounters.of(counters.state()) == counters
    True
    """

    simulated_seconds: float = 0.0
    num_counted: int = 0
    num_dropped: int = 0

    def add(self, *, num_workers: int, contributors: float, step_seconds: float) -> None:
        """Adds one step.

        Args:
          num_workers: W.
          contributors: number of workers whose batches are in the update.
          step_seconds: simulated duration of the step.
        """
        self.simulated_seconds += step_seconds
        self.num_counted += round(contributors)
        self.num_dropped += num_workers - round(contributors)

    def state(self) -> dict[str, np.ndarray]:
        """Returns the counters as arrays, for a checkpoint."""
        return {name: np.asarray(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "RunCounters":
        """Returns the counters of a checkpoint."""
        return cls(**{name: np.asarray(value).item() for name, value in state.items()})

    @classmethod
    def abstract(cls) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and dtypes of ``state``."""
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in cls().state().items()}
