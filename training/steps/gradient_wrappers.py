"""Wrappers of the gradient function: micro-batches, a worker's own optimizer, local steps, loss scaling.

A gradient function is one worker's own work, ``(state, worker, batch, key) -> (updates, worker, sums)``:

    state    the ``TrainState``; its parameters are read, nothing of it is changed
    worker   the ``WorkerState`` before; the one after is returned
    batch    this worker's examples, [B, ...] each
    key      the random key of dropout
    updates  a tree like the parameters: gradients, or the updates of a worker's own optimizer
    sums     "loss", "count" and further sums over the examples, by which metrics are computed

A batch is cut into equal parts, taken in order. Up to 8 parts are unrolled, because a scan around convolutions is slow
on CPU: LeNet-5 with 8 parts of 4 examples takes 0.86 s scanned and 0.14 s unrolled, on 2 busy cores. Unrolling costs
compile time (2.6 s for one part, 6.5 s for 8), and XLA on CPU keeps the gradients of all parts, so that micro-batches
save no memory there. More parts are scanned: 64 of BERT-Large would not be compiled in an hour.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import optax
from jax import numpy as jnp

import optim
from models.layers import batch_parts
from parallel import PART_AXIS, WHOLE, Partition
from reducers.adasum import Tree, fold, pair
from reducers.collectives import sum_workers
from reducers.dtypes import wide, wide_dtype
from reducers.dynamic_scale import DynamicScale, Scale, ScaleValue, all_finite
from reducers.gram.scales import nonzero
from reducers.mask import as_weight
from reducers.mesh import all_agree
from reducers.registry import Registry
from training.train_state import TrainState, WorkerState, gradient_params

Sums = dict[str, jax.Array]
# Weights of workers: equal, the "count" of their sums, or the examples of their shares. Micro-batches have equal ones,
# but for "count".
Weigh = Literal["workers", "count", "share"]
GradientFunction = Callable[[TrainState, WorkerState, Any, jax.Array], tuple[Any, WorkerState, Sums]]

MAX_UNROLLED = 8  # parts


# ---- a batch in parts --------------------------------------------------------------------------------------------


def micro_batches(
    gradient: GradientFunction,
    *,
    count: Annotated[int, "[1, inf)"] = 1,
    combine: Literal["mean", "sum", "adasum"] = "mean",
    weigh: Weigh = "workers",
) -> GradientFunction:
    r"""Combines the gradients of k parts of the batch, all at the same parameters.

    .. math:: g = C(\nabla \ell_1(\theta), \dots, \nabla \ell_k(\theta)), \qquad
        C = \frac{1}{k} \sum_j, \quad \sum_j, \quad \text{or Adasum, layer by layer}

    Clipping applies to g. Horovod's optimizer for PyTorch computes the sum: with ``backward_passes_per_step`` = k it
    adds the gradients up and then takes one step.

    Args:
      gradient: gradient function of a part.
      count: k, the number of micro-batches; it divides the batch.
      combine: C, how their gradients become one; "mean" is the gradient of the whole batch, unless BatchNorm, dropout,
        or the denominator of a loss (tokens of texts with padding) couples examples.
      weigh: "count" weighs each part of a mean by the number of terms in its loss, the "count" of its sums; the
        others weigh all parts the same.

    Reference: Maleki et al., arXiv 2006.02924; horovod/torch/optimizer.py.
    """
    if count == 1:
        return gradient

    combine_parts = _COMBINE["weighted" if weigh == "count" else combine]

    def combined(state, worker, batch, key):
        def one(model_state, part):
            found, changed, sums = gradient(state, worker._replace(model_state=model_state), *part)
            return changed.model_state, (found, sums)

        parts = split_batch(batch, key=key, count=count)
        model_state, (found, sums) = combine_parts(one, worker.model_state, parts)
        return found, worker._replace(model_state=model_state), sums

    return combined


def local_steps(
    gradient: GradientFunction, *, count: Annotated[int, "[1, inf)"], partition: Partition = WHOLE
) -> GradientFunction:
    r"""Takes a step of the worker's own optimizer on each of k parts; the sum of the updates goes to the reducer.

    .. math:: \Delta = \sum_j u_j, \qquad u_j = \mathrm{optimizer}(\nabla \ell_j(\theta + u_1 + \dots + u_{j-1}))

    Clipping applies to each part's gradient. This is local SGD with k steps, as Horovod's optimizer for TensorFlow does
    with ``backward_passes_per_step`` = k.

    All k steps use the learning rate of the server's step, so that warm-up and decay take the same number of server
    steps, and of examples, whatever k. Advancing the schedule k times as fast would end it after a k-th of the run.

    Args:
      gradient: gradient function whose updates are those of the worker's own optimizer.
      count: k, the number of local steps; it divides the batch, whose size stays that of one step and worker.
      partition: whether updates are in parts, which are gathered before each step.

    Reference: Maleki et al., arXiv 2006.02924 (64K examples before communication); horovod/tensorflow/__init__.py.
    """
    if count == 1:
        return gradient

    def stepped(state, worker, batch, key):
        def one(carry, part):
            params, worker = carry
            updates, worker, sums = gradient(state._replace(snapshot=params), worker, *part)
            return (optax.apply_updates(params, partition.like_params(updates, params)), worker), (updates, sums)

        # The updates themselves are summed: a difference of parameters would lose their low bits.
        parts = split_batch(batch, key=key, count=count)
        (_, worker), (delta, sums) = _sum(one, (gradient_params(state, partition), worker), parts)
        return delta, worker, {**sums, "squared_norm": sums["squared_norm"] / count}

    return stepped


# The names of a config's ``accumulation`` block; the wrappers' options are its keys. A constructor outside of it would
# have no place in the step.
ACCUMULATIONS = Registry(
    {"local_steps": local_steps, "micro_batches": micro_batches},
    given={"gradient", "weigh", "partition"},
    others="refused",
)


def split_batch(batch: Any, *, key: jax.Array, count: int) -> list[tuple[Any, jax.Array]]:
    """Cuts a batch, [B, ...] each, into ``count`` parts in order, with a key each.

    >>> [part["x"].tolist() for part, _ in split_batch({"x": jnp.arange(4)}, key=jax.random.key(0), count=2)]
    [[0, 1], [2, 3]]
    """
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    keys = jax.random.split(key, count)
    return [(jax.tree.map(operator.itemgetter(j), parts), keys[j]) for j in range(count)]


def _sum(one: Callable, carry: Any, parts: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the carry after the last part, and the sum of the values of ``one(carry, part) -> (carry, values)``."""

    def add(state, part):
        carry, total = state
        carry, values = one(carry, part)
        return (carry, optax.tree.add(total, values)), None

    one = jax.jit(one)  # traced for the first part alone
    state = one(carry, parts[0])
    if len(parts) > MAX_UNROLLED:
        return jax.lax.scan(add, state, jax.tree.map(lambda *x: jnp.stack(x), *parts[1:]))[0]
    for part in parts[1:]:
        state, _ = add(state, part)
    return state


def _mean(one, carry, parts):
    carry, (gradients, sums) = _sum(one, carry, parts)
    return carry, (jax.tree.map(lambda g: g / len(parts), gradients), sums)


def _weighted_mean(one, carry, parts):
    """Sums in at least float32, since a gradient times the number of tokens soon leaves the range of float16."""

    def weighted(carry, part):
        carry, (gradients, sums) = one(carry, part)
        return carry, (
            jax.tree.map(lambda g: wide(g) * as_weight(sums["count"]).astype(wide_dtype(g)), gradients),
            sums,
        )

    _, (like, _) = jax.eval_shape(one, carry, parts[0])
    carry, (gradients, sums) = _sum(weighted, carry, parts)
    total = nonzero(sums["count"])  # a batch in which nothing counts has zero gradients
    return carry, (jax.tree.map(lambda g, x: (g / total.astype(g.dtype)).astype(x.dtype), gradients, like), sums)


def _adasum(one, carry, parts):
    """Keeps the gradients of all parts, which the tree needs; always unrolled."""
    values = []
    for part in parts:
        carry, value = one(carry, part)
        values.append(value)
    gradients, sums = zip(*values, strict=True)
    combined = jax.tree.map(lambda *g: fold(pair, jnp.stack(g), Tree(len(g))), *gradients)
    return carry, (combined, functools.reduce(optax.tree.add, sums))


# name -> (one, carry, parts) -> (carry, (combined gradients, added sums))
_COMBINE = {
    "adasum": _adasum,
    "mean": _mean,
    "sum": _sum,
    "weighted": _weighted_mean,
}


# ---- a batch on several devices ------------------------------------------------------------------------------------


def over_parts(gradient: GradientFunction, *, count: int, partition: Partition = WHOLE) -> GradientFunction:
    r"""Averages the gradients of the devices of a node, each of which takes a part of the batch.

    .. math:: g = \frac{1}{K} \sum_k \nabla \ell_k(\theta), \qquad
        \ell(\theta) = \frac{1}{K} \sum_k \ell_k(\theta)

    The result is that of the whole batch on one device, up to the rounding of sums: dropout, masks of tokens, the
    statistics of BatchNorm and counts of tokens are those of the whole batch (``models.layers.batch_parts``). So is
    flax's Dropout in a model of one's own; its BatchNorm needs ``axis_name=batch_parts.axis_name()``, else it
    normalises each part by itself, and other random numbers are the same for each part.

    Args:
      gradient: gradient function of a part, whose loss is a mean over its examples.
      count: K; it divides the batch. With 1 it is the function itself.
      partition: whether each device gets the whole mean, or its part of each leaf.
    """
    if count == 1:
        return gradient

    def averaged(state, worker, batch, key, **options):
        with batch_parts.cut(PART_AXIS, count):
            own = jax.tree.map(batch_parts.own, batch)
            found, changed, sums = gradient(state, worker, own, key, **options)
        made = found, changed.model_state
        gradients, model_state = jax.tree.map(wide, made)
        if partition.what == "none":
            totals, sums = sum_workers(((gradients, model_state), sums), PART_AXIS)
        else:
            model_state, sums = sum_workers((model_state, sums), PART_AXIS)
            # That of parameters in parts was summed on its way back through ``Partition.whole``.
            totals = gradients if partition.what == "parameters" else partition.scatter_sum(gradients), model_state
        # Whole numbers of a model's state, such as counters, are the same on all devices.
        found, model_state = jax.tree.map(
            lambda total, x: (total / count).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x,
            totals,
            made,
        )
        return found, changed._replace(model_state=model_state), sums

    return averaged


# ---- the worker's own optimizer ----------------------------------------------------------------------------------


def through_worker_optimizer(
    gradient: GradientFunction, optimizer: optax.GradientTransformationExtraArgs, *, partition: Partition = WHOLE
) -> GradientFunction:
    """Passes the gradient through the transformations that stand before the reducer: clipping, a worker's optimizer.

    Adds "squared_norm" to the sums: that of the computed gradient, before any clipping.
    """

    def update(state, worker, batch, key):
        gradients, worker, sums = gradient(state, worker, batch, key)
        opt_state = optim.schedules.at_step(worker.opt_state, state.step)
        params = partition.own(gradient_params(state, partition))
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (
            updates,
            worker._replace(opt_state=opt_state),
            {**sums, "squared_norm": optim.norms.squares(gradients).sum()},
        )

    return update


# ---- loss scaling ------------------------------------------------------------------------------------------------


def scale_loss(
    value_and_grad: Callable[..., tuple[Any, WorkerState, Sums]], *, partition: Partition = WHOLE
) -> GradientFunction:
    r"""Differentiates s times the loss and divides by s, so that gradients in float16 do not vanish.

    .. math:: g = \frac{1}{s} \nabla (s \ell)

    The scale s is each worker's own: it is in the state of ``skip_worker_overflow``, which adapts it.
    """

    def gradient(state, worker, batch, key):
        scale = worker.opt_state.scale.value
        gradients, changed, sums = value_and_grad(state, worker, batch, key, loss_scale=scale)
        unscaled = lambda g: wide(g) / scale.astype(wide_dtype(g))  # noqa: E731 - float16 has no scale above 65504
        gradients = jax.tree.map(lambda g: unscaled(g).astype(g.dtype), gradients)
        # An overflow may also reach BatchNorm's statistics, and would stay there.
        is_finite = all_agree(all_finite(gradients), partition.axes)
        kept = optax.tree.where(is_finite, changed.model_state, worker.model_state)
        return gradients, worker._replace(model_state=kept), sums

    return gradient


def record_loss_scale(gradient: GradientFunction) -> GradientFunction:
    """Adds to the sums the worker's "loss_scale" after the step, and whether it "contributed" a finite gradient."""

    def recorded(state, worker, batch, key):
        updates, after, sums = gradient(state, worker, batch, key)
        contributed = after.opt_state.num_applied > worker.opt_state.num_applied
        measured = {"loss_scale": after.opt_state.scale.value, "contributed": contributed.astype(jnp.float32)}
        return updates, after, {**sums, **measured}

    return recorded


class LossScaleState(NamedTuple):
    """State of ``skip_worker_overflow``.

    Attributes:
      scale: the loss scale.
      num_applied: [] int32, updates that were not skipped.
      inner: state of the wrapped optimizer.
    """

    scale: Scale
    num_applied: jax.Array
    inner: Any


def skip_worker_overflow(
    optimizer: optax.GradientTransformationExtraArgs, scale: DynamicScale, *, partition: Partition = WHOLE
) -> optax.GradientTransformationExtraArgs:
    """Wraps a worker's own optimizer: a gradient that is not finite becomes a zero update and shrinks the loss scale.

    The optimizer's state then stays as it was. ``optax.apply_if_finite`` gives up after so many errors in a row and
    then accepts the NaN; here the scale shrinks instead.
    """

    def init_fn(params):
        return LossScaleState(scale.init(), jnp.zeros((), jnp.int32), optimizer.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        is_finite = all_agree(all_finite(updates), partition.axes)
        updates, inner = optimizer.update(updates, state.inner, params, **extra_args)
        updates = optax.tree.where(is_finite, updates, optax.tree.zeros_like(updates))
        inner = optax.tree.where(is_finite, inner, state.inner)
        num_applied = state.num_applied + is_finite.astype(jnp.int32)
        return updates, LossScaleState(scale.update(state.scale, is_finite), num_applied, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def no_loss_scaling() -> None:
    """Leaves the loss as it is: for float32 and bfloat16, whose range suffices."""


def dynamic_loss_scaling(
    *,
    initial_scale: ScaleValue = 2.0**15,
    growth_interval: Annotated[int, "[1, inf)"] = 2000,
    growth_factor: Annotated[float, "(1, inf)"] = 2.0,
    backoff_factor: Annotated[float, "(0, 1)"] = 0.5,
) -> DynamicScale:
    """Scales the loss by a factor that each worker adapts on its own, by the rule of ``DynamicScale``.

    A gradient that is not finite becomes a zero update, leaves the worker's own optimizer and model state as they were,
    and shrinks the scale. The worker still counts: Adasum's authors contribute a zero as well. To Adasum and ``sum`` a
    zero is neutral; ``mean`` still divides by all n, so that losing workers never makes a step larger. If no worker's
    gradient was finite, all workers skip the step.

    Args:
      initial_scale: the first scale; Adasum's authors begin at 2^20, which costs a few steps more until it fits.
      growth_interval: finite gradients in a row before the scale grows.
      growth_factor: the factor by which it grows.
      backoff_factor: the factor that an overflow multiplies it by.

    Reference: Maleki et al., arXiv 2006.02924, and the BERT code of its authors (Apex O2, one scaler per process).
    """
    return DynamicScale(initial_scale, growth_interval, growth_factor, backoff_factor)


# The names of a config's ``loss_scaling`` block.
LOSS_SCALINGS = Registry({"dynamic": dynamic_loss_scaling, "none": no_loss_scaling})
