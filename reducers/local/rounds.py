"""The rounds of local workers: which parts of a round a step has, and the time that it takes."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import numpy as jnp

from reducers.arrivals.clock import latest, of_round
from reducers.reducer import Reducer


class Turn(NamedTuple):
    """The parts of a fragment's round that fall into one update, each [] and the same on all workers.

    Attributes:
      at_once: bool, whether progress is combined in every step, without delay, as in the first steps of a run.
      syncs: bool, whether progress is combined.
      launches: bool, whether progress is launched, with a delay.
      steps: int32, if this fragment is combined: the steps since the one before it was.
    """

    at_once: jax.Array
    syncs: jax.Array
    launches: jax.Array
    steps: jax.Array


def check_overflow_is_known(combine: Reducer) -> None:
    """Raises ValueError for a reducer that says that progress has overflowed only after its delay.

    Local workers drop their progress as it arrives, but must keep progress that has overflowed.
    """
    if combine.delays and combine.may_overflow:
        raise ValueError(
            "combine: both delays updates and may overflow, and says only a delay later what did; take one that does "
            "not delay, or communication.name=full"
        )


def turns_of(step: jax.Array, *, fragments: int, every: int, delay: int, from_step: int) -> list[Turn]:
    """Returns which parts of a round each fragment has in a step.

    Args:
      step: [] int32, from 1.
      fragments: P, at most H.
      every: H, the steps of a round.
      delay: d, the steps from launch to arrival.
      from_step: the last of the steps that all communicate.

    >>> for step in (2, 4, 6):
    ...   turns = turns_of(jnp.int32(step), fragments=2, every=4, delay=0, from_step=0)
    ...   print([bool(turn.syncs) for turn in turns])
    [False, True]
    [True, False]
    [False, True]
    """
    at_once = step <= from_step
    launched = step - delay  # the step in which the progress that arrives now was launched
    turns = []
    for fragment in range(fragments):
        offset, before = (f * every // fragments for f in (fragment, fragment - 1))
        syncs = at_once | (((launched - offset) % every == 0) & (launched > from_step))
        launches = ((step - offset) % every == 0) & ~at_once
        steps = jnp.where(at_once, 1, jnp.minimum(offset - before, step - from_step))
        turns.append(Turn(at_once, syncs, launches, steps))
    return turns


def time_of(
    turns: Sequence[Turn],
    seconds: jax.Array,
    launched_at: Sequence[jax.Array],
    *,
    with_delay: bool,
    leaves_out: bool,
    given: bool,
    axes: tuple[str, ...],
) -> tuple[dict[str, jax.Array], jax.Array, Sequence[jax.Array]]:
    """Returns the time metrics of a step, and both clocks after it.

    Args:
      turns: the turn of each fragment.
      seconds: [] float32, this worker's clock.
      launched_at: for each fragment, [] float32, when the last worker launched the progress that is under way.
      with_delay: whether a worker waits, where progress arrives, until all have launched it; without a delay all
        workers meet there.
      leaves_out: see ``reducers.arrivals.clock.of_round``, as for the following ones.
      given: whether arrival times are given.
      axes: the worker axes.
    """
    if not with_delay:
        syncs = functools.reduce(jnp.logical_or, (turn.syncs for turn in turns))
        steps = functools.reduce(jnp.maximum, (jnp.where(turn.syncs, turn.steps, 0) for turn in turns))
        time, seconds = of_round(
            seconds, is_sync_step=syncs, round_steps=steps, leaves_out=leaves_out, given=given, axes=axes
        )
        return time, seconds, launched_at
    for turn, at in zip(turns, launched_at, strict=True):
        seconds = jnp.where(turn.syncs & ~turn.at_once, jnp.maximum(seconds, at), seconds)
    passed = latest(seconds, axes, given=given)
    seconds = jnp.where(turns[0].at_once, 0, seconds - passed)
    after = [jnp.where(turn.launches, 0, at - passed) for turn, at in zip(turns, launched_at, strict=True)]
    return {"step_seconds": passed}, seconds, after
