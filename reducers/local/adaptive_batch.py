"""Batches that grow: gradients are accumulated over more and more steps before they make an update."""

from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.clock import first_of_round, of_round, own_seconds
from reducers.collectives import AxisName, agreed, as_own, axes_of, gather_workers, num_workers
from reducers.dtypes import as_real, common_dtype
from reducers.dynamic_scale import all_finite
from reducers.local.batch_rules import RULES, BatchRule, Noise, stays
from reducers.local.rounds import check_overflow_is_known
from reducers.mesh import ShardedOver, all_agree, axes_that_cut, cuts_of, needs_whole_leaves, sum_of_parts
from reducers.options import Count, check_options
from reducers.reducer import Combine, Reducer
from reducers.registry import Block
from reducers.report import Report, report
from reducers.state import zeros_like
from reducers.sums.mean import combiner_of, mean


class AdaptiveBatchState(NamedTuple):
    """State of ``adaptive_batch``; all but the first three fields are the same on all workers.

    Attributes:
      combine: state of the reducer that combines the workers' gradients.
      total: like params, the sum of this worker's gradients since the last update.
      seconds: [] float32, this worker's clock; where workers may be left out, since the batch began.
      held: [] int32, steps since the last update.
      batch_steps: [] int32, k, the steps of a batch.
      num_updates: [] int32, so far.
      rule: state of the rule.
      report: whether anything was emitted; workers have no drift. "batch_steps", of the batch of this step; "updates",
        so far; "communications", 1 in a step with an update, else 0; and the time, as in ``local_sgd``.
    """

    combine: Any
    total: Any
    seconds: jax.Array
    held: jax.Array
    batch_steps: jax.Array
    num_updates: jax.Array
    rule: Any
    report: Report


def adaptive_batch(
    axis_name: AxisName,
    *,
    rule: Block | BatchRule = "inner_product_test",
    max_steps: Count = 1024,
    combine: Combine = None,
    sharded_over: ShardedOver = None,
) -> Reducer:
    r"""Accumulates gradients over k steps for each update; k grows by a rule, as gradients get noisy.

    .. math:: g_w = \frac{1}{k} \sum_{j=1}^{k} g_{w,j}, \qquad u = R(g_1, \dots, g_n), \qquad
        k \leftarrow \min(\max(k, \lceil \mathrm{rule}(g_1, \dots, g_n) \rceil), \mathrm{max\_steps})

    A step remains one batch of each worker, so that epochs, the order of examples and evaluations do not change, and no
    program is compiled anew as k grows. In a step without an update the result is zero. The rules estimate the noise by
    the spread of the workers' gradients, with one small all-reduce in a step with an update.

    Args:
      axis_name: the worker axis or axes.
      rule: the name of one of ``RULES`` in ``reducers/local/batch_rules.py`` with its options, such as
        {"name": "norm_test", "theta": 0.5}: ``fixed``, ``geometric``, ``norm_test``, ``inner_product_test`` or
        ``two_scale``.
      max_steps: the largest k.
      combine: R, a reducer; None is ``mean``. With another one the mean that rules need is computed beside it. If it
        needs ``arrival_seconds``, these are summed over the batch. A batch whose reduction ``overflowed`` goes on for
        another step. Configs give its name, or a block.
      sharded_over: see ``from_gram``; for rules that need the noise.

    Returns:
      A reducer of gradients; ``combine`` itself for the rule ``fixed`` of one step. Its state has a sum of gradients of
      each worker: map it over the worker axis.

    Raises:
      ValueError: for an unknown rule or invalid options of it, a ``max_steps`` below the steps of its first batch, or a
        ``combine`` that does not emit every update itself, or that both delays updates and may overflow; when traced,
        if a rule needs the noise and there is one worker.

    >>> reducer = adaptive_batch("worker", rule={"name": "fixed", "every_steps": 2})
    >>> states = jax.vmap(reducer.init)(jnp.zeros(2))
    >>> reduce = jax.vmap(lambda gradient, state: reducer.update(gradient, state), axis_name="worker")
    >>> for gradients in ([1.0, 3.0], [2.0, 6.0]):
    ...   result, states = reduce(jnp.array(gradients), states)
    ...   print(result)
    [0. 0.]
    [3. 3.]

    Reference: those of the rules. Differs from the papers in: a batch is a whole number of steps of all workers.
    """
    check_options(adaptive_batch, max_steps=max_steps)
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)
    batch_rule = rule if isinstance(rule, BatchRule) else RULES.build(rule, where="rule")
    if max_steps < batch_rule.first_steps:
        raise ValueError(
            f"max_steps={max_steps}: must be at least {batch_rule.first_steps}, with which the rule begins"
        )
    if stays(batch_rule) and batch_rule.first_steps == 1:
        return combiner.like(*combiner, reduces="gradients")
    check_overflow_is_known(combiner)
    must_be_whole = needs_whole_leaves(sharded_over) and batch_rule.needs_noise
    of_mean = None if combiner.is_mean else mean(axes)

    def init_fn(params):
        zero = jnp.zeros((), jnp.float32)
        count = jnp.zeros((), jnp.int32)
        inner = as_own(combiner.init(params), axes)
        own = dict.fromkeys(("batch_steps", "updates", "communications"), zero)
        own |= first_of_round(leaves_out=combiner.needs_arrivals)
        return AdaptiveBatchState(
            combine=inner,
            total=as_own(jax.tree.map(lambda p: jnp.zeros_like(p, dtype=_dtype_of_sum(p)), params), axes),
            seconds=as_own(zero, axes),
            held=count,
            batch_steps=jnp.int32(batch_rule.first_steps),
            num_updates=count,
            rule=batch_rule.init(),
            report=report(inner)._replace(emitted=jnp.array(False)).with_metrics(own),
        )

    def update_fn(updates, state, params=None, *, arrival_seconds=None, overflowed=None, **extra_args):
        del overflowed  # of one step, not of a batch
        if batch_rule.needs_noise and num_workers(axes) == 1:
            raise ValueError("rule: num_workers=1 cannot estimate the noise; take fixed or geometric")
        held, steps, count, of_rule = jax.tree.map(
            lambda x: agreed(x, axes), (state.held + 1, state.batch_steps, state.num_updates, state.rule)
        )
        emits = held >= steps
        seconds = state.seconds + own_seconds(arrival_seconds, axes)
        total = jax.tree.map(lambda t, g: t + g.astype(t.dtype), state.total, updates)

        def emit(inner):
            needs = {"arrival_seconds": gather_workers(seconds, axes)} if combiner.needs_arrivals else {}
            gradients = jax.tree.map(lambda t, g: (t / held.astype(t.dtype)).astype(g.dtype), total, updates)
            reduced, inner = combiner.update(gradients, inner, params, **needs, **extra_args)
            noise = None
            if batch_rule.needs_noise:
                counted = report(inner).counted
                average = of_mean.update(gradients, (), contributes=counted)[0] if of_mean else reduced
                noise = noise_of(gradients, average, counted=counted, axes=axes, sharded_over=sharded_over)
            after, wanted = batch_rule.update(of_rule, noise, steps.astype(jnp.float32), count + 1)
            wanted = jnp.where(jnp.isfinite(wanted), jnp.minimum(wanted, max_steps), steps.astype(wanted.dtype))
            larger = jnp.maximum(steps, jnp.ceil(wanted - 1e-4).astype(jnp.int32))  # 3.0000002 is 3
            # A gradient that overflowed has not arrived. It goes with that of the next step, unless a worker's own is
            # not finite, since that one never would arrive; the rule learns nothing from it.
            lost = report(inner).overflowed
            arrived = is_over = jnp.array(True) if lost is None else agreed(~lost, axes)
            if combiner.may_overflow:
                is_over |= ~all_agree(all_finite(gradients), (*axes, *axes_that_cut(sharded_over)))
            learnt = optax.tree.where(arrived, (larger, after), (steps, of_rule))
            return reduced, as_own(inner, axes), learnt, (arrived, is_over)

        def go_on(inner):
            return (
                zeros_like(updates, axes),
                as_own(inner, axes),
                (steps, of_rule),
                (jnp.array(False), jnp.array(False)),
            )

        reduced, inner, (larger, of_rule), (arrived, is_over) = lax.cond(emits, emit, go_on, state.combine)
        total = lax.cond(is_over, lambda t: jax.tree.map(jnp.zeros_like, t), lambda t: t, as_own(total, axes))
        time, seconds = of_round(
            seconds,
            is_sync_step=emits,
            round_steps=held,
            leaves_out=combiner.needs_arrivals,
            given=arrival_seconds is not None,
            axes=axes,
        )
        count = count + arrived.astype(jnp.int32)
        own = {
            "batch_steps": steps.astype(jnp.float32),
            "updates": count.astype(jnp.float32),
            "communications": emits.astype(jnp.float32),
            **time,
        }
        held = jnp.where(is_over, 0, held)
        inside = report(inner).if_called(emits, num_workers=num_workers(axes))
        own_report = inside._replace(emitted=emits).with_metrics(own)
        return reduced, AdaptiveBatchState(inner, total, seconds, held, larger, count, of_rule, own_report)

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=False,
        homogeneous=False,  # a sum has the scales of all its steps
        reduces="gradients",
        local_workers="between_rounds",
        delays=False,
        numbers="inexact",
        needs_whole_leaves=must_be_whole or combiner.needs_whole_leaves,
    )


def noise_of(
    gradients: Any,
    average: Any,
    *,
    counted: jax.Array | None,
    axes: tuple[str, ...],
    sharded_over: ShardedOver = None,
) -> Noise:
    """Estimates the noise of the workers' gradients, with one all-reduce of three numbers.

    Args:
      gradients: this worker's.
      average: their mean over the workers that are counted.
      counted: [] bool, whether this worker is; None counts all.
      axes: the worker axes, outer first.
      sharded_over: the axes over which leaves are cut; sums over the parts come first.
    """
    cuts = cuts_of(gradients, sharded_over, axis_name=axes)
    gradients, average = (jax.tree.map(as_real, tree) for tree in (gradients, average))
    centred = jax.tree.map(lambda g, m: (g - m).astype(jnp.float32), gradients, average)
    average = optax.tree.cast(average, jnp.float32)

    def product(tree, other):
        of_leaves = jax.tree.leaves(jax.tree.map(jnp.vdot, tree, other))
        return sum_of_parts(of_leaves, cuts, axes_that_cut(sharded_over))

    squared = product(centred, centred)
    along = product(centred, average)
    own = jnp.stack([squared, along**2, jnp.ones((), jnp.float32)])
    own = own if counted is None else jnp.where(counted, own, 0)
    variance, along, count = lax.psum(own, axes)
    degrees = jnp.maximum(count - 1, 1)
    return Noise(product(average, average), variance / degrees, along / degrees, count)


def _dtype_of_sum(x: Any) -> Any:
    """Returns the dtype in which many gradients are summed: in half precision a sum stops growing."""
    dtype = jnp.result_type(x)
    return common_dtype(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else dtype
