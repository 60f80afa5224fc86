"""The objects that a config names, before data are read and devices chosen, and the mode in which workers meet."""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from ml_collections import ConfigDict

import asynchronous
import optim
import parallel
import reducers
from data import checking
from data.augment import as_inputs
from data.example_order import ExampleOrder
from data.examples import Dataset, Info
from data.shares import SPLITS, OwnExamples, labels_of
from data.sources import Source
from models import tasks
from optim.frozen import join, split
from parallel import Layout, compile_quickly, processes
from reducers.dynamic_scale import DynamicScale
from runs.errors import in_block
from training import own_parts, step_plan
from training.steps import late_workers
from training.train_state import STATE_AXES, Initial, TrainState, WorkerState, map_per_worker

# Independent streams of randomness of one seed; the order of examples has its own generator.
INIT_STREAM, STEP_STREAM, ARRIVAL_STREAM, LATENCY_STREAM = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mode(abc.ABC):
    """How the workers of a run meet; it owns its checks, its part of the first state, its plans, inputs and step.

    Attributes:
      config: of the run.
      arrival_seconds: step -> [W], when each worker's gradient arrives.
      num_steps: length of the run; 0 until it is known.
    """

    config: ConfigDict
    arrival_seconds: Callable[[Any], jax.Array]
    num_steps: int = 0

    # ---- facts ----

    @property
    def num_workers(self) -> int:
        """W."""
        return self.config.num_workers

    @property
    @abc.abstractmethod
    def all_compute(self) -> bool:
        """Whether every worker computes a gradient in each step."""

    @property
    @abc.abstractmethod
    def gradients_per_update(self) -> int | None:
        """How many gradients make an update; None where the reducer says which are counted."""

    # ---- checks, each of which raises ConfigError; a mode with nothing to refuse leaves the last three ----

    @abc.abstractmethod
    def check(self) -> None:
        """Refuses what other blocks of the config ask for and the mode has no place for."""

    @property
    @abc.abstractmethod
    def waits_in(self) -> str:
        """The block of the config that waits for workers: "reducer" or "server"."""

    @abc.abstractmethod
    def needs_times(self, reducer: reducers.Reducer) -> bool:
        """Returns whether the run needs an arrival model."""

    @abc.abstractmethod
    def fewest_arrivals(self, reducer: reducers.Reducer, *, step: int) -> int:
        """Returns how many workers have to arrive in a step, at least."""

    def check_order(self) -> None:  # noqa: B027
        """Refuses a recorded order of arrival that is not that of such a run, or ends before it."""

    def check_durations(self) -> None:  # noqa: B027
        """Refuses tasks that take no time or never end, and messages that never arrive.

        This is a pass over the first events, less than a second, and so no part of ``make_setup``; the plans raise the
        same for a later one.
        """

    def check_schedule_free(self, *, needs: str) -> None:  # noqa: B027
        """Refuses what would make another average than that of a schedule-free optimizer, as which it ``needs``."""

    # ---- what a run is made of ----

    @abc.abstractmethod
    def traffic(self, params: Any) -> reducers.Traffic | None:
        """Returns the traffic of one worker in a step; None where it is the reducer's."""

    @abc.abstractmethod
    def init(self, params: Any) -> dict[str, Any]:
        """Returns the mode's fields of the first ``TrainState``: "server", "snapshot" and "replica"."""

    @property
    @abc.abstractmethod
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of one worker's inputs of a step."""

    @abc.abstractmethod
    def waves(self, first_step: int, *, stops: Sequence[int]) -> Iterator[step_plan.PlannedWave]:
        """Yields what is computed together after ``first_step``, up to the end of the run.

        Args:
          first_step: the steps that are done already.
          stops: periods in steps; no wave crosses a multiple of one of them.
        """

    @abc.abstractmethod
    def events(self) -> Iterator[asynchronous.Events] | None:
        """Yields the gradients of an asynchronous run in the order of arrival; None where all arrive together."""

    @abc.abstractmethod
    def make_step(
        self, setup: "TrainSetup", layout: Layout, *, map_workers: Callable[..., parallel.Step]
    ) -> parallel.Step:
        """Returns the step of all workers: ``step(state, batch, resident, inputs) -> (state, metrics)``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSetup:
    """The objects that a config names, before data are read and devices chosen.

    Attributes:
      config: complete and valid.
      source: the data, found but not read.
      task: the model joined with its loss and metrics.
      reducer: combines the workers' updates, along ``AXES``.
      worker_optimizer: transformations before the reducer, whose state is each worker's own: clipping, and with
        ``reducer_on="updates"`` the optimizer.
      optimizer: transformations after the reducer, whose state is shared.
      loss_scale: rule of the dynamic loss scale, or None.
      micro_batches: options of ``micro_batches``.
      num_local_steps: of a worker's own optimizer in one step.
      learning_rate: of each step.
      arrival_seconds: step -> [W], when each worker's gradient arrives.
      mode: how the workers meet.
      traffic: bytes and collectives of one worker in a step.
      traffic_with: those with another reducer, given its block.
      num_steps: length of the run.
      log_every: steps between records.
      eval_every: steps between evaluations.
      checkpoint_every: steps between checkpoints.
    """

    config: ConfigDict
    source: Source
    task: tasks.Task
    reducer: reducers.Reducer
    worker_optimizer: optax.GradientTransformationExtraArgs
    optimizer: optax.GradientTransformationExtraArgs
    loss_scale: DynamicScale | None
    micro_batches: dict[str, Any]
    num_local_steps: int
    learning_rate: optax.Schedule
    arrival_seconds: Callable[[Any], jax.Array]
    mode: Mode
    traffic: reducers.Traffic
    traffic_with: Callable[[Mapping[str, Any]], reducers.Traffic]
    num_steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    @property
    def gradients_per_step(self) -> int:
        """Gradients that are computed for a step, those of late workers too."""
        return self.mode.gradients_per_update or self.config.num_workers

    @property
    def gives_seconds(self) -> bool:
        """Whether the reducer gets the workers' arrival times: it needs them, or keeps simulated clocks of its own."""
        keeps_clocks = self.reducer.local_workers != "never" and self.config.arrivals.name != "none"
        return self.reducer.needs_arrivals or keeps_clocks

    @functools.cached_property
    def late_workers_finish(self) -> bool:
        """Whether a worker that a step leaves out finishes its gradient, and begins the next one late.

        Reducers that leave workers out of whole rounds have clocks of their own, and recorded arrivals stay as they
        are.
        """
        leaves_out = self.reducer.needs_arrivals and self.reducer.local_workers == "never"
        return leaves_out and late_workers.finish(self.config)

    @property
    def may_overflow(self) -> bool:
        """Whether the reducer may say that an update overflowed; one that delays updates also says so of gradients."""
        says = reducers.report(self.worker_shapes.reducer_state).overflowed is not None
        return self.reducer.may_overflow or (says and not self.reducer.delays)

    @property
    def sends_alike(self) -> bool:
        """Whether every step sends as many bytes as the reducer's traced program."""
        names = reducers.report(self.worker_shapes.reducer_state).metrics
        return not {"bytes_per_worker", "communications"} & names.keys()

    @property
    def split(self) -> str:
        """The split that is evaluated, "test" or "validation"; data of another module may have one alone."""
        return self.config.data.get("evaluate_on", "test")

    @property
    def examples_per_step(self) -> int:
        """Examples that are computed for a step, those of late workers too."""
        return self.gradients_per_step * self.config.batch_size_per_worker

    def example_order(self, dataset: Dataset) -> ExampleOrder | OwnExamples:
        """Returns the order in which batches take the training examples."""
        given = {"batch_size": self.config.batch_size_per_worker, "seed": self.config.seed}
        if (shares := self.shares(dataset)) is not None:
            return OwnExamples(shares, **given)
        return ExampleOrder(num_examples=dataset.train.num_examples, **given)

    def shares(self, dataset: Dataset) -> list[np.ndarray] | None:
        """Returns the training examples of each worker, or None where all workers draw from all.

        Raises:
          ConfigError: one line, if the workers cannot have such shares of these data.
        """
        with in_block("split"):
            split = SPLITS.build(self.config.split.to_dict())
            if split is None:
                return None
            labels = labels_of(dataset, key=f"name={self.config.split.name!r}")
            return split(labels, self.config.num_workers, self.config.seed)

    def load_data(self) -> Dataset:
        """Reads the examples, which must be as the source declares them.

        Raises:
          ConfigError: one line, if they cannot be read, or are not.
        """
        own_data, own_task = (own_parts.names_in(self.config[block]) for block in ("data", "task"))
        whose = own_parts.below(own_data[0]) if own_data else contextlib.nullcontext()
        with own_parts.refusing(self.config, of="data"), in_block("data"), whose:
            dataset = self.source.load(self.config.seed)
            bounds = {} if own_task else checking.BOUNDS  # a task of one's own may give other labels a meaning
            return checking.checked(dataset, self.source.info, bounds=bounds, probe=bool(own_data))

    def init_worker(self, initial: Initial | None = None) -> TrainState:
        """Returns the state that every worker begins with.

        Args:
          initial: what does not begin as the seed says.
        """
        config, key = self.config, jax.random.key(self.config.seed)
        own, model_state = self.task.init(jax.random.fold_in(key, INIT_STREAM))
        initial = initial or Initial(own)
        params, frozen = split(join(initial.params, own), config.freeze)
        opt_state = self.optimizer.init(params) if initial.opt_state is None else initial.opt_state
        model_state = model_state if initial.model_state is None else initial.model_state
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
            busy=jnp.zeros(config.num_workers, jnp.float32) if self.late_workers_finish else None,
            frozen=frozen,
            averaged=jnp.asarray(initial.averaged, jnp.int32) if goes_on else None,
            **self.mode.init(params),
        )

    def make_step(
        self, layout: Layout, *, map_workers: Callable[..., parallel.Step] = parallel.map_workers
    ) -> parallel.Step:
        """Returns the step of all workers: ``step(state, batch, resident, inputs) -> (state, metrics)``.

        Args:
          layout: where the workers are.
          map_workers: ``parallel.map_workers`` or ``parallel.dispatch_lanes``, with their options bound.
        """
        return self.mode.make_step(self, layout, map_workers=map_workers)

    @functools.cached_property
    def worker_shapes(self) -> TrainState:
        """The shapes of ``init_worker``."""
        return jax.eval_shape(self.init_worker)

    def init_state(self, layout: Layout, initial: Initial | None = None) -> TrainState:
        """Returns the initial state of all workers, on the devices."""
        init = jax.jit(self.init_worker, compiler_options=compile_quickly())
        state = jax.device_get(init(initial))
        state = processes.same_on_all(state)
        of_all = map_per_worker(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), state)
        return layout.put(of_all, STATE_AXES)

    def abstract_state(self, *, sharding: jax.sharding.Sharding | None = None) -> TrainState:
        """Returns the shapes of all workers' state in canonical form.

        Args:
          sharding: of the per-worker fields, where no one process holds them whole.
        """

        def of_all_workers(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.config.num_workers, *x.shape), x.dtype, sharding=sharding)

        return map_per_worker(of_all_workers, self.worker_shapes._replace(stopped=None))

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


def example_inputs(info: Info) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of one example as the task receives it."""
    batch = {name: jax.ShapeDtypeStruct((1, *part.shape), part.dtype) for name, part in info.example.items()}
    inputs = jax.eval_shape(as_inputs, batch, info.constants)
    return {name: jax.ShapeDtypeStruct(part.shape[1:], part.dtype) for name, part in inputs.items()}
