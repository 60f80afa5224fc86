"""The objects that a config names, and what follows from them before data are read and devices chosen."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from ml_collections import ConfigDict

import optim
import reducers
from data import checking
from data.example_order import ExampleOrder
from data.examples import Dataset
from data.shares import SPLITS, OwnExamples, labels_of
from data.sources import Source
from models import tasks
from optim.frozen import join, split
from parallel import DEVICE_AXIS, LANE_AXIS, Layout, Partition, compile_quickly, processes
from reducers.registry import components
from runs.errors import in_block
from training import own_parts, step_plan
from training.modes import InOrderOfArrival, Mode
from training.setup.sections import Lengths, Optimization, make_reducer, partition_of
from training.steps import late_workers
from training.steps.partition import axes_of_state, shapes_in_parts
from training.train_state import (
    INIT_STREAM,
    STEP_STREAM,
    Initial,
    TrainState,
    WorkerState,
    map_per_worker,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSetup(Lengths, Optimization):
    """The objects that a config names, before data are read and devices chosen, joined with its two sections.

    Attributes:
      config: the config, complete and valid.
      source: the data, located but not read.
      task: the model joined with its loss and metrics.
      params: shapes of the parameters that are trained.
      reducer: combines the workers' updates, along ``AXES``.
      arrival_seconds: step -> [W], when each worker's gradient arrives.
      mode: how the workers meet.
    """

    config: ConfigDict
    source: Source
    task: tasks.Task
    params: Any
    reducer: reducers.Reducer
    arrival_seconds: Callable[[Any], jax.Array]
    mode: Mode

    @property
    def partition(self) -> Partition:
        """How a worker's state is divided among the devices of its node."""
        return partition_of(self.config)

    def whole_params(self, params: Any) -> Any:
        """Returns whole parameters, from those of a state on the devices; in the mapped step."""
        return self.partition.whole(params, self.params)

    @property
    def gathers_blocks(self) -> bool:
        """Whether the model's equal blocks gather their parameters, each when it runs."""
        in_parts = self.config.partition == "parameters" and not self.config.freeze  # frozen ones are whole
        return in_parts and "scan_blocks" in self.config.model

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients computed for a step, including those of late workers."""
        return self.mode.gradients_per_update or self.config.num_workers

    @property
    def gives_seconds(self) -> bool:
        """Whether the reducer gets the workers' arrival times: it needs them, or keeps simulated clocks of its own."""
        keeps_clocks = self.reducer.local_workers != "never" and self.config.arrivals.name != "none"
        return self.reducer.needs_arrivals or keeps_clocks

    @functools.cached_property
    def late_workers_finish(self) -> bool:
        """Whether a worker that a step leaves out finishes its gradient, and begins the next one late.

        They never do with a reducer that leaves workers out of whole rounds, because it keeps clocks of its own, and
        with recorded arrivals, which stay as they are.
        """
        leaves_out = self.reducer.needs_arrivals and self.reducer.local_workers == "never"
        return leaves_out and late_workers.finish(self.config)

    @property
    def may_overflow(self) -> bool:
        """Whether the reducer may report that an update overflowed.

        A reducer that delays updates also reports overflows of gradients, which do not count here.
        """
        says = reducers.report(self.worker_shapes.reducer_state).overflowed is not None
        return self.reducer.may_overflow or (says and not self.reducer.delays)

    @functools.cached_property
    def traffic(self) -> reducers.Traffic:
        """Bytes and collectives of one worker in a step, from the traced program."""
        if isinstance(self.mode, InOrderOfArrival):
            return self.mode.traffic(self.params)
        with in_block("reducer"):  # tracing for this number of workers refuses too few of them
            sizes = {"worker": self.config.num_workers}
            if components.names_in([self.config.reducer, self.config.communication]):  # it may name the trainer's axes
                sizes = {DEVICE_AXIS: self.config.num_workers, LANE_AXIS: 1}
            made = make_reducer(self.config, axis_name=tuple(sizes))
            needs = {"arrival_seconds": jnp.zeros(self.config.num_workers)} if made.needs_arrivals else {}
            return reducers.traffic(made, self.params, axis_sizes=sizes, **needs)

    @property
    def sends_alike(self) -> bool:
        """Whether every step sends as many bytes as the reducer's traced program."""
        names = reducers.report(self.worker_shapes.reducer_state).metrics
        return not {"bytes_per_worker", "communications"} & names.keys()

    @property
    def split(self) -> str:
        """The split that is evaluated, "test" or "validation"; a user's own data may have only one."""
        return self.config.data.get("evaluate_on", "test")

    @property
    def examples_per_step(self) -> int:
        """Number of examples computed for a step, including those of late workers."""
        return self.gradients_per_step * self.config.batch_size_per_worker

    def example_order(self, dataset: Dataset) -> ExampleOrder | OwnExamples:
        """Returns the order in which batches take the training examples."""
        given = {"batch_size": self.config.batch_size_per_worker, "seed": self.config.seed}
        if (shares := self.shares(dataset)) is not None:
            weights = self._share_weights(shares) if self.config.weigh == "share" else None
            return OwnExamples(shares, flip_labels=self.config.flip_labels, weights=weights, **given)
        return ExampleOrder(num_examples=dataset.train.num_examples, **given)

    def _share_weights(self, shares: Sequence[np.ndarray]) -> np.ndarray:
        """Returns what a step of each worker weighs, [W]: its examples, over its own steps if workers differ in these.

        Its weights of a round, which `local_sgd` adds up, are then as the examples are, whatever its number of steps.
        """
        every_steps = self.config.reducer.get("every_steps")
        steps = every_steps if isinstance(every_steps, tuple | list) else 1
        return np.array([len(share) for share in shares]) / np.array(steps)

    def shares(self, dataset: Dataset) -> list[np.ndarray] | None:
        """Returns the training examples of each worker, or None if all workers draw from all.

        Raises:
          ConfigError: one line, if the workers cannot have such shares of these data.
        """
        with in_block("split"):
            split = SPLITS.build(self.config.split.to_dict())
            if split is None:
                return None
            labels = labels_of(dataset, key=f"name={self.config.split.name!r}")
            return split(labels, self.config.num_workers, self.config.seed)

    def load_data(self, *, num_workers: int | None = None) -> Dataset:
        """Reads the examples.

        Args:
          num_workers: how many workers this process feeds; None if all. Batches in order must be theirs.

        Raises:
          ConfigError: one line, if they cannot be read, or differ from what the source declares.
        """
        own_data = components.names_in(self.config.data)
        own_task = components.names_in(self.config.task)
        with own_parts.refusing(self.config, of="data"), in_block("data"), own_parts.naming(own_data):
            dataset = self.source.load(self.config.seed)
            bounds = {} if own_task else checking.BOUNDS  # a user's own task may give other labels a meaning
            count = (num_workers or self.config.num_workers) * self.config.batch_size_per_worker
            how: dict[str, Any] = {"reads": self.source.reads, "num_of_step": count}
            return checking.checked(dataset, self.source.info, bounds=bounds, probe=bool(own_data), **how)

    def init_worker(self, initial: Initial | None = None) -> TrainState:
        """Returns the state that every worker begins with.

        Args:
          initial: values that replace those of the seed.
        """
        config = self.config
        key = jax.random.key(config.seed)
        own, model_state = self.task.init(jax.random.fold_in(key, INIT_STREAM))
        initial = initial or Initial(own)
        params, frozen = split(join(initial.params, own), config.freeze)
        opt_state = initial.opt_state
        if opt_state is None:
            opt_state = self.optimizer.init(params)
        if initial.model_state is not None:
            model_state = initial.model_state
        goes_on = config.ema_decay is not None and config.init_what == "shared"
        is_averaged = config.ema_decay is not None or optim.averages.schedule_free_state(opt_state) is not None
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            stopped=jnp.zeros((), bool),
            key=jax.random.key_data(jax.random.fold_in(key, STEP_STREAM)),
            params=params,
            opt_state=opt_state,
            ema=(params if initial.ema is None else initial.ema) if is_averaged else None,
            worker=WorkerState(model_state, self.worker_optimizer.init(params)),
            reducer_state=self.reducer.init(params),
            free_at=jnp.zeros(config.num_workers, jnp.float32) if self.late_workers_finish else None,
            frozen=frozen,
            averaged=jnp.asarray(initial.averaged, jnp.int32) if goes_on else None,
            **self.mode.init(params),
        )

    def init_states(self, params: Any, state: TrainState) -> TrainState:
        """Returns a state in which the states of the optimizers and of the reducer begin from other parameters."""
        return state._replace(
            opt_state=self.optimizer.init(params),
            worker=state.worker._replace(opt_state=self.worker_optimizer.init(params)),
            reducer_state=self.reducer.init(params),
        )

    @functools.cached_property
    def worker_shapes(self) -> TrainState:
        """The shapes of ``init_worker``."""
        return jax.eval_shape(self.init_worker)

    @functools.cached_property
    def device_shapes(self) -> TrainState:
        """The shapes of one worker's state on a device: those of ``worker_shapes``, some of them in parts."""
        return shapes_in_parts(self.worker_shapes, self.partition, params=self.params, init=self.init_states)

    @functools.cached_property
    def state_axes(self) -> TrainState:
        """How the state lies on the devices: ``STATE_AXES``, with a ``Cut`` for each leaf that is in parts."""
        return axes_of_state(self.worker_shapes, self.partition, params=self.params, init=self.init_states)

    def init_state(self, layout: Layout, initial: Initial | None = None) -> TrainState:
        """Returns the initial state of all workers, on the devices."""
        init = jax.jit(self.init_worker, compiler_options=compile_quickly())
        state = jax.device_get(init(initial))
        state = processes.same_on_all(state)
        of_all = map_per_worker(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), state)
        return layout.put(of_all, self.state_axes)

    def plans(self, first_step: int, *, steps_per_call: int) -> Iterator[step_plan.StepPlan]:
        """Yields the calls of the devices after ``first_step``, up to the end of the run."""
        waves = self.mode.waves(first_step, stops=(self.eval_every, self.checkpoint_every))
        return step_plan.plan_calls(
            waves,
            steps_per_call=steps_per_call,
            num_steps=self.num_steps,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
        )
