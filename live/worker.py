"""A worker process: the first half of a step, compiled for its workers."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import runs
from data.feeds import Feeds
from live.engine import Task
from live.step import worker_view
from parallel import Layout, map_devices
from parallel.layout import split_by_axes
from parallel.mapping import compute_at_once
from training.setup import make_setup
from training.steps.train_step import make_compute
from training.train_state import STATE_AXES, TrainState, map_per_worker


class Worker:
    """Computes the gradients of k workers on D devices from each task alone; it keeps no state.

    Args:
      config: complete and valid, as a dict.
      num_workers: k.
      num_devices: D, which divides k.
      inputs: the server's inputs: files, and the fingerprint of the examples.

    Raises:
      ValueError: if there are fewer devices, or (one line) if the inputs are not those of the server.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        num_workers: int = 1,
        num_devices: int = 1,
        inputs: runs.Inputs = runs.NO_INPUTS,
    ):
        self._layout = layout = Layout.of(num_workers, num_devices=num_devices)
        if changed := runs.changed_files(inputs.code):
            raise ValueError(f"{changed[0]!r} has changed since the server started")
        setup = make_setup(ConfigDict(dict(config)))
        if setup.source.info.fingerprint != inputs.data and inputs.data:
            raise ValueError(f"config.data: has changed since the server started, to {setup.source.info.fingerprint}")
        dataset = setup.load_data()
        order = setup.example_order(dataset)
        self._feeds = Feeds(dataset.train, order, layout=(num_devices, layout.lanes), placement=setup.source.placement)
        self._resident = layout.put_shared({"train": self._feeds.resident, "constants": dataset.constants})
        compute = compute_at_once(make_compute(setup), state_axes=worker_view(STATE_AXES))
        self._compute = map_devices(compute, layout=layout)
        shapes = map_per_worker(
            lambda x: jax.ShapeDtypeStruct((num_workers, *x.shape), x.dtype), worker_view(setup.worker_shapes)
        )
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        self._work(zeros, np.arange(num_workers))  # compiles before any time counts

    def __call__(self, task: Task) -> Any:
        """Returns the ``WorkerGradient`` of a task, NumPy, [k, ...] a leaf."""
        began = time.perf_counter()
        work = self._work(task.state, task.batch_index)
        time.sleep(max(0.0, task.least_seconds - (time.perf_counter() - began)))
        return work

    def _work(self, state: TrainState, batch_index: np.ndarray) -> Any:
        """Computes the workers' gradients at a state in canonical form."""
        layout = self._layout
        batch = jax.tree.map(lambda x: x[:, 0], self._feeds.at(batch_index[None]))
        state = split_by_axes(  # NumPy: the call puts it on the devices faster than `Layout.put`
            state,
            worker_view(STATE_AXES),
            shared=lambda tree: jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_devices, *np.shape(x))), tree),
            per_worker=lambda tree: jax.tree.map(layout.split, tree),
        )
        return layout.get_per_worker(self._compute(state, batch, self._resident))
