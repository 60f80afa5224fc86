"""What a run has come to on the simulated clock: seconds, and examples that were used or dropped."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass
class Tally:
    """Sums over all steps so far, on the host; a part of every checkpoint, so that a resumed run has the same.

    Attributes:
      simulated_seconds: of all steps, added up in float64.
      num_counted: workers' batches that went into updates.
      num_dropped: those that came too late.

    >>> tally = Tally()
    >>> tally.add(num_workers=8, contributors=6.0, step_seconds=1.5)
    >>> Tally.of(tally.state()) == tally
    True
    """

    simulated_seconds: float = 0.0
    num_counted: int = 0
    num_dropped: int = 0

    def add(self, *, num_workers: int, contributors: float, step_seconds: float) -> None:
        """Adds a step.

        Args:
          num_workers: W.
          contributors: workers whose batches are in the update.
          step_seconds: its simulated duration.
        """
        self.simulated_seconds += step_seconds
        self.num_counted += round(contributors)
        self.num_dropped += num_workers - round(contributors)

    def state(self) -> dict[str, np.ndarray]:
        """The form that checkpoints have."""
        return {name: np.asarray(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Tally":
        """Reads it from a checkpoint."""
        return cls(**{name: np.asarray(value).item() for name, value in state.items()})

    @classmethod
    def abstract(cls) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of ``state``."""
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in cls().state().items()}
