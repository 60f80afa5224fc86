"""An asynchronous step that applies gradients of other processes in the order in which they arrive."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

import asynchronous
import parallel
from live.delays import Delay
from live.engine import Engine, Task
from live.server import Server
from live.step import worker_view
from parallel import Layout
from parallel.mapping import Compute, Update
from runs import files
from training.modes import WithServer
from training.step_plan import StepPlan
from training.train_state import TrainState


class LiveArrivals(asynchronous.Source):
    """Records the order of arrival, and gives the next task to a worker that reads; a run's plan and step share it.

    A step applies one gradient. A worker's task has the parameters that it read, its row of the snapshots, and the
    number of its batch. Both are in a checkpoint, or follow from the order of arrival, so that a resumed run, or a
    restarted worker, computes the same gradients.

    Args:
      engine: the engine, whose clock gives the times.
      path: file for the order of arrival, which ``config.server.order`` replays.
      mode: the run's mode, whose source of arrivals this becomes.
      delay: (task, worker) -> least seconds of the worker's task.
    """

    events_per_piece = 1

    def __init__(self, engine: Engine, path: Path, mode: WithServer, *, delay: Delay):
        self._engine = engine
        self._path = path
        self._mode = mode
        self._delay = delay
        self._recorded = asynchronous.Recorded([], [])
        self._reading: dict[int, int] = {}  # worker -> number of a batch that it is yet to be given
        self._tasks: dict[int, Task] = {}
        self._work: Any = None
        self._began: float | None = None  # second 0 of the order, by the engine's clock; known when all are ready

    def open(self, server: Server, state: TrainState) -> None:
        """Starts to use the server, with the state from which the run goes on."""
        self._server, self.before = server, state

    @property
    def none_pending(self) -> bool:
        """Whether no gradient waits for others of its update."""
        return len(self._recorded.worker) % self._mode.options.gradients_per_update == 0

    # ---- who arrives -------------------------------------------------------------------------------------------------

    def start(self, num_workers: int) -> None:
        """Goes back to the first recorded gradient."""
        self._recorded.start(num_workers)
        self._num_read = [0] * num_workers

    def begin(self, worker: int, *, now: float, batch_index: int) -> None:
        """Notes the batch of a worker that reads; it gets its task after the step, or when the run resumes."""
        del now
        self._reading[worker] = batch_index
        self._num_read[worker] += 1

    def next(self) -> tuple[float, int]:
        """Returns the next recorded arrival, or waits for one if all recorded ones are over."""
        if self._recorded.is_over:
            if self._began is None:
                self._began = self._engine.clock() - (self._recorded.seconds or [0.0])[-1]
            self._give_tasks()
            worker, self._work = self._server.next_arrival(self._tasks.__getitem__, may_stop=self.none_pending)
            self._recorded.worker.append(worker)
            self._recorded.seconds.append(self._engine.clock() - self._began)
        seconds, worker = self._recorded.next()
        self._reading.pop(worker, None)
        return seconds, worker

    def _give_tasks(self) -> None:
        """Gives each worker that has read parameters the task that begins with them."""
        for worker, batch_index in sorted(self._reading.items()):
            state = worker_view(self.before)
            task = Task(
                number=batch_index,
                shared=jax.tree.map(lambda x: np.asarray(x[0]), state._replace(worker=None, snapshot=None)),
                worker=_row(state.worker, worker),
                snapshot=_row(state.snapshot, worker),
                batch_index=np.array([batch_index]),
                least_seconds=self._delay(self._num_read[worker] - 1, worker),
            )
            self._tasks[worker] = task
            self._server.give(worker, task)
        self._reading.clear()

    # ---- the step ----------------------------------------------------------------------------------------------------

    def map_workers(
        self, compute: Compute, update: Update, *, layout: Layout, state_axes: Any, is_idle: Any = None
    ) -> parallel.Step:
        """Returns the step of all workers, whose ``compute`` runs elsewhere; each call applies one gradient."""
        del compute, is_idle
        apply = parallel.update_of_work(update, layout=layout, state_axes=state_axes)
        absent: list[Any] = []  # zeros for the work of all others; made when first needed

        def step(state, batch, resident, inputs):
            del batch, resident
            inputs = jax.tree.map(lambda x: x[:, 0], inputs)
            (worker,) = np.flatnonzero(inputs["position"][0] >= 0)
            if not absent:
                absent.append(layout.put_shared(jax.tree.map(lambda x: np.zeros_like(x[0]), self._work)))
            work = layout.put_shared(jax.tree.map(lambda x: x[0], self._work))
            state, metrics = apply(state, [work if w == worker else absent[0] for w in range(layout.lanes)], inputs)
            self.before = state
            self._give_tasks()
            return state, metrics

        return parallel.Step(step, lower=lambda *shapes: {})

    # ---- the record --------------------------------------------------------------------------------------------------

    def go_on(self, step: int) -> None:
        """Reads the order up to the gradients of ``step``."""
        num_events = step * self._mode.options.gradients_per_update
        if num_events:
            order = asynchronous.read_order(str(self._path))
            if len(order.worker) < num_events:
                raise ValueError(f"{str(self._path)!r}: ends before step {step}; use another workdir")
            self._recorded = asynchronous.Recorded(order.worker[:num_events], order.seconds[:num_events])

    def add(self, plan: StepPlan) -> None:
        """Does nothing: arrivals are kept as they come."""

    def write(self) -> None:
        """Writes the order of arrival, and the update that each gradient's worker had read."""
        recorded = self._recorded
        options = self._mode.options
        pieces = asynchronous.order(
            asynchronous.Recorded(recorded.worker, recorded.seconds),
            num_workers=self._mode.config.num_workers,
            num_events=len(recorded.worker),
            staleness_bound=options.staleness_bound,
            gradients_per_update=options.gradients_per_update,
        )
        names = ("worker", "seconds", "read_event", "read_seconds", "batch_index")
        columns = [events for events, _ in pieces]
        arrays = {name: np.concatenate([getattr(events, name) for events in columns] or [[]]) for name in names}
        files.write_arrays(self._path, arrays)


def _row(tree: Any, worker: int) -> Any:
    """Returns a worker's row of arrays on the server's device, [1, W, ...], as [1, ...] NumPy."""
    return jax.tree.map(lambda x: np.asarray(x[0, worker])[None], tree)
