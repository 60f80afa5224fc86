"""The sections of a setup that are made of a config alone: lengths, arrivals, reducer, optimizers."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

import optim
import reducers
from parallel import AXES, Partition
from reducers import arrivals
from reducers.dynamic_scale import DynamicScale
from reducers.reducer import located
from reducers.registry import components
from reducers.wrappers import communication
from runs.errors import ConfigError, in_block
from training.steps.gradient_wrappers import LOSS_SCALINGS, skip_worker_overflow
from training.train_state import (
    ARRIVAL_STREAM,
)


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
