"""Local SGD and its relatives: workers take several steps of their own before their progress is combined."""

from typing import Annotated, Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from reducers.clock import first_of_round, latest, of_round, own_seconds
from reducers.collectives import AxisName, agreed, as_own, axes_of, gather_workers, num_workers
from reducers.options import check_options, check_static
from reducers.reducer import Combine, Reducer
from reducers.report import Report, report
from reducers.state import nothing, zeros_like
from reducers.sums.mean import combiner_of


class LocalSgdState(NamedTuple):
    """State of ``local_sgd``.

    Attributes:
      combine: state of the reducer that combines the workers' progress.
      num_updates: [] int32, so far.
      launched: like params, the progress that is under way; None without a delay.
      seconds: [] float32, this worker's clock; where workers may be left out, since its round began.
      launched_at: [] float32, when the last worker launched the progress that is under way.
      report: this worker's drift, and whether anything was emitted; "communications", 1 in an update that combined the
        workers' progress, else 0; "step_seconds", by how much the latest worker's clock went on, or, where workers may
        be left out, "steps_decided": how many steps this update decided about.
    """

    combine: Any
    num_updates: jax.Array
    launched: Any
    seconds: jax.Array
    launched_at: jax.Array
    report: Report


def local_sgd(
    axis_name: AxisName,
    *,
    every_steps: Annotated[int, "[1, inf)"],
    delay_steps: Annotated[int, "[0, inf)"] = 0,
    from_step: Annotated[int, "[0, inf)"] = 0,
    combine: Combine = None,
) -> Reducer:
    r"""Lets workers take H steps of their own optimizers before their progress is combined, perhaps d steps late.

    .. math::
        u_i &\leftarrow u_i + d_i \\
        s_i &\leftarrow u_i & t &\equiv 0 \pmod H \\
        z &\leftarrow z + R(s_1, \dots, s_n), \quad u_i \leftarrow u_i - s_i & t &\equiv d \pmod H

    with the shared parameters z, a worker's own parameters :math:`z + u_i`, its optimizer's update :math:`d_i` at
    these, and any reducer R. d = 0 is local SGD; with ``from_step`` it is post-local SGD; d = H is CoCoD-SGD, where
    what arrives is applied before the next progress is launched; 0 < d < H is DaSGD. Progress that is made meanwhile is
    kept. What is averaged is progress, never parameters, whose low bits an average would lose.

    The reducer stands after the optimizer: ``optax.chain(optimizer, local_sgd(...))``. Its result is zero in an update
    that is no sync step. A worker evaluates its gradient at ``reducers.own_params(params, state)``.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      every_steps: H.
      delay_steps: d, at most H.
      from_step: the number of steps at the beginning that all communicate, without delay.
      combine: R, a reducer; None is ``mean``. If it needs ``arrival_seconds``, these are of the whole round, and who is
        left out of a round begins the next one where all others do. Configs give its name, or a block.

    Returns:
      A reducer; ``combine`` itself for H = 1 and d = 0. Its state holds one copy of the parameters, with a delay two;
      they are each worker's own: map them over the worker axis. Given ``arrival_seconds`` [n], it keeps each worker's
      clock: a round takes as long as the largest sum of a worker's seconds, and with a delay a worker waits for
      nobody unless progress was launched more than d of its own steps ago.

    Raises:
      ValueError: for d above H, a delay with a reducer that leaves workers out, or a ``combine`` that does not emit
        every update itself.

    >>> reducer = local_sgd("worker", every_steps=2)
    >>> states = jax.vmap(reducer.init)(jnp.zeros(2))
    >>> reduce = jax.vmap(lambda update, state: reducer.update(update, state), axis_name="worker")
    >>> for updates in ([1.0, 3.0], [1.0, 3.0]):
    ...   result, states = reduce(jnp.array(updates), states)
    ...   print(result, states.report.drift)
    [0. 0.] [1. 3.]
    [4. 4.] [0. 0.]

    Reference: local SGD and post-local SGD: Lin, Stich, Patel, Jaggi, arXiv 1808.07217 (READ: the authors' code).
    CoCoD-SGD: Shen et al., arXiv 1906.12043 (READ: code of Wang, Tantia, Ballas, Rabbat, which has it). DaSGD: Zhou et
    al., arXiv 2006.00441 (abstract). Differs from the papers in: that DaSGD keeps the progress made meanwhile is
    DERIVED from its abstract and the code of CoCoD-SGD; a weight by which it may mix both (MEM) is left out.
    """
    check_options(local_sgd, every_steps=every_steps, delay_steps=delay_steps, from_step=from_step)
    check_static(every_steps=every_steps, delay_steps=delay_steps, from_step=from_step)
    axes = axes_of(axis_name)
    combiner = combiner_of(combine, axes)
    if delay_steps > every_steps:
        raise ValueError(f"delay_steps={delay_steps}: exceeds every_steps={every_steps}")
    if delay_steps and combiner.needs_arrivals:
        raise ValueError(f"delay_steps={delay_steps}: must be 0 where combine leaves workers out")
    if every_steps == 1 and delay_steps == 0:
        return combiner.like(*combiner, reduces="updates")

    def init_fn(params):
        zero, inner = jnp.zeros((), jnp.float32), as_own(combiner.init(params), axes)
        drift = as_own(zeros_like(params, axes), axes)
        own = {"communications": zero, **first_of_round(leaves_out=combiner.needs_arrivals)}
        return LocalSgdState(
            combine=inner,
            num_updates=jnp.zeros((), jnp.int32),
            launched=as_own(zeros_like(params, axes), axes) if delay_steps else None,
            seconds=as_own(zero, axes),
            launched_at=zero,
            report=report(inner)._replace(emitted=jnp.array(False), drift=drift).with_metrics(own),
        )

    def update_fn(
        updates, state, params=None, *, arrival_seconds=None, contributes=None, overflowed=None, **extra_args
    ):
        del contributes, overflowed  # of one step, not of a round
        turn = _turn(agreed(state.num_updates, axes) + 1, every=every_steps, delay=delay_steps, from_step=from_step)
        seconds = state.seconds + own_seconds(arrival_seconds, axes)
        drift = jax.tree.map(lambda u, d: (u + d).astype(u.dtype), state.report.drift, updates)
        launched = as_own(state.launched, axes)
        sent = launched if delay_steps else drift
        if delay_steps and from_step:
            sent = lax.cond(turn.at_once, lambda: drift, lambda: launched)

        def communicate(inner):
            needs = {"arrival_seconds": gather_workers(seconds, axes)} if combiner.needs_arrivals else {}
            reduced, inner = combiner.update(sent, inner, params, **needs, **extra_args)
            # Progress that overflowed has not arrived: it goes with that of the next round.
            void = report(inner).void
            return reduced, as_own(inner, axes), jnp.array(True) if void is None else agreed(~void, axes)

        def go_on(inner):
            return nothing(updates), as_own(inner, axes), jnp.array(False)

        def rest(drift):
            return jax.tree.map(jnp.subtract, drift, sent) if delay_steps else jax.tree.map(jnp.zeros_like, drift)

        reduced, inner, arrived = lax.cond(turn.syncs, communicate, go_on, state.combine)
        # That this depends on a result tells XLA that nobody reads any more what was sent: its place can be used.
        drift = lax.cond(arrived, rest, lambda drift: drift, as_own(drift, axes))
        if delay_steps:
            launched = lax.cond(turn.launches, lambda now, _: now, lambda _, before: before, drift, launched)
        given, launched_at = arrival_seconds is not None, state.launched_at
        if delay_steps:
            time, seconds, launched_at = _time_with_delay(turn, seconds, launched_at, given=given, axes=axes)
        else:
            time, seconds = of_round(
                seconds,
                is_sync_step=turn.syncs,
                round_steps=turn.round_steps,
                leaves_out=combiner.needs_arrivals,
                given=given,
                axes=axes,
            )
        own = report(inner).if_called(turn.syncs, num_workers=num_workers(axes))
        own = own.with_metrics({"communications": turn.syncs.astype(jnp.float32), **time})
        own = own._replace(emitted=turn.syncs, drift=drift)
        return reduced, LocalSgdState(inner, state.num_updates + 1, launched, seconds, launched_at, own)

    return combiner.like(
        init_fn,
        update_fn,
        axis_name=axes,
        takes_mask=False,
        homogeneous=False,  # progress has the scales of all its steps
        reduces="updates",
        emits="sometimes",
        delays=False,
        numbers="inexact",
    )


class _Turn(NamedTuple):
    """The parts of a round that fall into one update, each [] and the same on all workers.

    Attributes:
      at_once: bool, whether progress is combined without delay and round, since the run has just begun.
      syncs: bool, whether progress is combined.
      launches: bool, whether progress is launched, with a delay.
      round_steps: int32, the steps of the round that ends here, if one does.
    """

    at_once: jax.Array
    syncs: jax.Array
    launches: jax.Array
    round_steps: jax.Array


def _turn(step: jax.Array, *, every: int, delay: int, from_step: int) -> _Turn:
    """Returns what is to be done in a step, counted from 1."""
    at_once = step <= from_step
    launched = step - delay  # the step in which what arrives now was launched
    syncs = at_once | ((launched % every == 0) & (launched > from_step))
    round_steps = jnp.where(at_once, 1, jnp.minimum(every, step - from_step))
    return _Turn(at_once, syncs, (step % every == 0) & ~at_once, round_steps)


def _time_with_delay(
    turn: _Turn, seconds: jax.Array, launched_at: jax.Array, *, given: bool, axes: tuple[str, ...]
) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
    """Returns the seconds of the step, and both clocks after it: each worker waits until all have launched."""
    seconds = jnp.where(turn.syncs & ~turn.at_once, jnp.maximum(seconds, launched_at), seconds)
    passed = latest(seconds, axes, given=given)
    seconds = jnp.where(turn.at_once, 0, seconds - passed)
    return {"step_seconds": passed}, seconds, jnp.where(turn.launches, 0, launched_at - passed)
