"""The seconds that each worker's ``compute`` takes, measured one worker at a time."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from parallel.layout import Layout

_POLL_SECONDS = 5e-5


class WorkerTimes:
    """The seconds that each worker's own work took in the last step.

    Measuring costs speed: the workers of one device run one after another, and each is waited for.

    Attributes:
      seconds: [W] float64, in worker order; NaN before the first step and for the workers of other processes.

    Args:
      layout: where the workers are.
    """

    def __init__(self, layout: Layout):
        self.seconds = np.full(layout.num_workers, np.nan)
        self._layout = layout

    def measure(self, lane: int, call: Callable[[], Any], *, after: Any) -> Any:
        """Runs one lane's work on every device, and keeps how long each device took.

        Args:
          lane: the lane.
          call: starts the work and returns its arrays, [D, ...].
          after: arrays that must be ready before the clock starts.

        Returns:
          The result of ``call``.
        """
        jax.block_until_ready(after)
        began = time.perf_counter()
        work = call()
        shards = jax.tree.leaves(work)[0].addressable_shards
        running = {self._layout.devices.index(shard.device): shard.data for shard in shards}
        while running:
            done = [device for device, part in running.items() if part.is_ready()]
            for device in done:
                self.seconds[device * self._layout.lanes + lane] = time.perf_counter() - began
                del running[device]
            if running:
                time.sleep(_POLL_SECONDS)
        return work
