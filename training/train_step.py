"""One worker's step: the state it is in, what it does by itself, and the reduction with the update."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree

import asynchronous
import optim
import reducers
from data.augment import as_inputs, unchanged
from data.feeds import fetch
from models import tasks
from parallel import AXES, Halves
from training import nonfinite


class Shared(NamedTuple):
    """Training state that is equal on all workers."""

    step: Any  # [] int32, server updates so far; ~step once the next was bad and is to stop the run
    key: Any  # [2] uint32, of dropout and augmentation
    params: Any
    opt_state: Any
    ema: Any  # like params, or None
    server: Any = None  # what an asynchronous server holds besides


class Local(NamedTuple):
    """Training state of each worker."""

    model_state: Any  # BatchNorm statistics
    opt_state: Any  # of what comes before the reducer: clipping, the loss scale, a worker's own optimizer
    reducer_state: Any
    snapshot: Any = None  # like params: those that an asynchronous worker has read


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
    loss_scaling: optim.loss_scaling.LossScaling,
    clip_norm: float | None = None,
) -> Chain:
    """Puts the reducer before the optimizer, or after it: its place in the chain is the algorithm.

    Clipping is of each worker's gradient, before the reduction, so that one worker's huge gradient cannot hurt all.
    """
    before, after = (optimizer, optax.identity()) if reducer_on == "updates" else (optax.identity(), optimizer)
    if clip_norm is not None:
        before = optax.chain(optax.clip_by_global_norm(clip_norm), before)
    before, *rest = map(optax.with_extra_args_support, (before, reducer, after))
    return Chain(loss_scaling.guard(before), *rest)


def make_train_step(
    *,
    chain: Chain,
    local_half: Callable,
    update: Callable,
    measure: Callable[[Mapping[str, Any]], dict[str, Any]],
    arrival_seconds: Callable[[Any], jax.Array],
    on_overflow: Literal["ignore", "skip"] = "ignore",
    on_nonfinite: nonfinite.OnNonfinite = "stop",
) -> Halves:
    """Returns one worker's step: what it does by itself, up to the reducer; then the reduction and the update.

    Who is late is simulated: all compute, and take part in the collectives. Where the reducer leaves a worker out, the
    worker is as if it had not begun the step: its BatchNorm statistics, its own optimizer's state and its loss scale
    stay as they were, and its loss and its gradient's norm are in no metric. So its NaN is nowhere.

    Args:
      chain: what is done with the gradient.
      local_half: of ``make_local_half``.
      update: of ``make_update``.
      measure: ``Task.metrics``, of sums over all workers that count.
      arrival_seconds: step -> [W], when each worker's gradient is there, for the reducer and the simulated clock.
      on_overflow: "skip" leaves parameters, the state of ``chain.after`` and the moving average as they were, on all
        workers, where the reduced updates are not all finite or no worker had any. The step counts all the same, and
        optimizers before the reducer keep what they have learnt, as those of Adasum's authors do.
      on_nonfinite: "skip" and "stop" leave all state as it was, on all workers, where the loss of those that count, or
        the norm of what they give, of what is reduced or of the update is not finite; of the loss alone, where an
        overflow is skipped. After "skip" the step counts, "stop" keeps the state from there on.
    """

    def reduce_half(shared: Shared, local: Local, work: optim.accumulation.Work, plan):
        del plan
        seconds = arrival_seconds(shared.step)  # (W,)
        updates, reducer_state = chain.reducer.update(
            work.updates, local.reducer_state, shared.params, arrival_seconds=seconds
        )
        work, time = _only_counted(work, local, reducers.waited(reducer_state), seconds)
        told = {name: jnp.asarray(value, jnp.float32) for name, value in reducers.metrics(reducer_state).items()}
        told = {name: value for name, value in told.items() if name not in time}
        seen = {} if on_nonfinite == "ignore" else nonfinite.own(work.layers, work.sums)
        flat, unflatten = ravel_pytree((work.sums, told, seen))
        totals, told, seen = unflatten(lax.psum(flat, AXES))  # one all-reduce for all metrics
        told = {name: total / reducers.num_workers(AXES) for name, total in told.items()}
        skipped = ~reducers.all_finite(updates) | reducers.overflowed(reducer_state) | (totals.get("contributed") == 0)
        updated, own = update(shared, updates)
        made = own.pop("squares")
        if on_overflow == "skip":
            updated = optax.tree.where(skipped, shared._replace(step=updated.step), updated)
            own["update_norm"] = jnp.where(skipped, 0, own["update_norm"])
            own["skipped"] = skipped.astype(jnp.float32)
        after = updated, Local(work.model_state, work.opt_state, reducer_state)
        if on_nonfinite == "ignore":
            return *after, _metrics(totals, told, **measure(totals), **own, **time)
        norms = (seen["given"], made) if on_overflow == "ignore" else ()
        is_bad = ~reducers.all_finite((totals["loss"], norms))
        if on_nonfinite == "skip":
            own["skipped"] = jnp.maximum(own.get("skipped", 0.0), is_bad.astype(jnp.float32))
        metrics = _metrics(totals, told, **measure(totals), **own, **time)
        shared, local = nonfinite.undo(is_bad, (shared, local), after, on_nonfinite=on_nonfinite)
        return shared, local, {**metrics, "evidence": nonfinite.Evidence(is_bad, **seen, made=made)}

    return Halves(local_half, reduce_half)


def make_local_half(
    *,
    task: tasks.Task,
    chain: Chain,
    accumulation: optim.accumulation.Accumulation,
    loss_scaling: optim.loss_scaling.LossScaling,
    augment: Callable = unchanged,
) -> Callable:
    """Returns what a worker does by itself: ``(shared, local, feed, resident) -> Work``.

    Args:
      task: gives the loss.
      chain: what is done with the gradient; here what comes before the reducer.
      accumulation: how a worker takes in its batch.
      loss_scaling: how it gets at a gradient; the one that guards the chain.
      augment: what is done to images.
    """

    def gradient(params, opt_state, model_state, part):
        batch, key = part
        loss = functools.partial(task.loss, batch=batch, key=key)
        return loss_scaling.gradient(loss, opt_state, params, model_state)

    def local_half(shared: Shared, local: Local, feed, resident) -> optim.accumulation.Work:
        params = view(shared, local)
        key = jax.random.fold_in(jax.random.wrap_key_data(shared.key), feed["batch_index"])
        augment_key, dropout_key = jax.random.split(key)
        batch = fetch(resident["train"], feed)
        batch = as_inputs(batch, resident["constants"], augment=augment, key=augment_key)
        parts = optim.accumulation.split(batch, key=dropout_key, count=accumulation.num_parts)

        def update(gradients, opt_state, params):
            return chain.before.update(gradients, optim.schedules.at_step(opt_state, shared.step), params)

        work = accumulation.work(gradient, update, params, local.opt_state, local.model_state, parts)
        measured = loss_scaling.measure(local.opt_state, work.opt_state)
        sums = {**work.sums, **measured, "workers": jnp.ones(())}
        return work._replace(sums=sums, layers=nonfinite.squares(work.updates))

    return local_half


def view(shared: Shared, local: Local) -> Any:
    """Returns the parameters at which a worker evaluates: the shared ones, or those that it has read."""
    return shared.params if local.snapshot is None else local.snapshot


def make_update(*, chain: Chain, learning_rate: optax.Schedule, ema_decay: float | None = None) -> Callable:
    """Returns one update of the shared state: ``(shared, reduced updates, rate) -> (shared, metrics)``.

    Args:
      chain: what is done with the gradient; here what comes after the reducer.
      learning_rate: of each step, for the records.
      ema_decay: of the moving average of the parameters.
    """

    def update(shared: Shared, updates, rate: asynchronous.Rate = None) -> tuple[Shared, dict[str, jax.Array]]:
        reduced_norm, reduced_squares = optax.tree.norm(updates), nonfinite.squares(updates)
        opt_state = optim.schedules.at_step(shared.opt_state, shared.step)
        updates, opt_state = asynchronous.update_at(chain.after, updates, opt_state, shared.params, rate=rate)
        params = optax.apply_updates(shared.params, updates)
        step, ema = shared.step + 1, shared.ema
        if ema_decay is not None:
            ema = optim.ema.update(ema, params, num_updates=step, decay=ema_decay)
        metrics = {
            "learning_rate": learning_rate(shared.step),
            "reduced_norm": reduced_norm,
            "update_norm": optax.tree.norm(updates),
            "squares": jnp.stack([reduced_squares, nonfinite.squares(updates)]),  # of each leaf; for no record
        }
        return shared._replace(step=step, params=params, opt_state=opt_state, ema=ema), metrics

    return update


def _only_counted(work: Any, local: Local, waited: reducers.Waited | None, seconds: jax.Array) -> tuple[Any, dict]:
    """Returns a worker's work as the step counts it, and the step's simulated duration and contributors."""
    if waited is None:  # all are waited for
        return work, {"step_seconds": jnp.max(seconds), "contributors": jnp.float32(len(seconds))}
    counts = waited.contributes > 0
    kept = work._replace(
        opt_state=optax.tree.where(counts, work.opt_state, local.opt_state),
        model_state=optax.tree.where(counts, work.model_state, local.model_state),
        sums=jax.tree.map(lambda x: jnp.where(counts, x, 0), work.sums),
    )
    return kept, {name: reducers.same_on_all(value, AXES) for name, value in waited.metrics.items()}


def _metrics(totals: dict[str, jax.Array], told: dict[str, jax.Array], **own: jax.Array) -> dict[str, jax.Array]:
    """What a step measured, of sums over the workers that count and of what is the same on all."""
    metrics = {
        "gradient_norm": jnp.sqrt(totals["squared_norm"] / totals["workers"]),  # root mean square over workers
        **{name: totals[name] / totals["workers"] for name in ("loss_scale",) if name in totals},
        **own,
    }
    if clash := sorted(metrics.keys() & told.keys()):
        raise ValueError(f"metrics: {', '.join(clash)} of the reducer would hide the step's own")
    return {**metrics, **told}
