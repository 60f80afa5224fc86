"""A config made concrete: model, data, reducer, optimizer and plan of steps, before data are read or devices chosen."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
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
from data.sources import Source
from models import tasks
from parallel import AXES, DEVICE_AXIS, LANE_AXIS
from reducers import arrivals
from reducers.dynamic_scale import DynamicScale
from reducers.reducer import TAKE_WEIGHTS, located
from reducers.wrappers import communication
from runs.errors import ConfigError, in_block
from training import own_parts
from training.modes.decentralised import Decentralised
from training.modes.synchronous import Synchronous
from training.modes.with_server import WithServer
from training.steps import late_workers
from training.steps.gradient_wrappers import LOSS_SCALINGS, skip_worker_overflow
from training.task import make_task, open_source, trained_shapes
from training.train_setup import ARRIVAL_STREAM, Mode, TrainSetup, example_inputs

# The mode of what ``config.server`` names.
_MODES: Mapping[type, type[Mode]] = {
    type(None): Synchronous,
    asynchronous.Mode: WithServer,
    asynchronous.Decentralised: Decentralised,
}


def make_setup(config: ConfigDict, *, open_data: Callable[..., Source] = data.sources.make) -> TrainSetup:
    """Builds the objects that a config names, and rejects invalid combinations; reads no data, compiles nothing.

    Args:
      config: complete and valid, as ``configs.flags.load`` returns it.
      open_data: builds the source from ``config.data``; ``data.assumed.make_or_assume`` where nothing will be read.

    Raises:
      ConfigError: one line with the key, the value and what is allowed.
    """
    with own_parts.refusing(config):
        return _make_setup(config, open_data=open_data)


def _make_setup(config: ConfigDict, *, open_data: Callable[..., Source]) -> TrainSetup:
    source = open_source(config, open_data=open_data)
    task = make_task(config, source=source)
    with own_parts.refusing(config, of="arrivals"), in_block("arrivals"):
        arrival_seconds = make_arrivals(config)
        jax.eval_shape(arrival_seconds, 0)  # refuses a number of workers that the model does not allow
    reducer = make_reducer(config)
    with own_parts.refusing(config, of="server"):
        mode = make_mode(config, arrival_seconds=arrival_seconds)
    check_place(config, reducer=reducer)
    check_weights(config, reducer=reducer, mode=mode)
    check_arrivals(config, reducer=reducer, mode=mode)
    check_lanes(config)
    counted = mode.gradients_per_update or reducer.num_counted or config.num_workers  # in an update
    steps_per_epoch = source.info.num_train / (counted * config.batch_size_per_worker)
    num_steps = duration(config, "train", steps_per_epoch=steps_per_epoch)
    mode = dataclasses.replace(mode, num_steps=num_steps)
    mode.check_order()
    learning_rate = make_learning_rate(
        config, num_counted=counted, total_steps=num_steps, steps_per_epoch=steps_per_epoch
    )
    loss_scale = make_loss_scale(config)
    worker_optimizer, optimizer = make_optimizers(config, reducer, learning_rate=learning_rate, loss_scale=loss_scale)
    micro_batches, num_local_steps = accumulation_of(config)
    params = trained_shapes(config, task)
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
        mode=mode,
        traffic=mode.traffic(params) or traffic_of(config, params, reducer=config.reducer),
        traffic_with=lambda block: traffic_of(config, params, reducer=block),
        num_steps=num_steps,
        log_every=duration(config, "log_every", steps_per_epoch=steps_per_epoch),
        eval_every=duration(config, "eval_every", steps_per_epoch=steps_per_epoch),
        checkpoint_every=duration(config, "checkpoint_every", steps_per_epoch=steps_per_epoch),
    )


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


def make_mode(config: ConfigDict, *, arrival_seconds: Callable[[Any], jax.Array]) -> Mode:
    """Returns how the workers of a run meet.

    Raises:
      ConfigError: if another block asks for something that this mode has no place for.
    """
    with in_block("server"):
        options = asynchronous.modes.make(**config.server)
    of_server = {} if options is None else {"options": options}
    mode = _MODES[type(options)](config=config, arrival_seconds=arrival_seconds, **of_server)
    mode.check()
    return mode


def check_arrivals(config: ConfigDict, *, reducer: reducers.Reducer, mode: Mode) -> None:
    """Raises ConfigError if ``config.arrivals`` does not say what the reducer or server waits for."""
    waiting = f"config.{mode.waits_in}.name={config[mode.waits_in].name!r}"
    if config.arrivals.name == "none" and mode.needs_times(reducer):
        others = ", ".join(sorted(set(arrivals.ARRIVALS) - {"none"}))
        raise ConfigError(f"config.arrivals.name='none': {waiting} needs arrival times; allowed: {others}")
    if config.arrivals.name == "trace":
        seconds = arrivals.read_trace(config.arrivals.path, absent="allow")[:, : config.num_workers]
        if late_workers.finish(config) and reducer.needs_arrivals and not np.isfinite(seconds).all():
            step, worker = np.argwhere(~np.isfinite(seconds))[0]
            never = f"worker {worker} never ends what it begins at step {step}"
            where = f"config.arrivals.path={config.arrivals.path!r}"
            raise ConfigError(f"{where}: {never}; allowed: config.late_workers='interrupt'")
        for step, count in enumerate(np.isfinite(seconds).sum(axis=1)):
            needed = mode.fewest_arrivals(reducer, step=step)
            if count < needed:
                where = f"config.arrivals.path={config.arrivals.path!r}: at step {step} {count} workers arrive"
                raise ConfigError(f"{where}; {waiting} waits for {needed}")


# ---- reduction ---------------------------------------------------------------------------------------------------


def make_reducer(
    config: ConfigDict, *, block: Mapping[str, Any] | None = None, axis_name: reducers.AxisName = AXES
) -> reducers.Reducer:
    """Returns the reducer of a config, whose innermost reducer is sent what ``config.communication`` says.

    Its functions, too, raise ConfigError for what the options of ``config.communication`` cannot be, and for the
    options of the innermost reducer.
    """

    def encode(reducer: reducers.Reducer) -> reducers.Reducer:
        reducer = located(reducer, lambda: in_block("reducer"))
        with in_block("communication"):
            sent = communication.make(**config.communication, reducer=reducer, axis_name=axis_name)
        return located(sent, lambda: in_block("communication"))

    with in_block("reducer"):
        return reducers.make(**(block or config.reducer), axis_name=axis_name, encode=encode)


def check_place(config: ConfigDict, *, reducer: reducers.Reducer) -> None:
    """Raises ConfigError if a reducer or an outer optimizer cannot be used at this point in the chain.

    Gradients that wait are for an optimizer that has not seen them; progress that waits is of workers that have taken
    steps of their own.
    """
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


def check_weights(config: ConfigDict, *, reducer: reducers.Reducer, mode: Mode) -> None:
    """Raises ConfigError if workers are to weigh what they count, and the reducer weighs nobody."""
    if config.weigh == "workers":
        return
    weigh = f"config.weigh={config.weigh!r}"
    if mode.waits_in != "reducer":
        raise ConfigError(f"{weigh}: needs config.server.name='synchronous', not {config.server.name!r}")
    if not reducer.takes_weights:
        who = (
            f"config.reducer.name={config.reducer.name!r} with config.communication.name={config.communication.name!r}"
        )
        raise ConfigError(f"{weigh}: {who} takes no weights; {TAKE_WEIGHTS} do, sent in full")


def check_metrics(config: ConfigDict, params: Any, *, reducer: reducers.Reducer) -> None:
    """Raises ConfigError if two reducers, one inside the other, have metrics of the same name."""
    with in_block("reducer"):
        try:
            reducers.report(jax.eval_shape(reducer.init, params))
        except reducers.ReportError as error:
            raise ValueError(f"name={config.reducer.name!r}: {error}") from None


def traffic_of(config: ConfigDict, params: Any, *, reducer: Mapping[str, Any]) -> reducers.Traffic:
    """Returns the traffic of one worker in a step, counted in the traced program of a reducer, given its block."""
    with in_block("reducer"):  # tracing for this number of workers refuses too few of them
        sizes = {"worker": config.num_workers}
        if own_parts.names_in([reducer, config.communication]):  # it may name the trainer's axes
            sizes = {DEVICE_AXIS: config.num_workers, LANE_AXIS: 1}
        made = make_reducer(config, block=reducer, axis_name=tuple(sizes))
        needs = {"arrival_seconds": jnp.zeros(config.num_workers)} if made.needs_arrivals else {}
        return reducers.traffic(made, params, axis_sizes=sizes, **needs)


# ---- optimizers --------------------------------------------------------------------------------------------------


def make_learning_rate(
    config: ConfigDict, *, num_counted: int, total_steps: int, steps_per_epoch: float
) -> optax.Schedule:
    """Returns peak rate x rule for the number of gradients x factor of the schedule, as a function of the step.

    Args:
      config: the config.
      num_counted: gradients that an update counts: N of N + b with backup workers.
      total_steps: of the run.
      steps_per_epoch: of one pass over the data.
    """
    first = config.schedule_from_step
    with in_block("schedule"):
        factor = optim.schedules.make(config.schedule, total_steps=first + total_steps, steps_per_epoch=steps_per_epoch)
    scale = optim.factors.of_workers(config.learning_rate_scaling, num_workers=num_counted)
    peak = config.optimizer.learning_rate * scale
    return lambda step: peak * factor(first + step)


def make_loss_scale(config: ConfigDict) -> DynamicScale | None:
    """Returns the rule of the dynamic loss scale, or None."""
    with in_block("loss_scaling"):
        return LOSS_SCALINGS.build(config.loss_scaling)


def make_optimizers(
    config: ConfigDict, reducer: reducers.Reducer, *, learning_rate: optax.Schedule, loss_scale: DynamicScale | None
) -> tuple[optax.GradientTransformationExtraArgs, optax.GradientTransformationExtraArgs]:
    """Returns the transformations before and after the reducer: the optimizer's place in the chain is the algorithm.

    Clipping comes before the reducer in either case, so that one worker's huge gradient cannot hurt all.
    """
    with in_block("optimizer"):
        optimizer = optim.optimizers.make(config.optimizer, learning_rate=learning_rate)
    with in_block("outer"):
        outer = optim.outer.make(config.outer, fragments=reducer.fragments)
    before, after = (optimizer, outer) if config.reducer_on == "updates" else (optax.identity(), optimizer)
    if config.clip_norm is not None:
        before = optax.chain(optax.clip_by_global_norm(config.clip_norm), before)
    before, after = optax.with_extra_args_support(before), optax.with_extra_args_support(after)
    return before if loss_scale is None else skip_worker_overflow(before, loss_scale), after


def check_average(
    config: ConfigDict,
    params: Any,
    *,
    mode: Mode,
    worker_optimizer: optax.GradientTransformationExtraArgs,
    optimizer: optax.GradientTransformationExtraArgs,
) -> None:
    """Raises ConfigError if a schedule-free optimizer would have more than one average, or a wrong one."""

    def is_schedule_free(part: optax.GradientTransformationExtraArgs) -> bool:
        return optim.averages.schedule_free_state(jax.eval_shape(part.init, params)) is not None

    block = "outer" if config.reducer_on == "updates" and not is_schedule_free(worker_optimizer) else "optimizer"
    needs = f"config.{block}.name={config[block].name!r} needs"
    if is_schedule_free(worker_optimizer):
        raise ConfigError(f"config.reducer_on='updates': {needs} 'gradients', since workers' averages would differ")
    if not is_schedule_free(optimizer):
        return
    if config.ema_decay is not None:
        raise ConfigError(f"config.ema_decay={config.ema_decay}: {needs} None, since it averages the parameters itself")
    mode.check_schedule_free(needs=needs)


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
        if config.weigh == "count" and count > 1 and options.get("combine", "mean") != "mean":
            raise ValueError(f"combine={options['combine']!r}: needs config.weigh='workers', not {config.weigh!r}")
        if name == "micro_batches":
            return {**options, "weigh": config.weigh}, 1
        if config.reducer_on != "updates":
            raise ValueError(f"name={name!r}: needs config.reducer_on='updates', not {config.reducer_on!r}")
        return {"count": 1, "weigh": config.weigh}, count
