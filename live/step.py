"""A synchronous step that reduces gradients of other processes."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

import parallel
import reducers
from live.delays import Delay
from live.engine import Task
from live.server import Server
from parallel import AXES, LANE_AXIS, Layout
from parallel.mapping import Compute, Update
from reducers.collectives import gather_workers
from training.setup import TrainSetup
from training.steps.train_step import step_time
from training.train_state import STATE_AXES, TrainState


class LiveSteps:
    """Maps one worker's step to workers that are processes; its ``map_workers`` stands for ``parallel.map_workers``.

    Attributes:
      none_pending: whether no gradient waits for others of its update; always true between steps.
      measured: times of the last step, [W] float32 each: "seconds", when each worker's gradient came, and "began", when
        the worker began it; infinite if it did not.
      before: the state at which the last step began; intact while the step waits for gradients.

    Args:
      setup: the run's setup.
      workers_per_process: k.
      delay: (step, worker) -> least seconds of the worker's task.
    """

    none_pending = True

    def __init__(self, setup: TrainSetup, *, workers_per_process: int, delay: Delay):
        self._setup = setup
        self._per_process = workers_per_process
        self._delay = delay
        self.measured: dict[str, np.ndarray] = {}

    def open(self, server: Server, state: TrainState) -> None:
        """Begins to ask the server, with the state from which the run goes on."""
        self._server, self.before = server, state

    def map_workers(self, compute: Compute, update: Update, *, layout: Layout, state_axes: Any) -> parallel.Step:
        """Returns the step of all workers, whose ``compute`` runs elsewhere."""
        del compute  # each process compiles its own
        apply = parallel.update_of_work(update, layout=layout, state_axes=state_axes)
        rule = completion(self._setup, layout)

        def step(state, batch, resident, inputs):
            del resident, inputs
            self.before = state
            host = layout.get(worker_view(state), STATE_AXES)
            number = int(host.step)
            batch_index = np.ravel(batch["batch_index"])

            def task_of(process: int) -> Task:
                workers = range(process * self._per_process, (process + 1) * self._per_process)
                rows = slice(workers.start, workers.stop)
                return Task(
                    number=number,
                    shared=shared,
                    worker=_rows(host.worker, rows),
                    snapshot=_rows(host.snapshot, rows),
                    batch_index=batch_index[rows],
                    least_seconds=max(self._delay(number, worker) for worker in workers),
                )

            shared = host._replace(worker=None, snapshot=None)
            gathered = self._server.gather(number, task_of, lambda seconds: rule(state, seconds))
            self.measured = {"seconds": gathered.seconds, "began": gathered.began}
            absent = jax.tree.map(np.zeros_like, next(iter(gathered.work.values())))
            lanes = []
            for worker in range(layout.num_workers):
                process, row = divmod(worker, self._per_process)
                work = gathered.work.get(process, absent)
                lanes.append(layout.put_shared(_rows(work, row)))
            return apply(state, lanes, {"arrival_seconds": gathered.seconds[None]})

        return parallel.Step(step, lower=lambda *shapes: {})


def worker_view(state: TrainState) -> TrainState:
    """Returns the part of the state on which a worker's gradient depends."""
    params = state.params if state.snapshot is None else None
    return state._replace(params=params, opt_state=None, ema=None, server=None, reducer_state=None, replica=None)


def completion(setup: TrainSetup, layout: Layout) -> Callable[[TrainState, np.ndarray], float]:
    """Returns ``(state, seconds [W]) -> the time at which the step ends``, by the reducer's own rule.

    Workers that have not arrived have infinite seconds; the result is infinite while the rule waits for more. The
    reducer reports it when it reduces zeros.
    """

    def ends(state: TrainState, own_seconds: jax.Array) -> jax.Array:
        seconds = gather_workers(own_seconds, AXES)
        updates = jax.tree.map(jnp.zeros_like, state.params)
        needs = {"arrival_seconds": seconds} if setup.gives_seconds else {}
        _, reducer_state = setup.reducer.update(updates, state.reducer_state, state.params, **needs)
        return step_time(reducers.report(reducer_state).metrics, seconds)["step_seconds"]

    lanes = jax.vmap(ends, in_axes=(STATE_AXES, 0), out_axes=None, axis_name=LANE_AXIS, axis_size=layout.lanes)
    compiled = parallel.map_devices(lanes, layout=layout)
    return lambda state, seconds: float(layout.get_shared(compiled(state, seconds[None])))


def _rows(tree: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], tree)
