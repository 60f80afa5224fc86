"""A worker process: the first half of a step, compiled for its workers."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from data.feeds import Feeds
from live.engine import Task
from live.step import given
from parallel.mapping import compute_at_once
from training.setup import make_setup
from training.train_state import STATE_AXES, map_per_worker
from training.train_step import make_compute


class Worker:
    """Computes the gradients of k workers, as lanes of one device, from what each task gives it; it keeps nothing else.

    Args:
      config: complete and valid, as a dict.
      num_workers: k.
    """

    def __init__(self, config: Mapping[str, Any], *, num_workers: int = 1):
        setup = make_setup(ConfigDict(dict(config)))
        dataset = setup.source.load(setup.config.seed)
        order = setup.example_order(dataset)
        self._feeds = Feeds(dataset.train, order, layout=(1, num_workers), placement=setup.source.placement)
        self._resident = jax.device_put({"train": self._feeds.resident, "constants": dataset.constants})
        compute = compute_at_once(make_compute(setup), state_axes=given(STATE_AXES))
        shapes = map_per_worker(
            lambda x: jax.ShapeDtypeStruct((num_workers, *x.shape), x.dtype), given(setup.worker_shapes)
        )
        batch = self._batch(np.arange(num_workers))
        self._compute = jax.jit(compute).lower(shapes, batch, self._resident).compile()  # before any time counts

    def __call__(self, task: Task) -> Any:
        """Returns the ``WorkerGradient`` of a task, NumPy, [k, ...] a leaf."""
        began = time.perf_counter()
        work = jax.device_get(self._compute(task.state, self._batch(task.batch_index), self._resident))
        time.sleep(max(0.0, task.least_seconds - (time.perf_counter() - began)))
        return work

    def _batch(self, batch_index: np.ndarray) -> Any:
        return jax.tree.map(lambda x: x[0, 0], self._feeds.at(np.asarray(batch_index)[None]))
