"""Counters of a run: simulated seconds, batches that were used or dropped, and averages of metrics."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_SUMS = ("simulated_seconds", "num_counted", "num_dropped", "sent_bytes", "peak_bytes")


@dataclasses.dataclass
class RunCounters:
    """Sums over all steps of a run, kept on the host; every checkpoint has them, and a resumed run continues them.

    Attributes:
      simulated_seconds: duration of all steps, summed in float64.
      num_counted: workers' batches that entered an update.
      num_dropped: workers' batches that came too late, or were of skipped steps.
      sent_bytes: bytes that a worker has sent; None if all steps send the same number.
      peak_bytes: the most bytes that a worker has sent in a step; None in the same case.
      averages: name -> numbers that are averaged over steps; each name has equally many, and the names never change.

    >>> counters = RunCounters(averages={"model": (0.0, 0.0)})
    >>> counters.add(num_gradients=8, contributors=6.0, step_seconds=1.5)
    >>> RunCounters(averages={"model": (0.0, 0.0)}).restored(counters.state()) == counters
    True
    """

    simulated_seconds: float = 0.0
    num_counted: int = 0
    num_dropped: int = 0
    sent_bytes: float | None = None
    peak_bytes: float | None = None
    averages: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    def add(
        self, *, num_gradients: int, contributors: float, step_seconds: float, sent_bytes: float | None = None
    ) -> None:
        """Adds one step.

        Args:
          num_gradients: number of gradients that the step used or dropped: W in a synchronous step.
          contributors: how many of them entered an update.
          step_seconds: simulated duration of the step.
          sent_bytes: bytes that a worker sent in it; None if all steps send the same number.
        """
        self.simulated_seconds += step_seconds
        self.num_counted += round(contributors)
        self.num_dropped += num_gradients - round(contributors)
        if self.sent_bytes is not None and sent_bytes is not None:
            self.sent_bytes += sent_bytes
            self.peak_bytes = max(self.peak_bytes or 0.0, sent_bytes)

    def state(self) -> dict[str, np.ndarray]:
        """Returns the counters as arrays, for a checkpoint; "averages" is one array, and absent if there are none."""
        arrays = {name: np.asarray(value) for name in _SUMS if (value := getattr(self, name)) is not None}
        if self.averages:
            arrays["averages"] = np.array(list(self.averages.values()))
        return arrays

    def restored(self, state: Mapping[str, Any]) -> "RunCounters":
        """Returns the counters of a checkpoint; its averages have the same names as these."""
        sums = {name: np.asarray(state[name]).item() for name in _SUMS if name in state}
        rows = np.asarray(state.get("averages", [])).tolist()
        averages = dict(zip(self.averages, map(tuple, rows), strict=True))
        return RunCounters(**sums, averages=averages)

    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes and dtypes of ``state``."""
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in self.state().items()}
