"""Local SGD and its relatives: workers take several steps of their own before their progress is combined."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import optax
from jax import lax
from jax import numpy as jnp

from reducers.arrivals.clock import first_of_round, own_seconds
from reducers.collectives import AxisName, agreed, as_own, axes_of, gather_workers, num_workers
from reducers.leaves import joined
from reducers.local.fragments import Fragments
from reducers.local.rounds import Turn, check_overflow_is_known, time_of, turns_of
from reducers.mask import as_weight, has_weight
from reducers.options import Count, Fraction, Natural, check_options, check_static
from reducers.reducer import Combine, Reducer
from reducers.report import TIME, Mix, Report, drift_from, join_known, report
from reducers.state import moved, zeros_like
from reducers.sums.mean import combiner_of


class LocalSgdState(NamedTuple):
    """State of ``local_sgd``; with one fragment, fields marked [P] have no such axis.

    Attributes:
      combine: state of the reducer that combines the workers' progress; with several fragments one of each, in a tuple.
      num_updates: [] int32, so far.
      launched: like params, the progress that is under way; None without a delay. Where d = H, ``report.mix`` says
        what it holds, as for the drift.
      seconds: [] float32, this worker's clock; where workers may be left out, since they last met.
      launched_at: [P] float32, when the last worker launched the progress that is under way.
      report: this worker's drift, and which fragments were emitted, [P] bool; "communications", 1 in an update that
        combined the workers' progress, else 0, with fragments the share of the model's numbers that it combined;
        "step_seconds", by how much the latest worker's clock advanced, or, where workers may be left out,
        "steps_decided": for how many steps it is now known which workers are left out.
      weight: [P], float64 where JAX has it, the summed weights of the steps in this worker's progress; None
        where ``combine`` takes none.
      launched_weight: the same of the progress that is under way; None without a delay, too.
    """

    combine: Any
    num_updates: jax.Array
    launched: Any
    seconds: jax.Array
    launched_at: jax.Array
    report: Report
    weight: Any
    launched_weight: Any


def local_sgd(
    axis_name: AxisName,
    *,
    every_steps: Count | tuple[Count, ...],
    delay_steps: Natural = 0,
    from_step: Natural = 0,
    fragments: Count = 1,
    mix: Fraction | None = None,
    combine: Combine = None,
) -> Reducer:
    r"""Lets workers take H steps of their own optimizers before their progress is combined, perhaps d steps late.

    .. math::
        u_i &\leftarrow u_i + d_i \\
        s_i &\leftarrow u_i & t &\equiv 0 \pmod H \\
        z &\leftarrow z + R(s_1, \dots, s_n), \quad u_i \leftarrow u_i - s_i & t &\equiv d \pmod H

    with the shared parameters z, a worker's own parameters :math:`z + u_i`, its optimizer's update :math:`d_i` at
    these, and any reducer R. d = 0 is local SGD; with ``from_step`` it is post-local SGD; d = H is CoCoD-SGD, which
    applies the progress that arrives before it launches the next; 0 < d < H is DaSGD. Progress that is made meanwhile
    is kept. Progress is averaged, never parameters, whose low bits an average would lose.

    With ``fragments`` it is Streaming DiLoCo. The leaves of the model are in P groups of about the same size, and group
    p has rounds of its own, which begin :math:`\lfloor p H / P \rfloor` steps later, so that an update sends a P-th of
    the model. With ``mix`` a worker that gets new shared parameters z', perhaps through an outer optimizer, goes on
    from a mixture of its own parameters and these:

    .. math:: a (z + u_i) + (1 - a) z', \qquad \text{so that} \quad u_i \leftarrow a (z + u_i - z')

    The reducer stands after the optimizer: ``optax.chain(optimizer, local_sgd(...))``. Its result is zero in an update
    without a sync step. A worker evaluates its gradient at ``reducers.own_params(params, state)``.

    Args:
      axis_name: the worker axis or axes.
      every_steps: H, the steps from one communication to the next; or a number H_i for each worker, in the order of the
        worker axes. A round then has max H_i updates, of which worker i takes the first H_i. In the others it keeps its
        parameters, the report does not count it, and its clock stands still; devices compute these updates all the
        same, and drop them. In a program of one's own keep the state of its optimizer, too, where it is not counted.
        The mean of the progress counts all workers alike, whatever their H_i. Equal numbers are the program of one.
      delay_steps: d, after how many steps the result of a communication arrives; at most H.
      from_step: the number of steps at the beginning that all communicate, without delay.
      fragments: P, the number of parts of the model that communicate in turns; at most H. ``optim.outer.by_fragment``
        gives each an outer optimizer of its own.
      mix: a, the weight of a worker's own parameters where a result arrives; None keeps the progress that was made
        during the delay, and 0 drops it, which needs d < H. With a > 0 ``update`` needs the shared parameters.
      combine: R, a reducer; None is ``mean``. If it needs ``arrival_seconds``, these are summed over the steps since
        the workers met, and a worker that is left out goes on where all others do. Progress whose reduction
        ``overflowed`` is combined in the next round; so is that of other fragments in the same update. Configs give its
        name, or a block.

    Returns:
      A reducer; ``combine`` itself for H = 1, d = 0 and no mixture. Its state holds one copy of the parameters, with a
      delay two; they are each worker's own: map them over the worker axis. Given ``arrival_seconds`` [n], it keeps each
      worker's clock: a round takes as long as the largest sum of a worker's seconds, and with a delay a worker waits
      for nobody unless progress was launched more than d of its own steps ago. Given ``weights``, each worker's
      progress weighs as much as its own steps do together. The round's result is NaN if a weight is invalid, if a sum
      of weights overflows, and if a weight is subnormal on a backend that takes those for 0, such as a CPU.

    Raises:
      ValueError: for d or P above H, d = H with a = 0, fewer leaves than fragments, a delay with a reducer that leaves
        workers out, or a ``combine`` that does not emit every update itself, or that both delays updates and may
        overflow. For a number of steps for each worker: if there is not one for each, or with a delay, fragments,
        ``from_step`` or a ``combine`` that leaves workers out.

    >>> reducer = local_sgd("worker", every_steps=2)
    >>> states = jax.vmap(reducer.init)(jnp.zeros(2))
    >>> reduce = jax.vmap(lambda update, state: reducer.update(update, state), axis_name="worker")
    >>> for updates in ([1.0, 3.0], [1.0, 3.0]):
    ...   result, states = reduce(jnp.array(updates), states)
    ...   print(result, states.report.drift)
    [0. 0.] [1. 3.]
    [4. 4.] [0. 0.]

    >>> reducer = local_sgd("worker", every_steps=(1, 2))  # the second update of a round is the second worker's alone
    >>> states = jax.vmap(reducer.init)(jnp.zeros(2))
    >>> for updates in ([1.0, 3.0], [1.0, 3.0]):
    ...   result, states = reduce(jnp.array(updates), states)
    >>> print(result, states.report.counted)
    [3.5 3.5] [False  True]

    Reference: local SGD and post-local SGD: Lin, Stich, Patel, Jaggi, arXiv 1808.07217 (READ: the authors' code).
    CoCoD-SGD: Shen et al., arXiv 1906.12043 (READ: code of Wang, Tantia, Ballas, Rabbat, which has it). DaSGD: Zhou et
    al., arXiv 2006.00441 (abstract). Streaming DiLoCo: Douillard et al., arXiv 2501.18512 (READ: code of torchft, where
    a is 0, and of MaxText). Differs from the papers in: that DaSGD keeps the progress made meanwhile is DERIVED from
    its abstract and the code of CoCoD-SGD; a fragment of Streaming DiLoCo is of whole layers, every P-th of them.
    """
    given: dict[str, Any] = {
        "every_steps": every_steps,
        "delay_steps": delay_steps,
        "from_step": from_step,
        "fragments": fragments,
        "mix": mix,
    }
    check_options(local_sgd, **given)
    check_static(**given)
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)
    of_each: tuple[int, ...] | None = None
    if not isinstance(every_steps, tuple | list):
        every = every_steps
    elif every_steps:
        every, of_each = max(every_steps), tuple(every_steps)
    else:
        raise ValueError("every_steps=(): must have a number for each worker")
    own_steps = of_each if of_each and len(set(of_each)) > 1 else None
    if own_steps is not None:
        _check_apart(own_steps, combiner, delay_steps=delay_steps, from_step=from_step, fragments=fragments)
    for name, steps in (("delay_steps", delay_steps), ("fragments", fragments)):
        if steps > every:
            raise ValueError(f"{name}={steps}: exceeds every_steps={every}")
    if mix == 0 and delay_steps == every:
        raise ValueError(
            f"delay_steps={delay_steps}: must be below every_steps={every} with mix={mix:g}, which would drop "
            "the progress of each round as it is launched"
        )
    if delay_steps and combiner.needs_arrivals:
        raise ValueError(f"delay_steps={delay_steps}: must be 0 where combine leaves workers out")
    if every == 1 and of_each is None and delay_steps == 0 and not mix:
        return combiner.like(*combiner, reduces="updates", takes_weights=combiner.takes_weights)
    check_overflow_is_known(combiner)
    layout = Fragments(fragments)

    def init_fn(params):
        zero = jnp.zeros((), jnp.float32)
        zeros = layout.stack([zero] * fragments)
        inner = [as_own(combiner.init(part), axes) for part in layout.split(params)]
        drift = as_own(zeros_like(params, axes), axes)
        first = report(inner[0])._replace(emitted=zeros > 0, drift=drift)
        if mix:
            waits = jax.tree.map(lambda _: as_own(jnp.array(False), axes), drift)
            first = first._replace(mix=Mix(jnp.float32(mix), waits))
        weight = as_own(jnp.zeros_like(zeros, jnp.result_type(float)), axes) if combiner.takes_weights else None
        time = first_of_round(leaves_out=combiner.needs_arrivals)
        if own_steps is not None:
            first = first._replace(counted=as_own(jnp.array(True), axes))
            time["contributors"] = zero
        return LocalSgdState(
            combine=layout.stack(inner, of_arrays=False),
            num_updates=jnp.zeros((), jnp.int32),
            launched=as_own(zeros_like(params, axes), axes) if delay_steps else None,
            seconds=as_own(zero, axes),
            launched_at=zeros,
            report=first.with_metrics({"communications": zero, **time}),
            weight=weight,
            launched_weight=weight if delay_steps else None,
        )

    def update_fn(updates, state, params=None, *, arrival_seconds=None, overflowed=None, weights=None, **extra_args):
        del overflowed  # of one step, not of a round
        if mix and params is None:
            raise TypeError(f"params: missing; with mix={mix} update needs the shared parameters")
        if of_each is not None and len(of_each) != (count := num_workers(axes)):
            raise ValueError(f"every_steps={of_each}: must have a number for each of num_workers={count}")
        step = agreed(state.num_updates, axes) + 1
        turns = turns_of(step, fragments=fragments, every=every, delay=delay_steps, from_step=from_step)
        before = drift_from(params, state.report)
        seconds = state.seconds + own_seconds(arrival_seconds, axes)
        drift = moved(before, updates)
        weight = state.weight if weights is None else _with_weight(state.weight, weights)
        if own_steps is not None:
            works = (step - 1) % every < jnp.array(own_steps)  # [W]
            own_work = works[lax.axis_index(axes)]
            kept = before, state.seconds, state.weight
            drift, seconds, weight = optax.tree.where(own_work, (drift, seconds, weight), kept)
        needs = {"arrival_seconds": gather_workers(seconds, axes)} if combiner.needs_arrivals else {}

        def combine_one(turn: Turn, params: Any, own: _Progress, launched: _Progress, inner: Any) -> tuple[Any, ...]:
            """Returns the progress that is sent, the part that is emitted, the state, and whether it has arrived."""
            sent = launched if delay_steps else own
            if delay_steps and from_step:
                sent = lax.cond(turn.at_once, lambda: own, lambda: launched)

            def communicate(inner):
                weighs = {} if weights is None else {"weights": sent.weight}
                reduced, inner = combiner.update(sent.drift, inner, params, **needs, **weighs, **extra_args)
                # Progress that overflowed has not arrived: it goes with that of the next round.
                lost = report(inner).overflowed
                return reduced, as_own(inner, axes), jnp.array(True) if lost is None else agreed(~lost, axes)

            def go_on(inner):
                return zeros_like(own.drift, axes), as_own(inner, axes), jnp.array(False)

            return sent, *lax.cond(turn.syncs, communicate, go_on, inner)

        def go_on_from(
            turn: Turn, params: Any, own: _Progress, launched: _Progress, sent: _Progress, arrived: jax.Array
        ) -> tuple[_Progress, _Progress]:
            def rest(own):
                if mix is None and delay_steps:
                    return jax.tree.map(jnp.subtract, own, sent)
                if not mix:
                    return jax.tree.map(jnp.zeros_like, own)
                before = jax.tree.map(lambda u, p: (p + u).astype(u.dtype), own.drift, params)
                return _Progress(before, None if own.weight is None else mix * (own.weight - sent.weight))

            # Since this depends on a result, XLA knows that the progress sent is not read again, and reuses its memory.
            own = lax.cond(arrived, rest, lambda own: own, as_own(own, axes))
            if delay_steps:
                launched = lax.cond(turn.launches, lambda now, _: now, lambda _, before: before, own, launched)
            return own, launched

        split = layout.split
        unstack = layout.unstack
        launched = state.launched
        if delay_steps == every:  # the progress was launched as a mixture began, and waits like it
            launched = drift_from(params, state.report._replace(drift=launched))
        launched = as_own(launched, axes)
        parts = list(
            zip(
                turns,
                split(params),
                map(_Progress, split(drift), unstack(weight)),
                map(_Progress, split(launched), unstack(state.launched_weight)),
                strict=True,
            )
        )
        inner_before = unstack(state.combine, of_arrays=False)
        made = [combine_one(*part, inner) for part, inner in zip(parts, inner_before, strict=True)]
        sent, reduced, inner, arrived = map(list, zip(*made, strict=True))
        if fragments > 1 and combiner.may_overflow:  # the report says that all of the update overflowed, or none
            is_whole = functools.reduce(jnp.logical_and, [a | ~t.syncs for a, t in zip(arrived, turns, strict=True)])
            arrived = [is_whole & each for each in arrived]
            reduced = jax.tree.map(lambda x: jnp.where(is_whole, x, jnp.zeros_like(x)), reduced)
        settled = [go_on_from(*part, *met) for part, *met in zip(parts, sent, arrived, strict=True)]
        own, launched = zip(*settled, strict=True)
        time, seconds, launched_at = time_of(
            turns,
            seconds,
            unstack(state.launched_at),
            with_delay=delay_steps > 0,
            leaves_out=combiner.needs_arrivals,
            given=arrival_seconds is not None,
            axes=axes,
        )
        if own_steps is not None:
            time["contributors"] = jnp.sum(works, dtype=jnp.float32)
        waits = [jax.tree.map(lambda _, now=now: now, part.drift) for now, part in zip(arrived, own, strict=True)]
        shares = zip(turns, layout.shares(updates), strict=True)
        sent_share = sum(jnp.where(turn.syncs, jnp.float32(share), 0) for turn, share in shares)
        inside = _joined([report(each) for each in inner], turns, before=state.report, num_workers=num_workers(axes))
        if own_steps is not None:
            inside = inside._replace(counted=join_known(operator.and_, [inside.counted, own_work]))
        own_report = inside.with_metrics({"communications": sent_share, **time})._replace(
            emitted=layout.stack([turn.syncs for turn in turns]),
            drift=joined(*(each.drift for each in own)),
            mix=Mix(state.report.mix.weight, joined(*waits)) if mix else None,
        )
        state = LocalSgdState(
            combine=layout.stack(inner, of_arrays=False),
            num_updates=state.num_updates + 1,
            launched=joined(*(each.drift for each in launched)),
            seconds=seconds,
            launched_at=layout.stack(launched_at),
            report=own_report,
            weight=layout.stack([each.weight for each in own]),
            launched_weight=layout.stack([each.weight for each in launched]),
        )
        return optax.tree.cast_like(joined(*reduced), updates), state

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=False,
        takes_weights=combiner.takes_weights,
        homogeneous=False,  # progress has the scales of all its steps
        reduces="updates",
        local_workers="between_rounds",
        delays=False,
        numbers="inexact",
        fragments=layout if fragments > 1 else None,
    )


def _check_apart(own_steps: tuple[int, ...], combiner: Reducer, **options: int) -> None:
    """Raises ValueError for what a number of steps for each worker does not go with."""
    given = f"every_steps={own_steps}"
    for name, value in options.items():
        if value != (least := int(name == "fragments")):
            raise ValueError(f"{name}={value}: must be {least} with {given}, a number for each worker")
    if combiner.needs_arrivals:
        raise ValueError(f"{given}: must be one number where combine leaves workers out")


def _with_weight(total: jax.Array, weight: Any) -> jax.Array:
    weight = as_weight(weight)
    is_lost = has_weight(weight) & (weight == 0)
    return total + jnp.where(is_lost, jnp.nan, weight).astype(total.dtype)


class _Progress(NamedTuple):
    """A worker's progress in a fragment, its parameters minus the shared ones, and the weights of its steps."""

    drift: Any
    weight: Any


def _joined(reports: list[Report], turns: list[Turn], *, before: Report, num_workers: int) -> Report:
    """Joins the reports of the fragments' reducers; metrics are those of the last one that was called."""
    found = [r.if_called(turn.syncs, num_workers=num_workers) for r, turn in zip(reports, turns, strict=True)]
    if len(found) == 1:
        return found[0]

    def metric(name: str) -> jax.Array:
        values = jnp.stack([each.metrics[name] for each in found])
        if name == "bytes_per_worker":  # of the whole model
            return jnp.sum(values)
        if name in TIME:  # 0 s and all workers where a fragment is not due
            return jnp.max(values) if name == "step_seconds" else jnp.min(values)
        value = before.metrics[name]
        for i, turn in enumerate(turns):
            value = jnp.where(turn.syncs, values[i], value)
        return value

    return Report(
        counted=join_known(operator.and_, [each.counted for each in found]),
        overflowed=join_known(operator.or_, [each.overflowed for each in found]),
        metrics={name: metric(name) for name in found[0].metrics},
    )
