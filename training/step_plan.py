"""Plans the calls of the devices: the steps and batches of each, and whether an evaluation or a checkpoint follows.

A step is an update of the server. Synchronous training takes one step of all workers at a time. Asynchronous training
takes *waves*: gradients that do not depend on each other, computed together and applied in the order of their arrival.
A wave completes several steps, or none if its gradients wait for others of the same update.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import asynchronous

# The per-worker inputs of an asynchronous step, int32: leaves of ``asynchronous.Slots``.
ASYNC_INPUTS = ("position", "staleness", "reads_after")


class PlannedWave(NamedTuple):
    """One step of all workers, or one wave of an asynchronous run.

    Attributes:
      steps: the steps that it completes, counted from 1.
      batch_index: [W] int64, the index of each worker's batch; -1 for a worker without one.
      inputs: [W, ...] each, per-worker inputs of an asynchronous step.
      arrivals: the gradients of an asynchronous wave; None if all arrive together.
      known: [K] each, numbers of these gradients that are known before they are computed, such as "staleness".
      none_pending: whether no gradient waits for others of its update after the wave, so that a run can stop there.
      none_was_pending: whether no gradient was pending before this wave.
    """

    steps: range
    batch_index: np.ndarray
    inputs: Mapping[str, np.ndarray] = {}
    arrivals: asynchronous.Events | None = None
    known: Mapping[str, np.ndarray] = {}
    none_pending: bool = True
    none_was_pending: bool = True

    def reaches(self, period: int) -> bool:
        """Returns whether it ends with a step that is a multiple of ``period``."""
        return bool(self.steps) and self.none_pending and self.steps[-1] % period == 0


class StepPlan(NamedTuple):
    """One call of the devices: k waves, one after another.

    Attributes:
      waves: the k waves.
      evaluate: whether an evaluation follows.
      checkpoint: whether a checkpoint follows.
      is_last: whether the run ends with it.

    >>> plan = next(plan_calls(synchronous_waves(5, 8, num_workers=2), steps_per_call=3, num_steps=8,
    ...                        eval_every=8, checkpoint_every=8))
    >>> plan.batch_index
    array([[10, 11],
           [12, 13],
           [14, 15]])
    """

    waves: tuple[PlannedWave, ...]
    evaluate: bool = False
    checkpoint: bool = False
    is_last: bool = False

    @property
    def first_step(self) -> int:
        """The first step that it completes, counted from 1; the next one if it completes none."""
        return self.waves[0].steps.start

    @property
    def last_step(self) -> int:
        """The last step that is complete afterwards."""
        return self.waves[-1].steps.stop - 1

    @property
    def none_pending(self) -> bool:
        """Whether the run can stop after it."""
        return self.waves[-1].none_pending

    @property
    def batch_index(self) -> np.ndarray:
        """[k, W], of each wave."""
        return np.stack([wave.batch_index for wave in self.waves])

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """[k, W, ...] each, of each wave."""
        return {name: np.stack([wave.inputs[name] for wave in self.waves]) for name in self.waves[0].inputs}

    def split(self, metrics: Any) -> Iterator[tuple[PlannedWave, Any]]:
        """Yields each wave with its metrics, from leaves [K, ...]; the first k are those of the waves."""
        for i, wave in enumerate(self.waves):
            yield wave, jax.tree.map(operator.itemgetter(i), metrics)


def synchronous_waves(first_step: int, num_steps: int, *, num_workers: int) -> Iterator[PlannedWave]:
    """Yields one wave for each step after ``first_step``; worker w takes the batch of index ``step * W + w``.

    >>> wave = next(synchronous_waves(5, 9, num_workers=2))
    >>> wave.steps, wave.batch_index
    (range(6, 7), array([10, 11]))
    """
    for step in range(first_step, num_steps):
        yield PlannedWave(range(step + 1, step + 2), np.arange(step * num_workers, (step + 1) * num_workers))


def asynchronous_waves(
    first_step: int,
    order: Iterable[tuple[asynchronous.Events, asynchronous.Reads]],
    *,
    gradients_per_update: int,
    num_workers: int,
    stops: Sequence[int] = (),
) -> Iterator[PlannedWave]:
    """Yields the waves of an event order.

    Args:
      first_step: the steps that are done already.
      order: pieces of the gradients after them, as ``asynchronous.order`` yields them.
      gradients_per_update: c.
      num_workers: W.
      stops: periods in steps; no wave crosses a multiple of one of them.
    """
    count = gradients_per_update
    waves = asynchronous.waves(
        order,
        num_workers=num_workers,
        first_event=first_step * count,
        stops=[stop * count for stop in stops],
    )
    for wave in waves:
        yield PlannedWave(
            steps=range(wave.first_event // count + 1, wave.next_event // count + 1),
            batch_index=wave.slots.batch_index,
            inputs={name: getattr(wave.slots, name) for name in ASYNC_INPUTS},
            arrivals=wave.events,
            known={"staleness": wave.events.staleness},
            none_pending=wave.next_event % count == 0,
            none_was_pending=wave.first_event % count == 0,
        )


def decentralised_waves(
    first_step: int,
    pieces: Iterable[tuple[asynchronous.Events, asynchronous.Reads, asynchronous.Received]],
    *,
    num_slots: int,
    num_workers: int,
    stops: Sequence[int] = (),
) -> Iterator[PlannedWave]:
    """Yields the waves of a run without a server, in which each gradient is a step.

    ``known`` has each gradient's "staleness", and the run's "staleness_mean" and "staleness_max" so far.

    Args:
      first_step: the steps that are done already.
      pieces: pieces of the whole run, as ``asynchronous.exchange`` yields them.
      num_slots: M, the number of updates that are kept.
      num_workers: W.
      stops: periods in steps; no wave crosses a multiple of one of them.
    """
    start = 0
    total = 0
    largest = 0
    for events, reads, received in pieces:
        event = np.arange(start, start + len(events.worker))
        totals = total + np.cumsum(events.staleness)
        maxima = np.maximum(largest, np.maximum.accumulate(events.staleness))
        known = {
            "staleness": events.staleness,
            "staleness_mean": totals / (event + 1),
            "staleness_max": maxima,
        }
        done = min(max(first_step - start, 0), len(event))
        rest = asynchronous.Events(*(column[done:] for column in events))
        for wave in asynchronous.waves([(rest, reads)], num_workers=num_workers, first_event=start + done, stops=stops):
            here = slice(wave.first_event - start, wave.next_event - start)
            mail = asynchronous.mail(wave, received, num_slots=num_slots)
            yield PlannedWave(
                steps=range(wave.first_event + 1, wave.next_event + 1),
                batch_index=wave.slots.batch_index,
                inputs={"position": wave.slots.position, **mail._asdict()},
                arrivals=wave.events,
                known={name: column[here] for name, column in known.items()},
            )
        start = start + len(event)
        total = int(totals[-1])
        largest = int(maxima[-1])


def plan_calls(
    waves: Iterable[PlannedWave], *, steps_per_call: int, num_steps: int, eval_every: int, checkpoint_every: int
) -> Iterator[StepPlan]:
    """Groups waves into calls of at most ``steps_per_call``, none across an evaluation or checkpoint.

    A run that stops after a call and is resumed there has the same calls as one that never stopped.

    >>> waves = synchronous_waves(5, 17, num_workers=2)
    >>> plans = plan_calls(waves, steps_per_call=3, num_steps=17, eval_every=10, checkpoint_every=20)
    >>> [(len(plan.waves), plan.evaluate) for plan in plans]
    [(3, False), (2, True), (3, False), (3, False), (1, True)]
    """

    waiting: list[PlannedWave] = []
    for wave in waves:
        waiting.append(wave)
        is_last = wave.reaches(num_steps)
        evaluate = is_last or wave.reaches(eval_every)
        checkpoint = is_last or wave.reaches(checkpoint_every)
        if evaluate or checkpoint or len(waiting) == steps_per_call:
            yield StepPlan(tuple(waiting), evaluate, checkpoint, is_last)
            waiting = []
