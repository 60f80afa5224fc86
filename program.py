"""A config made concrete: model, data, chain and one worker's step, before data are read or devices chosen."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree
from ml_collections import ConfigDict

import data
import models
import optim
import reducers
from configs.schema import in_block
from models import tasks
from workers import AXES, Halves

# Independent streams of randomness of one seed; the order of examples has its own generator.
INIT_STREAM, STEP_STREAM = 0, 1


class Shared(NamedTuple):
    """Training state that is equal on all workers."""

    step: Any  # [] int32, server updates so far
    key: Any  # [2] uint32, of dropout and augmentation
    params: Any
    opt_state: Any
    ema: Any  # like params, or None


class Local(NamedTuple):
    """Training state of each worker."""

    model_state: Any  # BatchNorm statistics
    opt_state: Any  # of an optimizer before the reducer
    reducer_state: Any


class Program(NamedTuple):
    """What a config stands for, before data are read and devices chosen."""

    config: ConfigDict
    info: data.Info
    task: tasks.Task
    halves: Halves
    init: Callable[[], tuple[Shared, Local]]  # of one worker
    traffic: reducers.Traffic  # of one worker and step
    placement: Literal["device", "stream"]  # of the training set
    num_steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    @property
    def examples_per_step(self) -> int:
        return self.config.num_workers * self.config.batch_size_per_worker


def build(config: ConfigDict) -> Program:
    """Builds all that a config names, and refuses what makes no sense; reads no data and compiles nothing.

    Args:
      config: complete and valid, as ``configs.flags.load`` returns it.

    Raises:
      ConfigError: one line that names the key, the value and what is allowed.
    """
    with in_block("data"):
        info = data.check(config.data.name, directory=config.data.dir)
        num_bytes = info.num_train * math.prod(info.image_shape)
        placement = data.resolve_placement(config.data.placement, num_bytes=num_bytes)
    with in_block("model"):
        model = models.make(**config.model, num_classes=info.num_classes)
    with in_block("task"):
        task = tasks.make(**config.task, model=model, image_shape=info.image_shape)

    steps_per_epoch = info.num_train / (config.num_workers * config.batch_size_per_worker)

    def steps(key: str) -> int:
        count, epochs = config[f"{key}_steps"], config[f"{key}_epochs"]
        return count or optim.factors.first_step_at(epochs, steps_per_epoch=steps_per_epoch)

    learning_rate = make_learning_rate(config, total_steps=steps("train"), steps_per_epoch=steps_per_epoch)
    with in_block("optimizer"):
        optimizer = optim.optimizers.make(config.optimizer, learning_rate=learning_rate)
    with in_block("reducer"):
        reducer = reducers.make(**config.reducer, axis_name=AXES)
        counted = reducers.make(**config.reducer, axis_name="worker")
    chain = make_chain(reducer, optimizer, reducer_on=config.reducer_on)
    init = functools.partial(init_worker, config, task=task, chain=chain)
    with in_block("model"):
        params = jax.eval_shape(init)[0].params
    with in_block("reducer"):  # traced for this number of workers, so that what is too few of them is refused here
        traffic = reducers.traffic(counted, params, axis_sizes={"worker": config.num_workers})
    return Program(
        config=config,
        info=info,
        task=task,
        halves=make_train_step(
            task=task,
            chain=chain,
            learning_rate=learning_rate,
            augment=data.lookup(config.data.augment),
            clip_norm=config.clip_norm,
            ema_decay=config.ema_decay,
        ),
        init=init,
        traffic=traffic,
        placement=placement,
        num_steps=steps("train"),
        log_every=steps("log_every"),
        eval_every=steps("eval_every"),
        checkpoint_every=steps("checkpoint_every"),
    )


def make_learning_rate(config: ConfigDict, *, total_steps: int, steps_per_epoch: float) -> optax.Schedule:
    """Returns peak rate x rule for the number of workers x factor of the schedule, as a function of the step."""
    with in_block("schedule"):
        factor = optim.schedules.make(config.schedule, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
    scale = optim.scaling.factor(config.learning_rate_scaling, num_workers=config.num_workers)
    peak = config.optimizer.learning_rate * scale
    return lambda step: peak * factor(step)


class Chain(NamedTuple):
    """``optax.chain(before, reducer, after)``: state is local to each worker up to the reducer, shared after it."""

    before: optax.GradientTransformationExtraArgs
    reducer: optax.GradientTransformationExtraArgs
    after: optax.GradientTransformationExtraArgs


def make_chain(
    reducer: optax.GradientTransformation,
    optimizer: optax.GradientTransformation,
    *,
    reducer_on: Literal["gradients", "updates"] = "gradients",
) -> Chain:
    """Puts the reducer before the optimizer, or after it: its place in the chain is the algorithm."""
    parts = (optax.identity(), reducer, optimizer)
    if reducer_on == "updates":
        parts = (optimizer, reducer, optax.identity())
    return Chain(*map(optax.with_extra_args_support, parts))


def init_worker(config: ConfigDict, *, task: tasks.Task, chain: Chain) -> tuple[Shared, Local]:
    """Returns the state that every worker begins with, a function of the seed alone."""
    key = jax.random.key(config.seed)
    params, model_state = task.init(jax.random.fold_in(key, INIT_STREAM))
    step_key = jax.random.key_data(jax.random.fold_in(key, STEP_STREAM))
    ema = None if config.ema_decay is None else params
    shared = Shared(jnp.zeros((), jnp.int32), step_key, params, chain.after.init(params), ema)
    return shared, Local(model_state, chain.before.init(params), chain.reducer.init(params))


def make_train_step(
    *,
    task: tasks.Task,
    chain: Chain,
    learning_rate: optax.Schedule,
    augment: Callable = data.AUGMENTATIONS["none"],
    clip_norm: float | None = None,
    ema_decay: float | None = None,
) -> Halves:
    """Returns one worker's step: gradients of its own batch, then the reduction and the update.

    Clipping is of each worker's gradient, before the reduction, so that one worker's huge gradient cannot hurt all.
    """
    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)

    def gradient(shared: Shared, local: Local, feed, resident):
        key = jax.random.fold_in(jax.random.wrap_key_data(shared.key), feed["draw"])
        augment_key, dropout_key = jax.random.split(key)
        batch = data.fetch(resident["train"], feed)
        image = data.normalise(augment(augment_key, batch["image"]), resident["mean"], resident["std"])
        loss = functools.partial(task.loss, batch={**batch, "image": image}, key=dropout_key)
        gradients, (sums, model_state) = jax.grad(loss, has_aux=True)(shared.params, local.model_state)
        sums |= {"squared_norm": optax.tree.norm(gradients) ** 2, "workers": jnp.ones(())}
        return clip.update(gradients, clip.init(gradients))[0], model_state, sums

    def reduce(shared: Shared, local: Local, computed):
        updates, model_state, sums = computed
        updates, local_opt_state = chain.before.update(updates, local.opt_state, shared.params)
        updates, reducer_state = chain.reducer.update(updates, local.reducer_state, shared.params)
        reduced_norm = optax.tree.norm(updates)
        updates, opt_state = chain.after.update(updates, shared.opt_state, shared.params)
        params = optax.apply_updates(shared.params, updates)
        step = shared.step + 1
        ema = (
            shared.ema if ema_decay is None else optim.ema.update(shared.ema, params, num_updates=step, decay=ema_decay)
        )

        flat, unflatten = ravel_pytree(sums)
        totals = unflatten(lax.psum(flat, AXES))  # one all-reduce for all metrics
        metrics = {
            "loss": totals["loss"] / totals["count"],
            "accuracy": totals["correct"] / totals["count"],
            "learning_rate": learning_rate(shared.step),
            "gradient_norm": jnp.sqrt(totals["squared_norm"] / totals["workers"]),  # root mean square over workers
            "reduced_norm": reduced_norm,
            "update_norm": optax.tree.norm(updates),
        }
        return (
            Shared(step, shared.key, params, opt_state, ema),
            Local(model_state, local_opt_state, reducer_state),
            metrics,
        )

    return Halves(gradient, reduce)
