"""Builds the objects of a config: model, data, reducer, optimizer, steps; reads no data, and chooses no devices.

``make_setup`` makes the sections of a setup one after another; a section does not change once it is made. Then it goes
through ``CHECKS``, which reject combinations of parts that are valid alone.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from ml_collections import ConfigDict

import asynchronous
import data.sources
import optim
import reducers
from data import checking
from data.example_order import ExampleOrder
from data.examples import Dataset
from data.shares import SPLITS, OwnExamples, labels_of
from data.sources import Source
from models import tasks
from optim.frozen import join, split
from parallel import AXES, DEVICE_AXIS, LANE_AXIS, Layout, Partition, compile_quickly, processes
from reducers import arrivals
from reducers.dynamic_scale import DynamicScale
from reducers.reducer import TAKE_WEIGHTS, located
from reducers.registry import components, name_of
from reducers.wrappers import communication
from runs.errors import ConfigError, in_block
from training import own_parts, step_plan
from training.modes import Decentralised, InOrderOfArrival, Mode, Synchronous, WithServer
from training.steps import late_workers
from training.steps.gradient_wrappers import LOSS_SCALINGS, skip_worker_overflow
from training.steps.partition import axes_of_state, shapes_in_parts, works_in_parts
from training.task import batch_inputs, make_task, open_source, trained_shapes
from training.train_state import (
    ARRIVAL_STREAM,
    INIT_STREAM,
    STEP_STREAM,
    Initial,
    TrainState,
    WorkerState,
    map_per_worker,
)

# The settings that ``config.server`` gives -> the mode.
_MODES: Mapping[type, type[Mode]] = {
    type(None): Synchronous,
    asynchronous.Server: WithServer,
    asynchronous.Broadcast: Decentralised,
}


# ---- the sections of a setup -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """Durations in steps.

    Attributes:
      num_steps: length of the run in steps.
      log_every: steps between records.
      eval_every: steps between evaluations.
      checkpoint_every: steps between checkpoints.
    """

    num_steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimization:
    """The transformations of gradients before and after the reducer.

    Attributes:
      worker_optimizer: transformations before the reducer, whose state is each worker's own: clipping, and with
        ``reducer_on="updates"`` the optimizer.
      optimizer: transformations after the reducer, whose state is shared.
      loss_scale: rule of the dynamic loss scale, or None.
      micro_batches: options of ``micro_batches``.
      num_local_steps: steps of a worker's own optimizer in one step.
      learning_rate: learning rate of each step.
    """

    worker_optimizer: optax.GradientTransformationExtraArgs
    optimizer: optax.GradientTransformationExtraArgs
    loss_scale: DynamicScale | None
    micro_batches: dict[str, Any]
    num_local_steps: int
    learning_rate: optax.Schedule


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
        """What of a worker lies in parts on the devices of its node."""
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

    def load_data(self) -> Dataset:
        """Reads the examples.

        Raises:
          ConfigError: one line, if they cannot be read, or differ from what the source declares.
        """
        own_data = components.names_in(self.config.data)
        own_task = components.names_in(self.config.task)
        with own_parts.refusing(self.config, of="data"), in_block("data"), own_parts.naming(own_data):
            dataset = self.source.load(self.config.seed)
            bounds = {} if own_task else checking.BOUNDS  # a user's own task may give other labels a meaning
            count = self.config.num_workers // processes.count() * self.config.batch_size_per_worker
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


# ---- making it ---------------------------------------------------------------------------------------------------


def make_setup(config: ConfigDict, *, open_data: Callable[..., Source] = data.sources.make) -> TrainSetup:
    """Builds the objects that a config names, and rejects invalid combinations; reads no data, compiles nothing.

    Args:
      config: complete and valid, as ``configs.flags.load`` returns it.
      open_data: builds the source from ``config.data``; ``data.assumed.make_or_assume`` if nothing will be read.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    with own_parts.refusing(config):
        source = open_source(config, open_data=open_data)
        task = make_task(config, source=source)
        params = trained_shapes(config, task)
        with own_parts.refusing(config, of="arrivals"), in_block("arrivals"):
            arrival_seconds = make_arrivals(config)
            jax.eval_shape(arrival_seconds, 0)  # refuses a number of workers that the model does not allow
        with own_parts.refusing(config, of="server"), in_block("server"):
            options = asynchronous.settings.make(**config.server)
        reducer = make_reducer_of_node(config)
        counted = options.gradients_per_update if options else reducer.num_counted or config.num_workers  # in an update
        steps_per_epoch = source.info.num_train / (counted * config.batch_size_per_worker)
        lengths = make_lengths(config, steps_per_epoch=steps_per_epoch)
        with own_parts.refusing(config, of="server"), in_block("server"):
            mode = _MODES[type(options)](
                config=config, arrival_seconds=arrival_seconds, num_steps=lengths.num_steps, options=options
            )
        learning_rate = make_learning_rate(
            config, num_counted=counted, total_steps=lengths.num_steps, steps_per_epoch=steps_per_epoch
        )
        optimization = make_optimization(config, reducer, learning_rate=learning_rate)
        setup = TrainSetup(
            config=config,
            source=source,
            task=task,
            params=params,
            reducer=reducer,
            arrival_seconds=arrival_seconds,
            mode=mode,
            **vars(lengths),
            **vars(optimization),
        )
        for check in CHECKS:
            check(setup)
        return setup


def make_lengths(config: ConfigDict, *, steps_per_epoch: float) -> Lengths:
    """Returns the durations of a config in steps, whether they are given in steps or in epochs.

    Epochs are rounded up to whole steps, and what happens every so many epochs happens at multiples of the rounded
    number: with 11.2 steps in an epoch, an evaluation every 5 epochs is at steps 57, 114, 171, and the tenth comes 10
    steps after 50 epochs. Saved runs have their records at these steps, and a run that goes on expects them there.
    """

    def duration(key: str) -> int:
        count = config[f"{key}_steps"]
        epochs = config[f"{key}_epochs"]
        count = count or optim.factors.first_step_at(epochs, steps_per_epoch=steps_per_epoch)
        if not 1 <= count <= optim.factors.MAX_STEPS:
            length = f"{epochs * steps_per_epoch:.3g} steps of which {steps_per_epoch:.3g} are an epoch"
            raise ConfigError(f"config.{key}_epochs={epochs}: is {length}, must be 1 to {optim.factors.MAX_STEPS}")
        return count

    return Lengths(
        num_steps=duration("train"),
        log_every=duration("log_every"),
        eval_every=duration("eval_every"),
        checkpoint_every=duration("checkpoint_every"),
    )


def make_arrivals(config: ConfigDict) -> Callable[[Any], jax.Array]:
    """Returns step -> [W] seconds, the arrival times of a config; they depend on its seed alone."""
    model = arrivals.make(**config.arrivals)

    def arrival_seconds(step):
        key = jax.random.fold_in(jax.random.key(config.seed), ARRIVAL_STREAM)
        return model(key, step, config.num_workers)

    return arrival_seconds


def partition_of(config: ConfigDict) -> Partition:
    """Returns what of a worker lies in parts on the devices of its node."""
    return Partition(config.partition, config.devices_per_worker)


def make_reducer_of_node(config: ConfigDict) -> reducers.Reducer:
    """Returns the reducer of a config, of leaves that may be in parts; refuses a part of it that needs whole ones."""
    whole = make_reducer(config)
    partition = partition_of(config)
    if not partition.axes:
        return whole
    named = f"config.partition={config.partition!r}"
    try:
        made = make_reducer(config, sharded_over=partition.axes)
    except ConfigError as error:  # which that of whole leaves does not raise
        if config.communication.name != "full":
            needs = f"config.communication.name={config.communication.name!r} needs whole layers"
            raise ConfigError(f"{named}: {needs}") from None
        raise ConfigError(str(error).replace(f"sharded_over={partition.axes!r}", named)) from None
    for name in components.names_in(config.communication):
        raise ConfigError(f"{named}: config.communication.name={name!r} is your own, and may need whole layers")
    for name in components.names_in(config.reducer):
        if "sharded_over" not in inspect.signature(reducers.REDUCERS.find(name)).parameters:
            raise ConfigError(
                f"{named}: your reducer {name!r} needs a parameter sharded_over, the axes that cut leaves"
            )
    return made


def make_reducer(
    config: ConfigDict, *, axis_name: reducers.AxisName = AXES, sharded_over: tuple[str, ...] = ()
) -> reducers.Reducer:
    """Returns the reducer of a config; ``config.communication`` encodes what its innermost reducer sends.

    Its functions, too, raise ConfigError for invalid options of ``config.communication`` and of the innermost reducer.

    Args:
      config: the config.
      axis_name: the worker axes.
      sharded_over: the axes that cut the reducer's leaves.
    """
    cut: dict[str, Any] = {"axis_name": axis_name, "sharded_over": sharded_over}

    def encode(reducer: reducers.Reducer) -> reducers.Reducer:
        reducer = located(reducer, lambda: in_block("reducer"))
        with in_block("communication"):
            sent = communication.make(**config.communication, reducer=reducer, **cut)
        return located(sent, lambda: in_block("communication"))

    with in_block("reducer"):
        return reducers.make(**config.reducer, encode=encode, **cut)


def make_learning_rate(
    config: ConfigDict, *, num_counted: int, total_steps: int, steps_per_epoch: float
) -> optax.Schedule:
    """Returns peak rate x rule for the number of gradients x factor of the schedule, as a function of the step.

    Args:
      config: the config.
      num_counted: number of gradients that an update counts: N of N + b with backup workers.
      total_steps: number of steps of the run.
      steps_per_epoch: number of steps in one pass over the data.
    """
    first = config.schedule_from_step
    with in_block("schedule"):
        factor = optim.schedules.make(config.schedule, total_steps=first + total_steps, steps_per_epoch=steps_per_epoch)
    scale = optim.factors.of_workers(config.learning_rate_scaling, num_workers=num_counted)
    peak = config.optimizer.learning_rate * scale
    return lambda step: peak * factor(first + step)


def make_optimization(config: ConfigDict, reducer: reducers.Reducer, *, learning_rate: optax.Schedule) -> Optimization:
    """Returns the transformations before and after the reducer: the optimizer's place in the chain is the algorithm.

    Clipping comes before the reducer in either case, so that one worker's huge gradient cannot hurt all.
    """
    with in_block("loss_scaling"):
        loss_scale = LOSS_SCALINGS.build(config.loss_scaling)
    with in_block("optimizer"):
        optimizer = optim.optimizers.make(config.optimizer, learning_rate=learning_rate)
    with in_block("outer"):
        outer = optim.outer.make(config.outer, fragments=reducer.fragments)
    before, after = (optimizer, outer) if config.reducer_on == "updates" else (optax.identity(), optimizer)
    if config.clip_norm is not None:
        before = optax.chain(optim.clip_by_global_norm(config.clip_norm), before)
    before = optax.with_extra_args_support(before)
    after = optax.with_extra_args_support(after)
    of_node = partition_of(config)
    options = dict(config.accumulation)
    num_local_steps = 1
    if options.pop("name") == "local_steps":
        num_local_steps = options["count"]
        options = {"count": 1}
    return Optimization(
        worker_optimizer=before if loss_scale is None else skip_worker_overflow(before, loss_scale, partition=of_node),
        optimizer=after,
        loss_scale=loss_scale,
        micro_batches={**options, "weigh": config.weigh},
        num_local_steps=num_local_steps,
        learning_rate=learning_rate,
    )


# ---- combinations, each of which raises ConfigError --------------------------------------------------------------


def check_server(setup: TrainSetup) -> None:
    """Refuses values that the mode does not support."""
    config, mode = setup.config, setup.mode
    named = f"name={config.server.name!r}"
    with in_block("server"):
        for key, needed in mode.needs.items():
            found = operator.attrgetter(key)(config)
            if found != needed:
                raise ValueError(f"{named}: needs config.{key}={needed!r}, not {found!r}")
    if not mode.is_synchronous and config.on_nonfinite == "skip":  # workers have read the parameters before
        raise ConfigError(f"config.on_nonfinite='skip': config.server.{named} needs 'stop' or 'ignore'")


def check_order(setup: TrainSetup) -> None:
    """Refuses a recorded order of arrival that does not fit the run, or ends before it."""
    if isinstance(setup.mode, WithServer) and setup.mode.options.order is not None:
        with in_block("server"):
            for _ in setup.mode.events():
                pass


def check_place(setup: TrainSetup) -> None:
    """Refuses a reducer or an outer optimizer that cannot be used at this point in the chain.

    A reducer of gradients belongs before the optimizer; a reducer of the workers' progress belongs after their own
    optimizers. Neither an outer optimizer nor a moving average fits a reducer whose workers share no parameters.
    """
    config, reducer = setup.config, setup.reducer
    named = f"config.reducer.name={config.reducer.name!r}"
    if reducer.reduces not in ("either", config.reducer_on):
        raise ConfigError(f"config.reducer_on={config.reducer_on!r}: {named} needs {reducer.reduces!r}")
    outer = f"config.outer.name={config.outer.name!r}"
    if config.outer.name != "none" and config.reducer_on != "updates":
        raise ConfigError(f"{outer}: needs config.reducer_on='updates', not {config.reducer_on!r}")
    if reducer.local_workers == "always":
        if config.outer.name != "none":
            raise ConfigError(f"{outer}: must be 'none', since {named} emits nothing to it")
        if config.ema_decay is not None:
            raise ConfigError(f"config.ema_decay={config.ema_decay}: must be None, since {named} shares no parameters")


def check_weights(setup: TrainSetup) -> None:
    """Refuses weights in asynchronous runs, of shares where workers have none, and if the reducer takes none."""
    config = setup.config
    if config.weigh == "workers":
        return
    weigh = f"config.weigh={config.weigh!r}"
    if not setup.mode.is_synchronous:
        raise ConfigError(f"{weigh}: needs config.server.name='synchronous', not {config.server.name!r}")
    if not setup.reducer.takes_weights:
        encoded = f"with config.communication.name={config.communication.name!r}"
        who = f"config.reducer.name={config.reducer.name!r} {encoded}"
        raise ConfigError(f"{weigh}: {who} takes no weights; {TAKE_WEIGHTS} do, sent in full")
    if config.weigh == "share" and config.split.name == "shuffled":
        raise ConfigError(f"{weigh}: needs workers with shares, by config.split.name, not 'shuffled'")


def check_labels(setup: TrainSetup) -> None:
    """Refuses ``config.flip_labels`` of workers that do not exist, or that have no examples of their own."""
    config = setup.config
    flipped = f"config.flip_labels={tuple(config.flip_labels)}"
    if config.flip_labels and config.split.name == "shuffled":
        raise ConfigError(f"{flipped}: needs workers with shares, by config.split.name, not 'shuffled'")
    if beyond := [worker for worker in config.flip_labels if not 0 <= worker < config.num_workers]:
        raise ConfigError(f"{flipped}: {beyond[0]} is none of the {config.num_workers} workers")


def check_order_of_examples(setup: TrainSetup) -> None:
    """Refuses, with data that give their batches in order, what reads examples by index."""
    if setup.source.reads == "by_index":
        return
    for block, allowed in (("server", "synchronous"), ("split", "shuffled")):
        if (name := setup.config[block].name) != allowed:
            why = f"since config.data.name={setup.config.data.name!r} gives its batches in order"
            raise ConfigError(f"config.{block}.name={name!r}: must be {allowed!r}, {why}")


def check_arrivals(setup: TrainSetup) -> None:
    """Refuses missing arrival times, and a trace in which fewer workers arrive than the run waits for."""
    config = setup.config
    reducer = setup.reducer
    mode = setup.mode
    block = "reducer"
    needs_times = reducer.needs_arrivals
    if isinstance(mode, InOrderOfArrival):
        block = "server"
        needs_times = mode.source is mode.durations
    waiting = f"config.{block}.name={config[block].name!r}"
    if config.arrivals.name == "none" and needs_times:
        others = ", ".join(sorted(set(arrivals.ARRIVALS) - {"none"}))
        raise ConfigError(f"config.arrivals.name='none': {waiting} needs arrival times; allowed: {others}")
    if config.arrivals.name == "trace":
        where = f"config.arrivals.path={config.arrivals.path!r}"
        seconds = arrivals.read_trace(config.arrivals.path)[:, : config.num_workers]
        arrives = np.isfinite(seconds)
        if late_workers.finish(config) and reducer.needs_arrivals and not arrives.all():
            step, worker = np.argwhere(~arrives)[0]
            never = f"worker {worker} never ends what it begins at step {step}"
            raise ConfigError(f"{where}: {never}; allowed: config.late_workers='interrupt'")
        for step, count in enumerate(arrives.sum(axis=1)):
            needed = config.num_workers  # every task of an asynchronous run has to end
            if mode.is_synchronous:
                needed = reducer.fewest_arrivals(step=step, num_workers=config.num_workers)
            if count < needed:
                raise ConfigError(f"{where}: at step {step} {count} workers arrive; {waiting} waits for {needed}")


def check_lanes(setup: TrainSetup) -> None:
    """Refuses ``config.lanes_at_once`` if it exceeds the workers, or if lanes are dispatched one by one."""
    config = setup.config
    at_once = config.lanes_at_once
    if at_once is not None and at_once > config.num_workers:
        raise ConfigError(f"config.lanes_at_once={at_once}: must be at most config.num_workers={config.num_workers}")
    if at_once is not None and config.lanes == "dispatched":
        raise ConfigError(f"config.lanes_at_once={at_once}: must be None where config.lanes='dispatched'")


def check_node(setup: TrainSetup) -> None:
    """Refuses several devices a worker where a worker computes alone, or where they do not divide its batch."""
    config = setup.config
    if (count := config.devices_per_worker) == 1:
        if config.partition != "none":
            raise ConfigError(f"config.partition={config.partition!r}: needs config.devices_per_worker of 2 at least")
        return
    several = f"config.devices_per_worker={count}"
    if not setup.mode.is_synchronous:
        raise ConfigError(f"{several}: needs config.server.name='synchronous', not {config.server.name!r}")
    if config.mapping != "shard_map":
        raise ConfigError(f"{several}: needs config.mapping='shard_map', not {config.mapping!r}: a pmap has one axis")
    if config.lanes == "dispatched":
        raise ConfigError(f"{several}: needs config.lanes='auto' or 'vmap', not 'dispatched'")
    parts = config.accumulation.count * count
    if config.batch_size_per_worker % parts:
        of_parts = f"{several}: times config.accumulation.count={config.accumulation.count} must divide"
        raise ConfigError(f"{of_parts} config.batch_size_per_worker={config.batch_size_per_worker}")


def check_partition(setup: TrainSetup) -> None:
    """Refuses parts of layers where a transformation or the reducer needs whole ones."""
    config = setup.config
    if config.partition == "none":
        return
    try:
        _ = setup.state_axes
    except ValueError as error:
        raise ConfigError(
            f"config.partition={config.partition!r}: the state {error}, so that it needs whole layers"
        ) from None
    after = "outer" if config.reducer_on == "updates" else "optimizer"
    emitted = reducers.report(setup.worker_shapes.reducer_state).emitted
    needs = {} if emitted is None else {"emitted": jnp.ones(emitted.shape, bool)}
    for block, transformation, given in (
        ("optimizer", setup.worker_optimizer, {}),
        (after, setup.optimizer, needs),
    ):
        if not works_in_parts(transformation, setup.params, **given):
            named = f"config.{block}.name={config[block].name!r}"
            raise ConfigError(f"config.partition={config.partition!r}: {named} needs whole layers")


def check_accumulation(setup: TrainSetup) -> None:
    """Refuses parts that do not divide the batch, and local steps if the workers have no optimizers of their own."""
    config = setup.config
    options = config.accumulation
    count = options.count
    with in_block("accumulation"):
        if config.batch_size_per_worker % count:
            raise ValueError(f"count={count}: must divide config.batch_size_per_worker={config.batch_size_per_worker}")
        if config.weigh == "count" and count > 1 and options.get("combine", "mean") != "mean":
            raise ValueError(f"combine={options['combine']!r}: needs config.weigh='workers', not {config.weigh!r}")
        if options.name == "local_steps" and config.reducer_on != "updates":
            raise ValueError(f"name='local_steps': needs config.reducer_on='updates', not {config.reducer_on!r}")


def check_own_parts(setup: TrainSetup) -> None:
    """Tries the user's own components on shapes."""
    config = setup.config
    batch_size = config.batch_size_per_worker
    batch = batch_inputs(setup.source.info, batch_size)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    num_workers = config.num_workers
    needs = {"arrival_seconds": jnp.zeros(num_workers)} if setup.reducer.needs_arrivals else {}
    of_workers = (num_workers,)
    transformations = [setup.worker_optimizer, setup.optimizer]
    checks: Mapping[tuple[str, ...], Callable[[], None]] = {
        ("task", "model"): lambda: own_parts.check_task(setup.task, batch, batch_size=batch_size),
        ("schedule",): lambda: own_parts.check_shape(
            "gives as the factor of a step", setup.learning_rate, step, shape=()
        ),
        ("arrivals",): lambda: own_parts.check_shape(
            "gives as the seconds of a step", setup.arrival_seconds, step, shape=of_workers
        ),
        ("optimizer", "outer"): lambda: own_parts.check_optimizers(transformations, setup.params),
        ("reducer", "communication"): lambda: own_parts.check_reducer(
            make_reducer(config), setup.params, num_workers=num_workers, **needs
        ),
    }
    for blocks, check in checks.items():
        for block in blocks:
            if names := components.names_in(config[block]):
                with own_parts.refusing(config, of=block), in_block(block), own_parts.naming(names):
                    check()
                break


def check_metrics(setup: TrainSetup) -> None:
    """Refuses two reducers, one inside the other, with metrics of the same name."""
    with in_block("reducer"):
        try:
            reducers.report(jax.eval_shape(setup.reducer.init, setup.params))
        except reducers.ReportError as error:
            raise ValueError(f"name={setup.config.reducer.name!r}: {error}") from None


def check_average(setup: TrainSetup) -> None:
    """Refuses, with a schedule-free optimizer, a second average and staleness rules that scale updates."""
    config, mode = setup.config, setup.mode

    def is_schedule_free(part: optax.GradientTransformationExtraArgs) -> bool:
        return optim.averages.schedule_free_state(jax.eval_shape(part.init, setup.params)) is not None

    of_workers = is_schedule_free(setup.worker_optimizer)
    block = "optimizer"
    if config.reducer_on == "updates" and not of_workers:
        block = "outer"
    needs = f"config.{block}.name={config[block].name!r} needs"
    if of_workers:
        raise ConfigError(f"config.reducer_on='updates': {needs} 'gradients', since workers' averages would differ")
    if not is_schedule_free(setup.optimizer):
        return
    if config.ema_decay is not None:
        raise ConfigError(f"config.ema_decay={config.ema_decay}: {needs} None, since it averages the parameters itself")
    if not isinstance(mode, WithServer):
        return
    rates = mode.options.rule.rates
    rule = name_of(config.server.rule)
    count = mode.options.gradients_per_update
    if rates == "any":  # it would scale the update of the parameters, and not that of the average
        raise ConfigError(f"config.server.rule={rule!r}: {needs} a rule that does not change the rate of an update")
    if rates == "zero or one" and count > 1:  # the rate of an update is the mean of its gradients' rates
        where = f"config.server.gradients_per_update={count}"
        raise ConfigError(f"{where}: {needs} 1 where config.server.rule={rule!r}")


# In the order in which they are made: the first that refuses gives the line.
CHECKS: Sequence[Callable[[TrainSetup], None]] = (
    check_server,
    check_place,
    check_weights,
    check_labels,
    check_order_of_examples,
    check_arrivals,
    check_lanes,
    check_order,
    check_accumulation,
    check_node,
    check_partition,
    check_own_parts,
    check_metrics,
    check_average,
    operator.attrgetter("traffic"),  # whose trace refuses a number of workers
)
