"""A config made concrete: model, data, reducer, optimizer and plan of steps, before data are read or devices chosen."""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from ml_collections import ConfigDict

import asynchronous
import data.sources
import models
import optim
import reducers
from data import checking
from data.augment import as_inputs
from data.example_order import ExampleOrder
from data.examples import Dataset, Info
from data.sources import Source
from models import tasks
from parallel import AXES, DEVICE_AXIS, LANE_AXIS, Layout, compile_quickly, processes
from reducers import arrivals
from reducers.dynamic_scale import DynamicScale
from reducers.reducer import within
from reducers.registry import name_of
from reducers.wrappers import communication
from runs.errors import ConfigError, in_block
from runs.progress import saying_how_far
from training import own_parts, step_plan
from training.gradient_wrappers import LOSS_SCALINGS, skip_worker_overflow
from training.train_state import STATE_AXES, TrainState, WorkerState, map_per_worker

# Independent streams of randomness of one seed; the order of examples has its own generator.
INIT_STREAM, STEP_STREAM, ARRIVAL_STREAM, LATENCY_STREAM = 0, 1, 2, 3
_CHECKED_EVENTS = 200_000  # of an asynchronous run, before it begins

# Keys that an asynchronous run has no use for, and the only value that it allows for each.
ASYNCHRONOUS_NEEDS: Mapping[tuple[str, ...], str | None] = {
    ("reducer", "name"): "mean",
    ("communication", "name"): "full",
    ("loss_scaling", "name"): "none",
    ("reducer_on",): "gradients",
}
# Without a server, a worker's momentum would part its replica from the others for good.
DECENTRALISED_NEEDS: Mapping[tuple[str, ...], str | None] = {
    **ASYNCHRONOUS_NEEDS,
    ("optimizer", "name"): "sgd",
    ("optimizer", "momentum"): None,
    ("ema_decay",): None,
}


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
      async_mode: options of an asynchronous run; None for a synchronous one.
      traffic: bytes and collectives of one worker in a step.
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
    async_mode: asynchronous.AsyncMode | None
    traffic: reducers.Traffic
    num_steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    @property
    def gradients_per_step(self) -> int:
        """Gradients that are computed for a step, those of late workers too."""
        return self.config.num_workers if self.async_mode is None else self.async_mode.gradients_per_update

    @property
    def gives_seconds(self) -> bool:
        """Whether the reducer gets the workers' arrival times: it needs them, or keeps simulated clocks of its own."""
        keeps_clocks = self.reducer.emits != "always" and self.config.arrivals.name != "none"
        return self.reducer.needs_arrivals or keeps_clocks

    @property
    def may_overflow(self) -> bool:
        """Whether the reducer may say that an update is void; one that delays updates also says so of gradients."""
        says = reducers.report(self.worker_shapes.reducer_state).void is not None
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

    def example_order(self, dataset: Dataset) -> ExampleOrder:
        """Returns the order in which batches take the training examples."""
        return ExampleOrder(
            num_examples=dataset.train.num_examples,
            batch_size=self.config.batch_size_per_worker,
            seed=self.config.seed,
        )

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

    @functools.cached_property
    def durations(self) -> asynchronous.Durations:
        """The seconds of each worker's tasks in an asynchronous run."""
        return asynchronous.from_model(self.arrival_seconds)

    @property
    def arrival_order(self) -> asynchronous.Durations | asynchronous.Source:
        """The source of arrivals at an asynchronous server: durations of tasks, or a recorded order."""
        assert isinstance(self.async_mode, asynchronous.Mode)
        return self.durations if self.async_mode.order is None else self.async_mode.order

    @functools.cached_property
    def latencies(self) -> asynchronous.Latencies:
        """The seconds of each message in a run without a server."""
        assert isinstance(self.async_mode, asynchronous.Decentralised)
        return asynchronous.latencies_from_model(message_seconds(self.config, latency=self.async_mode.latency))

    @functools.cached_property
    def num_slots(self) -> int:
        """The number of updates that a run without a server keeps, found in a pass over all events of the run."""
        pieces = saying_how_far(
            self.exchange(), size=lambda piece: len(piece[0].worker), total=self.num_steps, name="steps' messages"
        )
        with jax.ensure_compile_time_eval():  # also where the state is traced
            return asynchronous.num_slots(pieces, num_workers=self.config.num_workers)

    def exchange(self) -> Iterator[tuple[asynchronous.Events, asynchronous.Reads, asynchronous.Received]]:
        """Yields the events of a run without a server, and what is received with them."""
        return asynchronous.exchange(
            self.durations, self.latencies, num_workers=self.config.num_workers, num_events=self.num_steps
        )

    def events(self) -> Iterator[asynchronous.Events]:
        """Yields the gradients of an asynchronous run in the order of arrival, in pieces."""
        assert self.async_mode is not None
        if isinstance(self.async_mode, asynchronous.Decentralised):
            return (events for events, *_ in self.exchange())
        num_workers = self.config.num_workers
        order = step_plan.event_order(
            0, self.num_steps, source=self.arrival_order, mode=self.async_mode, num_workers=num_workers
        )
        return (events for events, _ in order)

    @property
    def wave_inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of one worker's inputs of an asynchronous step; {} of a synchronous one."""
        if self.async_mode is None:
            return {}
        if not isinstance(self.async_mode, asynchronous.Decentralised):
            return {name: jax.ShapeDtypeStruct((), dtype) for name, dtype in step_plan.ASYNC_INPUTS.items()}
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        inbox = jax.ShapeDtypeStruct((self.num_slots,), jnp.int32)
        return {"position": scalar, "slot": scalar, "inbox": inbox, "num_before": scalar}

    def init_worker(self, *, params: Any = None) -> TrainState:
        """Returns the state that every worker begins with.

        Args:
          params: initial parameters; None for those that follow from the seed.
        """
        config, key = self.config, jax.random.key(self.config.seed)
        own, model_state = self.task.init(jax.random.fold_in(key, INIT_STREAM))
        params = own if params is None else params
        opt_state = self.optimizer.init(params)
        is_averaged = config.ema_decay is not None or optim.schedule_free.state_in(opt_state) is not None
        server: Any = None
        if isinstance(self.async_mode, asynchronous.Decentralised):
            server = asynchronous.init_updates(params, num_slots=self.num_slots)
        elif self.async_mode is not None:
            count = self.async_mode.gradients_per_update
            server = asynchronous.init_server(params, rule=self.async_mode.rule, gradients_per_update=count)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(jax.random.fold_in(key, STEP_STREAM)),
            params=params,
            opt_state=opt_state,
            ema=params if is_averaged else None,
            server=server,
            worker=WorkerState(model_state, self.worker_optimizer.init(params)),
            reducer_state=self.reducer.init(params),
            snapshot=None if self.async_mode is None else params,
            replica=params if isinstance(self.async_mode, asynchronous.Decentralised) else None,
        )

    @functools.cached_property
    def worker_shapes(self) -> TrainState:
        """The shapes of ``init_worker``."""
        return jax.eval_shape(self.init_worker)

    def init_state(self, layout: Layout, *, params: Any = None) -> TrainState:
        """Returns the initial state of all workers, on the devices."""
        init = jax.jit(lambda params: self.init_worker(params=params), compiler_options=compile_quickly())
        state = jax.device_get(init(params))
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

        return map_per_worker(of_all_workers, self.worker_shapes)

    def plans(self, first_step: int, *, steps_per_call: int) -> Iterator[step_plan.StepPlan]:
        """Yields the calls of the devices after ``first_step``, up to the end of the run."""
        stops = (self.eval_every, self.checkpoint_every)
        if self.async_mode is None:
            waves = step_plan.synchronous_waves(first_step, self.num_steps, num_workers=self.config.num_workers)
        elif isinstance(self.async_mode, asynchronous.Decentralised):
            waves = step_plan.decentralised_waves(
                first_step,
                self.exchange(),
                num_slots=self.num_slots,
                num_workers=self.config.num_workers,
                stops=stops,
            )
        else:
            waves = step_plan.asynchronous_waves(
                first_step,
                self.num_steps,
                source=self.arrival_order,
                mode=self.async_mode,
                num_workers=self.config.num_workers,
                stops=stops,
            )
        plans = step_plan.plan_calls(
            waves,
            steps_per_call=steps_per_call,
            num_steps=self.num_steps,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
        )
        is_recorded = self.async_mode is None or getattr(self.async_mode, "order", None) is not None
        with contextlib.nullcontext() if is_recorded else naming_arrivals(self.config):
            yield from plans


def make_setup(config: ConfigDict, *, open_data: Callable[..., Source] = data.sources.make) -> TrainSetup:
    """Builds the objects that a config names, and refuses combinations without sense; reads no data, compiles nothing.

    Args:
      config: complete and valid, as ``configs.flags.load`` returns it.
      open_data: builds the source from ``config.data``; ``data.assumed.make_or_assume`` where nothing will be read.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    with own_parts.refusing(config):
        return _make_setup(config, open_data=open_data)


def _make_setup(config: ConfigDict, *, open_data: Callable[..., Source]) -> TrainSetup:
    with in_block("data"):
        source = open_data(**config.data)
        checking.check_info(source.info)
    task = make_task(config, source=source)
    with own_parts.refusing(config, of="arrivals"), in_block("arrivals"):
        arrival_seconds = make_arrivals(config)
        jax.eval_shape(arrival_seconds, 0)  # refuses a number of workers that the model does not allow
    reducer = make_reducer(config)
    with own_parts.refusing(config, of="server"):
        mode = make_mode(config)
    check_place(config, reducer=reducer)
    check_arrivals(config, reducer=reducer, mode=mode)
    check_lanes(config)
    counted = num_counted(config, reducer=reducer, mode=mode)
    steps_per_epoch = source.info.num_train / (counted * config.batch_size_per_worker)
    num_steps = duration(config, "train", steps_per_epoch=steps_per_epoch)
    check_order(config, mode=mode, num_steps=num_steps)
    learning_rate = make_learning_rate(
        config, num_counted=counted, total_steps=num_steps, steps_per_epoch=steps_per_epoch
    )
    loss_scale = make_loss_scale(config)
    worker_optimizer, optimizer = make_optimizers(config, learning_rate=learning_rate, loss_scale=loss_scale)
    micro_batches, num_local_steps = accumulation_of(config)
    params = init_shapes(config, task)
    check_own_parts(
        config,
        params,
        task=task,
        source=source,
        reducer=reducer,
        optimizers=(worker_optimizer, optimizer),
        learning_rate=learning_rate,
        arrival_seconds=arrival_seconds,
    )
    check_metrics(config, params, reducer=reducer)
    check_average(config, params, mode=mode, worker_optimizer=worker_optimizer, optimizer=optimizer)
    return TrainSetup(
        config=config,
        source=source,
        task=task,
        reducer=reducer,
        worker_optimizer=worker_optimizer,
        optimizer=optimizer,
        loss_scale=loss_scale,
        micro_batches=micro_batches,
        num_local_steps=num_local_steps,
        learning_rate=learning_rate,
        arrival_seconds=arrival_seconds,
        async_mode=mode,
        traffic=traffic_of(config, params, mode=mode),
        num_steps=num_steps,
        log_every=duration(config, "log_every", steps_per_epoch=steps_per_epoch),
        eval_every=duration(config, "eval_every", steps_per_epoch=steps_per_epoch),
        checkpoint_every=duration(config, "checkpoint_every", steps_per_epoch=steps_per_epoch),
    )


def make_task(config: ConfigDict, *, source: Source) -> tasks.Task:
    """Returns the model of a config joined with its loss; uses no device.

    Raises:
      ConfigError: as ``make_setup``.
    """
    with in_block("model"):
        model = models.make(**config.model, sizes=source.info.sizes)
    with in_block("task"):
        return tasks.make(**config.task, model=model, example=example_inputs(source.info), sizes=source.info.sizes)


def check_own_parts(
    config: ConfigDict,
    params: Any,
    *,
    task: tasks.Task,
    source: Source,
    reducer: reducers.Reducer,
    optimizers: Iterable[optax.GradientTransformationExtraArgs],
    learning_rate: optax.Schedule,
    arrival_seconds: Callable[[Any], jax.Array],
) -> None:
    """Tries a config's components of one's own on shapes; raises ConfigError, one line, for what cannot be used."""
    num_workers, step = config.num_workers, jax.ShapeDtypeStruct((), jnp.int32)

    def check_task():
        own_parts.check_task(task, example_inputs(source.info), batch_size=config.batch_size_per_worker)

    def check_optimizer():
        for optimizer in optimizers:
            own_parts.check_optimizer(optimizer, params)

    def check_reducer():
        needs = {"arrival_seconds": jnp.zeros(num_workers)} if reducer.needs_arrivals else {}
        own_parts.check_reducer(reducer, params, num_workers=num_workers, **needs)

    def check_schedule():
        own_parts.check_shape("gives as the factor of a step", learning_rate, step, shape=())

    def check_seconds():
        own_parts.check_shape("gives as the seconds of a step", arrival_seconds, step, shape=(num_workers,))

    checks: Mapping[str, Callable[[], None]] = {
        "task": check_task,
        "model": check_task,
        "schedule": check_schedule,
        "arrivals": check_seconds,
        "optimizer": check_optimizer,
        "outer": check_optimizer,
        "reducer": check_reducer,
        "communication": check_reducer,
    }
    done = set()
    for block, check in checks.items():
        names = own_parts.names_in(config[block])
        if names and check not in done:
            done.add(check)
            with own_parts.refusing(config, of=block), in_block(block), own_parts.below(names[0]):
                check()


def init_shapes(config: ConfigDict, task: tasks.Task) -> Any:
    """Returns the shapes of a model's parameters; raises ConfigError if the task cannot train it."""
    with own_parts.refusing(config, of="task"), own_parts.refusing(config, of="model"), in_block("model"):
        try:
            return jax.eval_shape(task.init, jax.random.key(0))[0]
        except tasks.MisfitError as error:
            where = f"name={config.model.name!r}: does not suit config.task.name={config.task.name!r}"
            raise ValueError(f"{where}: {error}") from None


def example_inputs(info: Info) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of one example as the task receives it."""
    batch = {name: jax.ShapeDtypeStruct((1, *part.shape), part.dtype) for name, part in info.example.items()}
    inputs = jax.eval_shape(as_inputs, batch, info.constants)
    return {name: jax.ShapeDtypeStruct(part.shape[1:], part.dtype) for name, part in inputs.items()}


def duration(config: ConfigDict, key: str, *, steps_per_epoch: float) -> int:
    """Returns a duration of the config in steps, whether it is given in steps or in epochs.

    Epochs are rounded up to whole steps, and what happens every so many epochs happens at multiples of the rounded
    number: with 11.2 steps in an epoch, an evaluation every 5 epochs is at steps 57, 114, 171, and the tenth comes 10
    steps after 50 epochs. Saved runs have their records at these steps, and a run that goes on expects them there.
    """
    count, epochs = config[f"{key}_steps"], config[f"{key}_epochs"]
    count = count or optim.factors.first_step_at(epochs, steps_per_epoch=steps_per_epoch)
    if not 1 <= count <= optim.factors.MAX_STEPS:
        length = f"{epochs * steps_per_epoch:.3g} steps of which {steps_per_epoch:.3g} are an epoch"
        raise ConfigError(f"config.{key}_epochs={epochs}: is {length}, must be 1 to {optim.factors.MAX_STEPS}")
    return count


def check_lanes(config: ConfigDict) -> None:
    """Raises ConfigError if ``config.lanes_at_once`` exceeds the workers, or stands beside dispatched lanes."""
    at_once = config.lanes_at_once
    if at_once is not None and at_once > config.num_workers:
        raise ConfigError(f"config.lanes_at_once={at_once}: must be at most config.num_workers={config.num_workers}")
    if at_once is not None and config.lanes == "dispatched":
        raise ConfigError(f"config.lanes_at_once={at_once}: must be None where config.lanes='dispatched'")


# ---- who is late, and who waits ----------------------------------------------------------------------------------


def make_arrivals(config: ConfigDict) -> Callable[[Any], jax.Array]:
    """Returns step -> [W] seconds, the arrival times of a config; they depend on its seed alone."""
    model = arrivals.make(**config.arrivals)

    def arrival_seconds(step):
        key = jax.random.fold_in(jax.random.key(config.seed), ARRIVAL_STREAM)
        return model(key, step, config.num_workers)

    return arrival_seconds


def message_seconds(config: ConfigDict, *, latency: arrivals.Arrivals) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns (sender, task) -> [W] seconds to each receiver; they depend on the seed of a config alone."""

    def seconds(sender, task):
        key = jax.random.fold_in(jax.random.key(config.seed), LATENCY_STREAM)
        return latency(jax.random.fold_in(key, sender), task, config.num_workers)

    return seconds


def make_mode(config: ConfigDict) -> asynchronous.AsyncMode | None:
    """Returns the options of an asynchronous run; None for a synchronous one.

    Raises:
      ConfigError: if another block asks for something that an asynchronous run has no place for.
    """
    with in_block("server"):
        mode = asynchronous.modes.make(**config.server)
        if mode is None:
            return None
        is_decentralised = isinstance(mode, asynchronous.Decentralised)
        for path, needed in (DECENTRALISED_NEEDS if is_decentralised else ASYNCHRONOUS_NEEDS).items():
            found = functools.reduce(operator.getitem, path, config)
            if found != needed:
                key = ".".join(path)
                raise ValueError(f"name={config.server.name!r}: needs config.{key}={needed!r}, not {found!r}")
    if isinstance(mode, asynchronous.Decentralised):
        with in_block("server"):  # refuses a number of workers that the model does not allow
            jax.eval_shape(message_seconds(config, latency=mode.latency), 0, 0)
    if config.on_nonfinite == "skip":  # who reads what, and how stale it is, was settled before
        where = f"config.server.name={config.server.name!r}"
        raise ConfigError(f"config.on_nonfinite='skip': {where} needs 'stop' or 'ignore'")
    return mode


def check_arrivals(config: ConfigDict, *, reducer: reducers.Reducer, mode: asynchronous.AsyncMode | None) -> None:
    """Raises ConfigError if ``config.arrivals`` does not say what the reducer or server waits for."""
    block = "reducer" if mode is None else "server"
    needs_times = reducer.needs_arrivals if mode is None else getattr(mode, "order", None) is None
    if config.arrivals.name == "none" and needs_times:
        others = ", ".join(sorted(set(arrivals.ARRIVALS) - {"none"}))
        needs = f"config.{block}.name={config[block].name!r} needs arrival times"
        raise ConfigError(f"config.arrivals.name='none': {needs}; allowed: {others}")
    if config.arrivals.name == "trace":
        seconds = arrivals.read_trace(config.arrivals.path, absent="allow")[:, : config.num_workers]
        present = np.isfinite(seconds).sum(axis=1)
        for step, count in enumerate(present):
            needed = config.num_workers
            if mode is None:
                needed = reducer.fewest_arrivals(step=step, num_workers=config.num_workers)
            if count < needed:
                where = f"config.arrivals.path={config.arrivals.path!r}: at step {step} {count} workers arrive"
                raise ConfigError(f"{where}; config.{block}.name={config[block].name!r} waits for {needed}")


def check_order(config: ConfigDict, *, mode: asynchronous.AsyncMode | None, num_steps: int) -> None:
    """Raises ConfigError if a recorded order of arrival is not that of such a run, or ends before it."""
    if isinstance(mode, asynchronous.Mode) and mode.order is not None:
        with in_block("server"):
            for _ in step_plan.event_order(0, num_steps, source=mode.order, mode=mode, num_workers=config.num_workers):
                pass


@contextlib.contextmanager
def naming_arrivals(config: ConfigDict) -> Iterator[None]:
    """Turns a ValueError for the seconds of a task into a ConfigError that names the arrival model."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.arrivals.name={config.arrivals.name!r}: gives {error}") from None


def check_durations(setup: TrainSetup) -> None:
    """Raises ConfigError if a task of an asynchronous run takes no time or never ends, or a message never arrives.

    This is a pass over the first events, less than a second, and so no part of ``make_setup``; ``TrainSetup.plans``
    raises the same for a later one. A run without a server needs a pass over all events, for the size of its buffer.
    """
    config, mode = setup.config, setup.async_mode
    if mode is None or getattr(mode, "order", None) is not None:
        return
    num_steps = min(setup.num_steps, _CHECKED_EVENTS)
    with naming_arrivals(config):
        for _ in step_plan.event_order(0, num_steps, source=setup.durations, mode=mode, num_workers=config.num_workers):
            pass
    if isinstance(mode, asynchronous.Decentralised):
        with in_block("server"):
            _ = setup.num_slots  # it looks at all messages


# ---- reduction ---------------------------------------------------------------------------------------------------


def make_reducer(config: ConfigDict, *, axis_name: reducers.AxisName = AXES) -> reducers.Reducer:
    """Returns the reducer of a config, whose innermost reducer is sent what ``config.communication`` says.

    Its functions, too, raise ConfigError for what the options of ``config.communication`` cannot be, and for the
    options of the innermost reducer.
    """

    def encode(reducer: reducers.Reducer) -> reducers.Reducer:
        reducer = within(reducer, lambda: in_block("reducer"))
        with in_block("communication"):
            sent = communication.make(**config.communication, reducer=reducer, axis_name=axis_name)
        return within(sent, lambda: in_block("communication"))

    with in_block("reducer"):
        return reducers.make(**config.reducer, axis_name=axis_name, encode=encode)


def check_place(config: ConfigDict, *, reducer: reducers.Reducer) -> None:
    """Raises ConfigError if a reducer or an outer optimizer has no sense at its place in the chain.

    Gradients that wait are for an optimizer that has not seen them; progress that waits is of workers that have taken
    steps of their own.
    """
    named = f"config.reducer.name={config.reducer.name!r}"
    if reducer.reduces not in ("either", config.reducer_on):
        raise ConfigError(f"config.reducer_on={config.reducer_on!r}: {named} needs {reducer.reduces!r}")
    outer = f"config.outer.name={config.outer.name!r}"
    if config.outer.name != "none" and config.reducer_on != "updates":
        raise ConfigError(f"{outer}: needs config.reducer_on='updates', not {config.reducer_on!r}")
    if reducer.emits == "never":
        if config.outer.name != "none":
            raise ConfigError(f"{outer}: must be 'none', since {named} emits nothing to it")
        if config.ema_decay is not None:
            raise ConfigError(f"config.ema_decay={config.ema_decay}: must be None, since {named} shares no parameters")


def check_metrics(config: ConfigDict, params: Any, *, reducer: reducers.Reducer) -> None:
    """Raises ConfigError if two reducers, one inside the other, have metrics of the same name."""
    with in_block("reducer"):
        try:
            reducers.report(jax.eval_shape(reducer.init, params))
        except reducers.ReportError as error:
            raise ValueError(f"name={config.reducer.name!r}: {error}") from None


def num_counted(config: ConfigDict, *, reducer: reducers.Reducer, mode: asynchronous.AsyncMode | None) -> int:
    """Returns how many batches an update counts where the server or the reducer's rule fixes it; else all workers'."""
    if mode is not None:
        return mode.gradients_per_update
    return config.num_workers if reducer.num_counted is None else reducer.num_counted


def traffic_of(config: ConfigDict, params: Any, *, mode: asynchronous.AsyncMode | None) -> reducers.Traffic:
    """Returns the traffic of one worker in a step, counted in the reducer's traced program."""
    if isinstance(mode, asynchronous.Decentralised):
        return asynchronous.broadcast_traffic(params, num_workers=config.num_workers)
    if mode is not None:
        count = mode.gradients_per_update
        return asynchronous.traffic(params, num_workers=config.num_workers, gradients_per_update=count)
    with in_block("reducer"):  # tracing for this number of workers refuses too few of them
        sizes = {"worker": config.num_workers}
        if own_parts.names_in([config.reducer, config.communication]):  # it may name the trainer's axes
            sizes = {DEVICE_AXIS: config.num_workers, LANE_AXIS: 1}
        reducer = make_reducer(config, axis_name=tuple(sizes))
        needs = {"arrival_seconds": jnp.zeros(config.num_workers)} if reducer.needs_arrivals else {}
        return reducers.traffic(reducer, params, axis_sizes=sizes, **needs)


# ---- optimizers --------------------------------------------------------------------------------------------------


def make_learning_rate(
    config: ConfigDict, *, num_counted: int, total_steps: int, steps_per_epoch: float
) -> optax.Schedule:
    """Returns peak rate x rule for the number of gradients x factor of the schedule, as a function of the step.

    Args:
      config: the config.
      num_counted: gradients that an update counts, as ``num_counted`` returns them: N of N + b with backup workers.
      total_steps: of the run.
      steps_per_epoch: of one pass over the data.
    """
    with in_block("schedule"):
        factor = optim.schedules.make(config.schedule, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    scale = optim.scaling.factor(config.learning_rate_scaling, num_workers=num_counted)
    peak = config.optimizer.learning_rate * scale
    return lambda step: peak * factor(step)


def make_loss_scale(config: ConfigDict) -> DynamicScale | None:
    """Returns the rule of the dynamic loss scale, or None."""
    with in_block("loss_scaling"):
        return LOSS_SCALINGS.build(config.loss_scaling)


def make_optimizers(
    config: ConfigDict, *, learning_rate: optax.Schedule, loss_scale: DynamicScale | None
) -> tuple[optax.GradientTransformationExtraArgs, optax.GradientTransformationExtraArgs]:
    """Returns the transformations before and after the reducer: the optimizer's place in the chain is the algorithm.

    Clipping comes before the reducer in either case, so that one worker's huge gradient cannot hurt all.
    """
    with in_block("optimizer"):
        optimizer = optim.optimizers.make(config.optimizer, learning_rate=learning_rate)
    with in_block("outer"):
        outer = optim.outer.make(config.outer)
    before, after = (optimizer, outer) if config.reducer_on == "updates" else (optax.identity(), optimizer)
    if config.clip_norm is not None:
        before = optax.chain(optax.clip_by_global_norm(config.clip_norm), before)
    before, after = optax.with_extra_args_support(before), optax.with_extra_args_support(after)
    return before if loss_scale is None else skip_worker_overflow(before, loss_scale), after


def check_average(
    config: ConfigDict,
    params: Any,
    *,
    mode: asynchronous.AsyncMode | None,
    worker_optimizer: optax.GradientTransformationExtraArgs,
    optimizer: optax.GradientTransformationExtraArgs,
) -> None:
    """Raises ConfigError if a schedule-free optimizer would have more than one average, or a wrong one."""

    def is_schedule_free(part: optax.GradientTransformationExtraArgs) -> bool:
        return optim.schedule_free.state_in(jax.eval_shape(part.init, params)) is not None

    needs = f"config.optimizer.name={config.optimizer.name!r} needs"
    if is_schedule_free(worker_optimizer):
        raise ConfigError(f"config.reducer_on='updates': {needs} 'gradients', since workers' averages would differ")
    if not is_schedule_free(optimizer):
        return
    if config.ema_decay is not None:
        raise ConfigError(f"config.ema_decay={config.ema_decay}: {needs} None, since it averages the parameters itself")
    if not isinstance(mode, asynchronous.Mode):
        return
    rule = name_of(config.server.rule)
    if mode.rule.rates == "any":  # a rate would scale the update of the parameters, and not that of the average
        raise ConfigError(f"config.server.rule={rule!r}: {needs} a rule that does not change the rate of an update")
    count = mode.gradients_per_update
    if mode.rule.rates == "zero or one" and count > 1:  # the rate of an update is the mean of its gradients' rates
        raise ConfigError(f"config.server.gradients_per_update={count}: {needs} 1 where config.server.rule={rule!r}")


def accumulation_of(config: ConfigDict) -> tuple[dict[str, Any], int]:
    """Returns the options of ``micro_batches``, and the number of local steps.

    Raises:
      ConfigError: if the parts do not divide the batch, or local steps have no optimizer of the worker's own.
    """
    options = dict(config.accumulation)
    name, count = options.pop("name"), options["count"]
    with in_block("accumulation"):
        if config.batch_size_per_worker % count:
            raise ValueError(f"count={count}: must divide config.batch_size_per_worker={config.batch_size_per_worker}")
        if name == "micro_batches":
            return options, 1
        if config.reducer_on != "updates":
            raise ValueError(f"name={name!r}: needs config.reducer_on='updates', not {config.reducer_on!r}")
        return {"count": 1}, count
