"""Cuts the event order into waves: gradients that do not depend on each other, computed together, applied in order."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from asynchronous.events import Events, Reads


class Slots(NamedTuple):
    """Each worker's part in one wave; the leading axis of all leaves is the workers' axis, [n]."""

    position: np.ndarray  # int32, place of the worker's gradient in the wave's order; -1 if it has none
    staleness: np.ndarray  # int32, of that gradient
    batch_index: np.ndarray  # int64, number of that gradient's batch; -1 if it has none
    reads_after: np.ndarray  # int32, number of the wave's gradients after which the worker reads; 0 if it does not


class Wave(NamedTuple):
    """Consecutive events whose parameters were all read before the wave, so that each worker has at most one event."""

    events: Events
    first_event: int
    slots: Slots

    @property
    def next_event(self) -> int:
        """The number of the first event after the wave."""
        return self.first_event + len(self.events.worker)


def waves(
    order: Iterable[tuple[Events, Reads]],
    *,
    num_workers: int,
    first_event: int = 0,
    stops: Collection[int] = (),
) -> Iterator[Wave]:
    """Cuts an order into waves, each as long as possible.

    A wave ends before the first gradient whose parameters were read within the wave. Further cuts change no gradient
    and no update, so a run may stop and resume after any event. Workers of equal speed make waves of n, as rounds do;
    exponential times make waves of about sqrt(pi n / 2), which is a fifth of the workers for n = 40.

    Args:
      order: pieces of the order, one after another, as ``events.order`` yields them.
      num_workers: n.
      first_event: the number of the first event of the first piece.
      stops: periods in events; no wave contains events from both sides of a multiple of one of them.

    >>> from asynchronous.events import from_model, order
    >>> equal = order(from_model(lambda step: np.ones(4)), num_workers=4, num_events=20)
    >>> wave = next(waves(equal, num_workers=4, stops=(3,)))
    >>> wave.slots.position, wave.slots.reads_after
    (array([ 0,  1,  2, -1], dtype=int32), array([1, 2, 3, 0], dtype=int32))
    """
    for events, reads in order:
        last_event = first_event + len(events.worker)
        start = first_event
        while start < last_event:
            next_stops = [(start // period + 1) * period for period in stops]
            stop = min(start + num_workers, last_event, *next_stops)
            candidates = slice(start - first_event, stop - first_event)
            dependent = np.flatnonzero(events.read_event[candidates] > start)
            stop = start + int(dependent[0]) if len(dependent) else stop
            yield _wave(events, reads, first_event, start, stop, num_workers=num_workers)
            start = stop
        first_event = last_event


def _wave(events: Events, reads: Reads, first_event: int, start: int, stop: int, *, num_workers: int) -> Wave:
    """Returns the events [start, stop) of a piece that begins with ``first_event`` as a wave."""
    part = Events(*(column[start - first_event : stop - first_event] for column in events))
    slots = Slots(
        position=np.full(num_workers, -1, np.int32),
        staleness=np.zeros(num_workers, np.int32),
        batch_index=np.full(num_workers, -1, np.int64),
        reads_after=np.zeros(num_workers, np.int32),
    )
    slots.position[part.worker] = np.arange(stop - start)
    slots.staleness[part.worker] = part.staleness
    slots.batch_index[part.worker] = part.batch_index
    low, high = np.searchsorted(reads.event, [start, stop], side="right")
    slots.reads_after[reads.worker[low:high]] = reads.event[low:high] - start
    return Wave(part, start, slots)
