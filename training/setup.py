"""A config made concrete: model, data, chain and step, before data are read or devices chosen."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp
from ml_collections import ConfigDict

import data
import models
import optim
import reducers
from models import tasks
from parallel import AXES, Halves
from reducers import arrivals
from runs.errors import ConfigError, in_block
from training.step_plan import Timetable
from training.train_step import Chain, Local, Shared, make_chain, make_local_half, make_update
from training.ways import check_arrivals, in_waves, make_reducer, make_timetable, num_counted, together

# Independent streams of randomness of one seed; the order of examples has its own generator.
INIT_STREAM, STEP_STREAM, ARRIVAL_STREAM = 0, 1, 2


class Program(NamedTuple):
    """What a config stands for, before data are read and devices chosen."""

    config: ConfigDict
    source: data.Source
    task: tasks.Task
    halves: Halves
    timetable: Timetable  # what each call of the step is to do
    init: Callable[..., tuple[Shared, Local]]  # of one worker; of other parameters than the seed's where they are given
    arrival_seconds: Callable[[Any], jax.Array]  # step -> [W]
    traffic: reducers.Traffic  # of one worker and step
    num_steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    @property
    def examples_per_step(self) -> int:
        """Examples that are computed for a step, those of late workers too."""
        return self.timetable.gradients_per_step * self.config.batch_size_per_worker


def build(config: ConfigDict, *, open_data: Callable[..., data.Source] = data.make) -> Program:
    """Builds all that a config names, and refuses what makes no sense; reads no data and compiles nothing.

    Args:
      config: complete and valid, as ``configs.flags.load`` returns it.
      open_data: ``config.data`` -> the source; ``data.make_or_assume`` where nothing will be read.

    Raises:
      ConfigError: one line that names the key, the value and what is allowed.
    """
    with in_block("data"):
        source = open_data(**config.data)
    with in_block("model"):
        model = models.make(**config.model, sizes=source.info.sizes)
    with in_block("task"):
        task = tasks.make(**config.task, model=model, example=inputs_of(source.info), sizes=source.info.sizes)

    with in_block("arrivals"):
        arrival_seconds = make_arrivals(config)
        jax.eval_shape(arrival_seconds, 0)  # what it says of this number of workers, it says here
    mode, timetable = make_timetable(config, arrival_seconds=arrival_seconds)
    check_arrivals(config, mode=mode)
    steps_per_epoch = source.info.num_train / (timetable.num_counted * config.batch_size_per_worker)

    def steps(key: str) -> int:
        count, epochs = config[f"{key}_steps"], config[f"{key}_epochs"]
        count = count or optim.factors.first_step_at(epochs, steps_per_epoch=steps_per_epoch)
        if not 1 <= count <= optim.factors.MAX_STEPS:
            length = f"{epochs * steps_per_epoch:.3g} steps of {source.info.num_train / steps_per_epoch:.3g} examples"
            raise ConfigError(f"config.{key}_epochs={epochs}: is {length}, must be 1 to {optim.factors.MAX_STEPS}")
        return count

    learning_rate = make_learning_rate(config, total_steps=steps("train"), steps_per_epoch=steps_per_epoch)
    with in_block("optimizer"):
        optimizer = optim.optimizers.make(config.optimizer, learning_rate=learning_rate)
    with in_block("loss_scaling"):
        loss_scaling = optim.loss_scaling.make(**config.loss_scaling)
    with in_block("accumulation"):
        accumulation = optim.accumulation.make(
            **config.accumulation, batch_size_per_worker=config.batch_size_per_worker, reducer_on=config.reducer_on
        )
    chain = make_chain(
        make_reducer(config, axis_name=AXES),
        optimizer,
        reducer_on=config.reducer_on,
        loss_scaling=loss_scaling,
        clip_norm=config.clip_norm,
    )
    local_half = make_local_half(
        task=task,
        chain=chain,
        accumulation=accumulation,
        loss_scaling=loss_scaling,
        augment=source.augment,
    )
    update = make_update(chain=chain, learning_rate=learning_rate, ema_decay=config.ema_decay)
    if mode is None:
        way = together(
            config,
            chain=chain,
            local_half=local_half,
            update=update,
            measure=task.metrics,
            arrival_seconds=arrival_seconds,
        )
    else:
        way = in_waves(config, mode=mode, local_half=local_half, update=update)
    init = functools.partial(init_worker, config, task=task, chain=chain, init_server=way.init_server)
    with in_block("model"):
        params = jax.eval_shape(init)[0].params
    return Program(
        config=config,
        source=source,
        task=task,
        halves=way.halves,
        timetable=timetable,
        init=init,
        arrival_seconds=arrival_seconds,
        traffic=way.traffic(params),
        num_steps=steps("train"),
        log_every=steps("log_every"),
        eval_every=steps("eval_every"),
        checkpoint_every=steps("checkpoint_every"),
    )


def inputs_of(info: data.Info) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of one example as it reaches the task."""
    batch = {name: jax.ShapeDtypeStruct((1, *part.shape), part.dtype) for name, part in info.example.items()}
    inputs = jax.eval_shape(data.as_inputs, batch, info.constants)
    return {name: jax.ShapeDtypeStruct(part.shape[1:], part.dtype) for name, part in inputs.items()}


def make_learning_rate(config: ConfigDict, *, total_steps: int, steps_per_epoch: float) -> optax.Schedule:
    """Returns peak rate x rule for the number of workers x factor of the schedule, as a function of the step.

    The number of workers is that of those who are waited for, N of N + b, where the reducer's rule fixes it.
    """
    with in_block("schedule"):
        factor = optim.schedules.make(config.schedule, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    scale = optim.scaling.factor(config.learning_rate_scaling, num_workers=num_counted(config))
    peak = config.optimizer.learning_rate * scale
    return lambda step: peak * factor(step)


def make_arrivals(config: ConfigDict) -> Callable[[Any], jax.Array]:
    """Returns step -> [W] seconds, the arrival times of a config; a function of its seed alone."""
    model = arrivals.make(**config.arrivals)

    def arrival_seconds(step):
        key = jax.random.fold_in(jax.random.key(config.seed), ARRIVAL_STREAM)
        return model(key, step, config.num_workers)

    return arrival_seconds


def init_worker(
    config: ConfigDict,
    *,
    task: tasks.Task,
    chain: Chain,
    init_server: Callable[[Any], tuple[Any, Any]],
    params: Any = None,
) -> tuple[Shared, Local]:
    """Returns the state that every worker begins with, a function of the seed alone, or of parameters at hand."""
    key = jax.random.key(config.seed)
    own, model_state = task.init(jax.random.fold_in(key, INIT_STREAM))
    params = own if params is None else params
    step_key = jax.random.key_data(jax.random.fold_in(key, STEP_STREAM))
    ema = None if config.ema_decay is None else params
    server, snapshot = init_server(params)
    shared = Shared(jnp.zeros((), jnp.int32), step_key, params, chain.after.init(params), ema, server)
    return shared, Local(model_state, chain.before.init(params), chain.reducer.init(params), snapshot)
