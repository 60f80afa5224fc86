"""One step of synchronous SGD, in the order in which it happens.

    compute_gradients    one worker, on its node         jax.value_and_grad, the worker's own optimizer
    reduce_gradients     all workers, all collectives   reducer.update, one lax.psum for the metrics
    apply_gradients      shared state, inside a node    optimizer.update, optax.apply_updates

``make_compute`` gives the first of them and ``make_update`` the others. ``parallel.map_workers`` runs them on the lanes
of all devices by ``jax.pmap`` or ``jax.shard_map``. The asynchronous step (``async_train_step``) shares the first and
the last.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree

import asynchronous
import optim
import reducers
from data.augment import Augmentation, as_inputs
from data.feeds import fetch
from optim.frozen import join
from parallel import AXES, WHOLE, Partition
from parallel.mapping import Update
from reducers.collectives import gather_workers
from reducers.report import who_counts
from training.setup import TrainSetup
from training.steps import late_workers, nonfinite
from training.steps.gradient_wrappers import (
    GradientFunction,
    Sums,
    local_steps,
    micro_batches,
    over_parts,
    record_loss_scale,
    scale_loss,
    through_worker_optimizer,
)
from training.steps.partition import block_by_block
from training.train_state import TrainState, WorkerState, gradient_params, shared_part

Metrics = dict[str, Any]


def make_update(setup: TrainSetup) -> Update:
    """Returns ``(state, WorkerGradient, inputs) -> (state, metrics)`` of one worker: the reduction and the update.

    Late workers are simulated: every worker computes and takes part in the collectives.
    """
    config = setup.config

    def apply_all(state: TrainState, reduced: "Reduced") -> tuple[TrainState, Metrics]:
        state, metrics = apply_gradients(setup, state, reduced.updates, emitted=reduced.emitted)
        own = {"worker": reduced.worker, "reducer_state": reduced.reducer_state}
        return state._replace(**own, free_at=reduced.free_at), metrics

    apply: nonfinite.UpdateFunction = apply_all
    if setup.reducer.local_workers != "never":
        apply = when_emitted(apply, learning_rate=setup.learning_rate)
    may_overflow = setup.loss_scale is not None or setup.may_overflow
    if may_overflow:
        apply = nonfinite.skip_overflow(apply, partition=setup.partition)
    if config.on_nonfinite != "ignore":
        apply = nonfinite.skip_nonfinite(apply, then=config.on_nonfinite, look_at="loss" if may_overflow else "all")

    def update(state: TrainState, gradient: "WorkerGradient", inputs: Any) -> tuple[TrainState, Metrics]:
        if "arrival_seconds" in inputs:  # this worker's, as measured
            durations = gather_workers(inputs["arrival_seconds"], AXES)
            free_at = None
        else:
            durations = setup.arrival_seconds(state.step)
            free_at = state.free_at
        reduced = reduce_gradients(setup, state, gradient, durations=durations, free_at=free_at)
        state, metrics = apply(state, reduced)
        return state, step_metrics(reduced, metrics, measure=setup.task.metrics)

    return optim.norms.cut_over(setup.partition.axes)(update)


# ---- 1. One worker: forward, backward, and its own optimizer -----------------------------------------------------


class WorkerGradient(NamedTuple):
    """The result of one worker's computation in a step.

    Attributes:
      updates: its gradient, or the updates of its own optimizer; the reducer's input.
      worker: its own state afterwards.
      sums: sums over its examples, such as "loss" and "count"; "squared_norm" of its gradient; "workers", 1; with
        ``config.weigh="share"`` also "share", what it weighs.
      layers: [L], squared norm of each leaf of ``updates``.
    """

    updates: Any
    worker: WorkerState
    sums: Sums
    layers: jax.Array


def compute_gradients(
    state: TrainState, batch: Any, resident: Any, *, gradient: GradientFunction, augment: Augmentation
) -> WorkerGradient:
    """Computes one worker's gradient on its batch; there is no collective between workers in it."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), batch["batch_index"])
    augment_key, dropout_key = jax.random.split(key)
    examples = fetch(resident["train"], batch)
    examples = as_inputs(examples, resident["constants"], augment=augment, key=augment_key)
    updates, worker, sums = gradient(state, state.worker, examples, dropout_key)
    if "share" in batch:
        sums = {**sums, "share": batch["share"]}
    return WorkerGradient(updates, worker, {**sums, "workers": jnp.ones(())}, optim.norms.squares(updates))


def make_compute(setup: TrainSetup) -> Callable[[TrainState, Any, Any], WorkerGradient]:
    """Returns ``(state, batch, resident) -> WorkerGradient`` of one worker: the first part of every mode's step."""
    compute = functools.partial(compute_gradients, gradient=make_gradient_function(setup), augment=setup.source.augment)
    return optim.norms.cut_over(setup.partition.axes)(compute)


def make_gradient_function(setup: TrainSetup) -> GradientFunction:
    """Returns the gradient function of a config: ``value_and_grad`` inside of the wrappers that the config asks for."""
    of_node: dict[str, Any] = {"partition": setup.partition}
    whole: Callable[[Any], Any] = setup.whole_params
    loss = setup.task.loss
    if setup.gathers_blocks:
        whole, loss = block_by_block(setup.partition, setup.params, loss)
    gradient: GradientFunction = functools.partial(value_and_grad, loss_fn=loss, whole=whole, **of_node)
    gradient = over_parts(gradient, count=setup.config.devices_per_worker, **of_node)
    if setup.loss_scale is not None:
        gradient = scale_loss(gradient, **of_node)
    gradient = micro_batches(gradient, **setup.micro_batches)
    gradient = through_worker_optimizer(gradient, setup.worker_optimizer, **of_node)
    gradient = local_steps(gradient, count=setup.num_local_steps, **of_node)
    return gradient if setup.loss_scale is None else record_loss_scale(gradient)


def value_and_grad(
    state: TrainState,
    worker: WorkerState,
    batch: Any,
    key: jax.Array,
    *,
    loss_fn: Callable,
    loss_scale: Any = None,
    whole: Callable[[Any], Any] = lambda params: params,
    partition: Partition = WHOLE,
) -> tuple[Any, WorkerState, Sums]:
    """Returns one worker's gradient, its state after the forward pass, and the sums of its loss and metrics."""

    def loss(params):
        value, (sums, model_state) = loss_fn(join(whole(params), state.frozen), worker.model_state, batch, key)
        return value if loss_scale is None else loss_scale * value, (sums, model_state)

    params = gradient_params(state, partition)
    (_, (sums, model_state)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    return gradients, worker._replace(model_state=model_state), sums


# ---- 2. All workers: the reduction -------------------------------------------------------------------------------


class Reduced(NamedTuple):
    """The result of the reduction, equal on all workers except for ``worker`` and ``reducer_state``.

    Attributes:
      updates: the reduced updates.
      worker: this worker's own state after the step.
      reducer_state: this worker's state of the reducer.
      totals: the ``sums`` of the workers that count, added up.
      time: "step_seconds" and "contributors"; if late workers finish, also "busy_workers", the number that began late.
      metrics: the reducer's metrics, averaged over the workers.
      report: the parts of a ``NonfiniteReport`` that are known before the update; {} if numbers that are not finite are
        ignored.
      emitted: [] bool, whether the reducer emitted anything, or [P] bool, which fragments; None if it always does.
      overflowed: [] bool, whether these updates are zeros because they overflowed in the reduction, or because all
        workers' gradients did. For delayed updates it is the value from the step that computed them.
      free_at: see ``TrainState``; the value after the step.
    """

    updates: Any
    worker: WorkerState
    reducer_state: Any
    totals: Sums
    time: Metrics
    metrics: Metrics
    report: dict[str, jax.Array]
    emitted: Any
    overflowed: Any
    free_at: Any


def reduce_gradients(
    setup: TrainSetup,
    state: TrainState,
    gradient: WorkerGradient,
    *,
    durations: jax.Array,
    free_at: jax.Array | None,
) -> Reduced:
    """Reduces the workers' updates and metrics; every collective of the step is here.

    Args:
      setup: the run's setup, whose reducer reduces along ``AXES``.
      state: before the step.
      gradient: this worker's result.
      durations: [W], how long each worker takes for its gradient, for the clock of the run.
      free_at: see ``TrainState``; also None if ``durations`` are measured arrivals.
    """
    reducer = setup.reducer
    seconds = late_workers.arrivals(free_at, durations)
    needs = {"arrival_seconds": seconds} if setup.gives_seconds else {}
    if reducer.delays and "contributed" in gradient.sums:
        needs["overflowed"] = gradient.sums["contributed"] == 0
    if setup.config.weigh != "workers":
        needs["weights"] = gradient.sums[setup.config.weigh]
    params = setup.partition.own(state.params)
    updates, reducer_state = reducer.update(gradient.updates, state.reducer_state, params, **needs)
    of_reducer = reducers.report(reducer_state)
    counted = who_counts(weights=needs.get("weights"), inside=of_reducer)
    gradient = leave_out(gradient, state.worker, counted=counted)
    measured = {name: jnp.asarray(value, jnp.float32) for name, value in of_reducer.metrics.items()}
    time = step_time(measured, seconds)
    if free_at is not None:
        time["busy_workers"] = jnp.sum(free_at > 0, dtype=jnp.float32)
        free_at = late_workers.free_after(free_at, durations, time["step_seconds"])
    measured = {name: value for name, value in measured.items() if name not in time}
    report = {}
    if setup.config.on_nonfinite != "ignore":
        report = nonfinite.own_part(gradient.layers, gradient.sums)
    flat, unflatten = ravel_pytree((gradient.sums, measured, report))
    totals, measured, report = unflatten(lax.psum(flat, AXES))  # one all-reduce for all of them
    measured = {name: total / reducers.num_workers(AXES) for name, total in measured.items()}
    overflowed = jnp.array(False) if of_reducer.overflowed is None else of_reducer.overflowed
    if "contributed" in totals and of_reducer.emitted is None and not reducer.delays:
        overflowed |= totals["contributed"] == 0
    return Reduced(
        updates=updates,
        worker=gradient.worker,
        reducer_state=reducer_state,
        totals=totals,
        time=time,
        metrics=measured,
        report=report,
        emitted=None if of_reducer.emitted is None else reducers.same_on_all(of_reducer.emitted, AXES),
        overflowed=reducers.same_on_all(overflowed, AXES),
        free_at=state.free_at if free_at is None else free_at,
    )


def leave_out(gradient: WorkerGradient, before: WorkerState, *, counted: jax.Array | None) -> WorkerGradient:
    """Reverts an uncounted worker to its state before the step.

    Its BatchNorm statistics, the state of its own optimizer and its loss scale stay as they were before, and its loss
    and gradient norm enter no metric, so that its NaN reaches nothing.

    Args:
      gradient: this worker's result.
      before: its own state before the step.
      counted: [] bool, whether it arrived in time and its gradient was used; None counts all workers.
    """
    if counted is None:
        return gradient
    return gradient._replace(
        worker=optax.tree.where(counted, gradient.worker, before),
        sums=jax.tree.map(lambda x: jnp.where(counted, x, 0), gradient.sums),
    )


def step_time(measured: Metrics, seconds: jax.Array) -> Metrics:
    """Returns a step's simulated "step_seconds", and its number of "contributors", the workers that were waited for.

    Args:
      measured: the reducer's metrics. If it reports neither of the two, the step waits for all workers.
      seconds: [W], when each worker's gradient arrives.
    """
    of_all = {"step_seconds": jnp.max(seconds), "contributors": jnp.float32(len(seconds))}
    own = {name: reducers.same_on_all(measured[name], AXES) for name in of_all if name in measured}
    return of_all | own


# ---- 3. Shared state: the optimizer and the update ---------------------------------------------------------------


def apply_gradients(
    setup: TrainSetup,
    state: TrainState,
    gradients: Any,
    *,
    rate: asynchronous.Rate = None,
    emitted: Any = None,
) -> tuple[TrainState, Metrics]:
    """Updates the parameters with reduced gradients; there is no collective between workers in it.

    Args:
      setup: the run's setup, with the transformations after the reducer.
      state: before the update.
      gradients: the reduced updates.
      rate: an asynchronous server's factor of the update; None is 1.
      emitted: see ``Reduced``.

    Returns:
      The state after the update, and its metrics. ``nonfinite.skip_nonfinite`` reads "squares", [2, L], which no record
      has.
    """
    opt_state = optim.schedules.at_step(state.opt_state, state.step)
    extra_args = {} if emitted is None else {"emitted": emitted}
    optimizer = setup.optimizer
    ema_decay = setup.config.ema_decay
    partition = setup.partition
    updates, new_opt_state = optimizer.update(gradients, opt_state, partition.own(state.params), **extra_args)
    updates, opt_state = asynchronous.at_rate(rate, updates, new_opt_state, before=opt_state)
    params = optax.apply_updates(state.params, partition.like_params(updates, state.params))
    step = state.step + 1
    ema = optim.averages.schedule_free(opt_state, partition.own(params))
    if ema is not None:
        ema = partition.like_params(ema, params)
    if ema_decay is not None:
        num_updates = step if state.averaged is None else step + state.averaged
        ema = optim.averages.ema(state.ema, params, num_updates=num_updates, decay=ema_decay)
    squares = [optim.norms.squares(tree) for tree in (gradients, updates)]
    metrics = {
        "learning_rate": setup.learning_rate(state.step),
        "reduced_norm": optim.norms.norm(squares[0]),
        "update_norm": optim.norms.norm(squares[1]),
        "squares": jnp.stack(squares),
    }
    return state._replace(step=step, params=params, opt_state=opt_state, ema=ema), metrics


def when_emitted(update: nonfinite.UpdateFunction, *, learning_rate: optax.Schedule) -> nonfinite.UpdateFunction:
    """Wraps an update: shared state stays as it was, bit for bit, if the reducer emitted nothing.

    The step still counts, and each worker's own state changes.

    Args:
      update: the update.
      learning_rate: learning rate of each step, for the records; the other metrics of a missing update are zeros.
    """

    def updating(state, reduced):
        def apply():
            after, metrics = update(state, reduced)
            return shared_part(after), metrics

        def keep():
            shapes = jax.eval_shape(apply)[1]
            metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            metrics["learning_rate"] = learning_rate(state.step)
            return shared_part(state)._replace(step=state.step + 1), metrics

        after, metrics = lax.cond(jnp.any(reduced.emitted), apply, keep)
        own = {"worker": reduced.worker, "reducer_state": reduced.reducer_state, "snapshot": state.snapshot}
        return after._replace(**own), metrics

    return updating


def step_metrics(reduced: Reduced, own: Metrics, *, measure: Callable[[Mapping[str, Any]], Metrics]) -> Metrics:
    """Returns the metrics of a step.

    Args:
      reduced: sums over the workers that count, and the reducer's report.
      own: the update's metrics.
      measure: ``Task.metrics``, a function of sums.

    Raises:
      ValueError: if the reducer reports a metric under a name of the step's own.
    """
    totals = reduced.totals
    metrics = {
        "gradient_norm": jnp.sqrt(totals["squared_norm"] / totals["workers"]),  # root mean square over workers
        **{name: totals[name] / totals["workers"] for name in ("loss_scale",) if name in totals},
        **measure(totals),
        **{name: value for name, value in own.items() if name != "squares"},
        **reduced.time,
    }
    if clash := sorted(metrics.keys() & reduced.metrics.keys()):
        raise ValueError(f"metrics: the reducer reports {', '.join(clash)}, which the step itself measures")
    return {**metrics, **reduced.metrics}
