"""Who arrives when, before any training: the order of an asynchronous run follows from its durations alone.

One server and n workers. A worker reads the parameters, computes one gradient, its *task*, and pushes it; the server
takes gradients in the order of their arrival, and the worker reads again. Reading, pushing and applying take no time.
Whoever arrives at the same moment is taken in the order of the workers' numbers.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from asynchronous.durations import Durations, of_worker

PIECE = 1 << 16  # events


class Reads(NamedTuple):
    """Workers reading the parameters, in order; the number of a read is the draw of the task that begins with it."""

    worker: np.ndarray  # [R] int32
    event: np.ndarray  # [R] int64, gradients that had arrived before
    seconds: np.ndarray  # [R] float64


class Events(NamedTuple):
    """Gradients arriving at the server, in order."""

    worker: np.ndarray  # [E] int32
    task: np.ndarray  # [E] int64, how many tasks of this worker came before
    draw: np.ndarray  # [E] int64, number of its read among all reads: which batch it is of
    read_event: np.ndarray  # [E] int64, gradients that had arrived when it was read
    read_seconds: np.ndarray  # [E] float64
    seconds: np.ndarray  # [E] float64, arrival
    read_version: np.ndarray  # [E] int64, updates that had been applied when it was read
    version: np.ndarray  # [E] int64, updates that were applied before the one that this gradient is part of

    @property
    def staleness(self) -> np.ndarray:
        """Updates between the reading of the parameters and the update that the gradient is part of, [E] int64."""
        return self.version - self.read_version


class Cursor(NamedTuple):
    """Where an order stands after so many events: all that the rest of it depends on, besides the durations."""

    num_events: int
    num_reads: int
    task: np.ndarray  # [n] int64, tasks that each worker has finished
    draw: np.ndarray  # [n] int64, and the two below: of the task that each is at
    read_event: np.ndarray  # [n] int64
    read_seconds: np.ndarray  # [n] float64
    seconds: np.ndarray  # [n] float64, when that task will be finished; infinite while the worker must wait


def start(durations: Durations, *, num_workers: int) -> Cursor:
    """Returns the beginning: every worker has read the initial parameters, at second 0, in the order of their numbers.

    Raises:
      ValueError: if the durations are not of so many workers, or not positive.
    """
    if (found := durations(0).shape[1:]) != (num_workers,) or not num_workers:
        raise ValueError(f"seconds: of {found} workers, must be ({num_workers},)")
    first = [next(of_worker(durations, worker, first_task=0)) for worker in range(num_workers)]
    zeros = np.zeros(num_workers, np.int64)
    return Cursor(0, num_workers, zeros, np.arange(num_workers), zeros, np.zeros(num_workers), np.array(first))


def advance(
    durations: Durations,
    cursor: Cursor,
    *,
    num_events: int,
    staleness_bound: int | None = None,
    gradients_per_update: int = 1,
) -> tuple[Events, Reads, Cursor]:
    """Lets so many more gradients arrive.

    Args:
      durations: seconds of each task of each worker.
      cursor: where the order stands.
      num_events: gradients to arrive.
      staleness_bound: s, of stale synchronous parallel: a worker that has finished more than s tasks more than the
        slowest waits until it has not. 0 makes rounds: all of a round's gradients are of the same parameters. None
        lets nobody wait. The bound is on tasks; by it a gradient misses at most (2 s + 1)(n - 1) updates.
      gradients_per_update: c, of soft synchronisation: the server updates with every c-th gradient; nobody waits.

    Returns:
      The events, the reads that follow each of them, and where the order stands then.

    Raises:
      ValueError: if the durations end or hold one that is not positive; for a bound below 0 or a count below 1.

    >>> from asynchronous.durations import from_table
    >>> table = from_table(np.array([[1.0, 2.5]] * 9))  # worker 1 takes 2.5 times as long
    >>> events, _, cursor = advance(table, start(table, num_workers=2), num_events=7)
    >>> events.worker, events.staleness
    (array([0, 0, 1, 0, 0, 0, 1], dtype=int32), array([0, 0, 2, 1, 0, 0, 3]))
    >>> events.draw, cursor.num_reads
    (array([0, 2, 1, 3, 5, 6, 4]), 9)

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, arXiv 1604.00981, algorithms 1 and 2; the bound is of Ho et al.,
    "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013; the count is of Zhang,
    Gupta, Lian, Liu, arXiv 1511.05950. Differs from them in: one server that is never busy, and reads that are never
    torn; Ho's caches are always fresh.
    """
    if staleness_bound is not None and staleness_bound < 0:
        raise ValueError(f"staleness_bound={staleness_bound}: must be in [0, inf) or None")
    if gradients_per_update < 1:
        raise ValueError(f"gradients_per_update={gradients_per_update}: must be in [1, inf)")
    # Lists: an item of an array costs several times as much.
    task, draw, read_event, read_seconds, finish = (column.tolist() for column in cursor[2:])
    waiting = {w for w, seconds in enumerate(finish) if seconds == np.inf}
    coming = [of_worker(durations, w, first_task=done + (w not in waiting)) for w, done in enumerate(task)]
    heap = [(seconds, w) for w, seconds in enumerate(finish) if w not in waiting]
    heapq.heapify(heap)
    gate = _Gate(task, bound=staleness_bound)
    num_reads = cursor.num_reads
    arrived: list[tuple] = []
    reads: list[tuple] = []
    for event in range(cursor.num_events + 1, cursor.num_events + num_events + 1):
        now, worker = heapq.heappop(heap)
        arrived.append((worker, task[worker], draw[worker], read_event[worker], read_seconds[worker], now))
        task[worker] += 1
        readers = gate.after(worker, waiting)
        waiting.add(worker)
        waiting.difference_update(readers)
        finish[worker] = np.inf
        for reader in readers:
            draw[reader], read_event[reader], read_seconds[reader] = num_reads, event, now
            finish[reader] = now + next(coming[reader])
            heapq.heappush(heap, (finish[reader], reader))
            reads.append((reader, event, now))
            num_reads += 1
    state = [np.array(column) for column in (task, draw, read_event, read_seconds, finish)]
    return (
        _events(arrived, cursor.num_events, gradients_per_update),
        Reads(*_columns(reads, (np.int32, np.int64, float))),
        Cursor(cursor.num_events + num_events, num_reads, *state),
    )


def order(
    durations: Durations,
    *,
    num_workers: int,
    num_events: int,
    first_event: int = 0,
    staleness_bound: int | None = None,
    gradients_per_update: int = 1,
) -> Iterator[tuple[Events, Reads]]:
    """Yields the events [first_event, num_events) piece by piece; what comes before them is simulated and thrown away.

    Pieces are ``PIECE`` events long at most, so memory does not grow with the number of events. The options are those
    of ``advance``.
    """
    cursor = start(durations, num_workers=num_workers)
    while cursor.num_events < num_events:
        goal = first_event if cursor.num_events < first_event else num_events
        events, reads, cursor = advance(
            durations,
            cursor,
            num_events=min(PIECE, goal - cursor.num_events),
            staleness_bound=staleness_bound,
            gradients_per_update=gradients_per_update,
        )
        if cursor.num_events > first_event:
            yield events, reads


class _Gate:
    """Says who reads after whose arrival."""

    def __init__(self, finished: list[int], *, bound: int | None):
        self._finished = finished  # tasks of each worker; the caller counts them
        self._bound = bound
        self._slowest = min(finished)
        self._num_slowest = finished.count(self._slowest)

    def after(self, worker: int, waiting: set[int]) -> list[int]:
        """Returns, in order, the workers that read once ``worker`` has finished a task, of those that wait and it."""
        if self._bound is None:
            return [worker]
        may_go = [worker]
        if self._finished[worker] - 1 == self._slowest:
            self._num_slowest -= 1
            if not self._num_slowest:
                self._slowest = min(self._finished)
                self._num_slowest = self._finished.count(self._slowest)
                may_go = sorted([*waiting, worker])
        return [w for w in may_go if self._finished[w] - self._slowest <= self._bound]


def _events(arrived: list[tuple], first_event: int, gradients_per_update: int) -> Events:
    worker, task, draw, read_event, read_seconds, seconds = _columns(arrived, (np.int32, *[np.int64] * 3, float, float))
    event = np.arange(first_event, first_event + len(arrived))
    version, read_version = event // gradients_per_update, read_event // gradients_per_update
    return Events(worker, task, draw, read_event, read_seconds, seconds, read_version, version)


def _columns(rows: list[tuple], dtypes: Sequence[type]) -> list[np.ndarray]:
    return [np.fromiter((row[i] for row in rows), dtype, len(rows)) for i, dtype in enumerate(dtypes)]
