"""Counters of a run: simulated seconds, batches that were used or dropped, and averages of metrics."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_SUMS = ("simulated_seconds", "num_counted", "num_dropped")


@dataclasses.dataclass
class RunCounters:
    """What a run keeps on the host over all steps; every checkpoint has it, so that a resumed run continues it.

    Attributes:
      simulated_seconds: duration of all steps, summed in float64.
      num_counted: batches of workers that are in an update.
      num_dropped: batches of workers that came too late.
      averages: name -> numbers that are averaged over steps, as many for each name; the same names in the whole run.

    >>> counters = RunCounters(averages={"model": (0.0, 0.0)})
    >>> counters.add(num_workers=8, contributors=6.0, step_seconds=1.5)
    >>> RunCounters(averages={"model": (0.0, 0.0)}).restored(counters.state()) == counters
    True
    """

    simulated_seconds: float = 0.0
    num_counted: int = 0
    num_dropped: int = 0
    averages: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)

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
        """Returns the counters as arrays, for a checkpoint; "averages" is one array, and absent if there are none."""
        arrays = {name: np.asarray(getattr(self, name)) for name in _SUMS}
        return arrays | ({"averages": np.array(list(self.averages.values()))} if self.averages else {})

    def restored(self, state: Mapping[str, Any]) -> "RunCounters":
        """Returns the counters of a checkpoint, whose averages have the names of these."""
        sums = {name: np.asarray(state[name]).item() for name in _SUMS}
        rows = np.asarray(state.get("averages", [])).tolist()
        return RunCounters(**sums, averages=dict(zip(self.averages, map(tuple, rows), strict=True)))

    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and dtypes of ``state``."""
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in self.state().items()}
