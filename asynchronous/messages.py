"""Computes which updates each replica of decentralised asynchronous SGD has, from durations and latencies alone.

There is no server: each of n workers has a replica of the parameters. A worker that has finished a gradient applies the
update to its own replica at once, sends it to all others, and begins its next gradient at its replica, which holds all
updates that it has received by then. The others receive the update a latency later. Nobody waits, so the events are
those of ``events.order`` without a bound. An update that is received at the time of an event precedes the event, unless
a later event of the same time sends it. At latency 0 all replicas equal the parameters that a server would have.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from asynchronous.events import Durations, Events, Reads, order
from asynchronous.waves import Wave

Latencies: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""``(worker [E], task [E]) -> seconds [E, n]`` until each other worker has received the update of a worker's task."""

EVENTS_PER_PIECE = 4096  # a piece has n times as many messages


def latencies_from_model(seconds: Callable[[jax.Array, jax.Array], jax.Array]) -> Latencies:
    """Takes the latencies from a model.

    Args:
      seconds: ``(worker, task) -> seconds [n]`` to each receiver, pure.

    >>> from jax import numpy as jnp
    >>> latencies_from_model(lambda worker, task: jnp.full(2, task))(np.array([0, 1]), np.array([3, 4]))
    array([[3., 3.],
           [4., 4.]])
    """
    many = jax.jit(jax.vmap(seconds))
    return lambda worker, task: np.asarray(many(worker, task.astype(np.int32)), np.float64)


class Received(NamedTuple):
    """Updates that workers receive from others, in order."""

    event: np.ndarray  # [R] int64, with which event: before it; after it, if the update is this event's own
    worker: np.ndarray  # [R] int64, the worker that receives it
    update: np.ndarray  # [R] int64, number of the event whose update it is


def exchange(
    durations: Durations, latencies: Latencies, *, num_workers: int, num_events: int
) -> Iterator[tuple[Events, Reads, Received]]:
    """Yields the events of a decentralised run from its beginning, and the updates received meanwhile, in pieces.

    A gradient misses the updates that some worker applied before it and that were not in the replica at which its
    worker computed it; their number is its staleness. So ``read_version`` of these events counts the updates in that
    replica.

    Args:
      durations: the seconds of each task of each worker.
      latencies: the seconds of each message.
      num_workers: n.
      num_events: the number of gradients.

    Yields:
      Events, reads, and the updates that are received with these events. The last piece also has, at event
      ``num_events``, the updates that are under way at the end.

    Raises:
      ValueError: for a latency that is not in [0, inf), and as ``order``.

    >>> from asynchronous.events import from_model
    >>> durations = from_model(lambda step: np.ones(2))
    >>> half = lambda worker, task: np.full((len(worker), 2), 0.5)
    >>> ((events, _, received),) = exchange(durations, half, num_workers=2, num_events=4)
    >>> events.worker, events.staleness  # at second 1 worker 0 does not have worker 1's update yet, nor the reverse
    (array([0, 1, 0, 1], dtype=int32), array([0, 1, 1, 2]))
    >>> [row.tolist() for row in received]
    [[2, 2, 4, 4], [1, 0, 1, 0], [0, 1, 2, 3]]

    Reference: Tosi and Theobald, "Convergence Analysis of Decentralized ASGD", arXiv 2309.03754. Differs from the
    authors' code in: a worker's replica takes a message while the worker computes, too, which changes no gradient.
    """
    sent_at, update, receiver = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)  # messages under way
    workers, first = np.arange(num_workers), 0
    num_received = np.zeros(num_workers, np.int64)
    version_read = np.zeros(num_workers, np.int64)
    pieces = order(durations, num_workers=num_workers, num_events=num_events, events_per_piece=EVENTS_PER_PIECE)
    for events, reads in pieces:
        stop = first + len(events.worker)
        sent, to = np.nonzero(events.worker[:, None] != workers)
        seconds = _checked(latencies(events.worker, events.task))[sent, to]
        sent_at = np.concatenate([sent_at, events.seconds[sent] + seconds])
        update = np.concatenate([update, first + sent])
        receiver = np.concatenate([receiver, to])
        in_order = np.lexsort((update, sent_at))
        sent_at = sent_at[in_order]
        update = update[in_order]
        receiver = receiver[in_order]
        event = np.maximum(update, first + np.searchsorted(events.seconds, sent_at))
        num = len(event) if stop == num_events else int(np.searchsorted(event, stop))
        received = Received(event[:num], receiver[:num], update[:num])
        read_version = np.empty(len(events.worker), np.int64)
        for worker in workers:
            own = np.flatnonzero(events.worker == worker)
            at = received.event[received.worker == worker]
            has = num_received[worker] + np.searchsorted(at, first + own, side="right") + events.task[own] + 1
            versions = np.append(version_read[worker], has)
            read_version[own] = versions[:-1]
            version_read[worker] = versions[-1]
            num_received[worker] += len(at)
        yield events._replace(read_version=read_version), reads, received
        sent_at = sent_at[num:]
        update = update[num:]
        receiver = receiver[num:]
        first = stop


def num_slots(pieces: Iterable[tuple[Events, Reads, Received]], *, num_workers: int) -> int:
    """Returns how many updates must be kept at a time, M, so that update k can be kept in slot k modulo M.

    An update is kept until the end of the last wave in which a worker receives it; a wave has at most n events.

    Args:
      pieces: pieces of a run, as ``exchange`` yields them.
      num_workers: n.

    >>> from asynchronous.events import from_model
    >>> durations = from_model(lambda step: np.ones(2))
    >>> [num_slots(exchange(durations, lambda w, _: np.full((len(w), 2), seconds), num_workers=2, num_events=16),
    ...            num_workers=2) for seconds in (0.0, 0.5, 1.0)]
    [2, 4, 4]
    """
    return num_workers + max(int(np.max(got.event - got.update, initial=0)) for _, _, got in pieces)


class Mail(NamedTuple):
    """The updates that each worker sends and receives in one wave; all leaves have the workers' axis first, [n]."""

    slot: np.ndarray  # int32, where the worker's update is kept; M, out of range, if it has none
    inbox: np.ndarray  # [n, M] int32, the slots of the updates that the worker receives, in order, and then -1
    num_before: np.ndarray  # int32, how many of them are in its replica when it begins its next gradient


def mail(wave: Wave, received: Received, *, num_slots: int) -> Mail:
    """Returns the updates that workers send and receive in a wave.

    Args:
      wave: a wave of the piece.
      received: the updates received in the piece.
      num_slots: M.
    """
    position = wave.slots.position
    is_busy = position >= 0
    event = wave.first_event + position
    low, high = np.searchsorted(received.event, [wave.first_event, wave.next_event])
    now = Received(*(column[low:high] for column in received))
    found = Mail(
        slot=np.where(is_busy, event % num_slots, num_slots).astype(np.int32),
        inbox=np.full((len(position), num_slots), -1, np.int32),
        num_before=np.zeros(len(position), np.int32),
    )
    for worker in np.unique(now.worker):
        own = now.worker == worker
        found.inbox[worker, : own.sum()] = now.update[own] % num_slots
        found.num_before[worker] = np.sum(own & is_busy[worker] & (now.event <= event[worker]))
    return found


def _checked(seconds: np.ndarray) -> np.ndarray:
    is_wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if is_wrong.any():
        raise ValueError(f"latency_seconds: is {seconds[is_wrong][0]} for a message, must be in [0, inf)")
    return seconds
