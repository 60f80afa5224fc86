"""The event order of asynchronous SGD, determined by the durations of the workers' tasks alone.

There are one server and n workers. A worker reads the parameters, computes one gradient (its task), and pushes it. The
server takes gradients in the order of their arrival, and the worker reads again. Reading, pushing and applying take no
time. Gradients that arrive at the same moment are taken in the order of the workers' indices.
"""

import functools
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import jax
import numpy as np
from jax import numpy as jnp

from reducers.arrivals import foreign_files

# ---- durations of tasks --------------------------------------------------------------------------------------------

Durations: TypeAlias = Callable[[int], np.ndarray]
"""``block -> seconds [BLOCK, n]`` of the tasks from block * BLOCK on; a block with fewer rows is the last one."""

BLOCK = 256  # number of tasks of each worker that are looked up at a time
_CACHED_BLOCKS = 16


def from_model(arrival_seconds: Callable[[jax.Array], jax.Array]) -> Durations:
    """Takes the durations from an arrival model: each worker's c-th task lasts as long as the model says for step c.

    Args:
      arrival_seconds: ``step -> seconds [n]``, pure: an arrival model with its key and number of workers.

    >>> from_model(lambda step: jnp.full(2, 1 + step))(0)[:2]
    array([[1., 1.],
           [2., 2.]])
    """
    many = jax.jit(jax.vmap(arrival_seconds))
    # Slow workers are several blocks behind fast ones, so more than one block is in use.
    return functools.lru_cache(_CACHED_BLOCKS)(
        lambda block: np.asarray(many(jnp.arange(BLOCK) + block * BLOCK), np.float64)
    )


def _of_worker(durations: Durations, worker: int) -> Iterator[float]:
    """Yields the seconds of one worker's tasks.

    Raises:
      ValueError: at a duration that is not positive and finite, and after the last one.
    """
    task = 0
    while True:
        column = durations(task // BLOCK)[task % BLOCK :, worker]
        if not len(column):
            raise ValueError(f"seconds: ends before task {task} of worker {worker}")
        wrong = np.flatnonzero(~(np.isfinite(column) & (column > 0)))
        if len(wrong):
            value = column[wrong[0]]
            raise ValueError(f"seconds[{task + wrong[0]}, {worker}]={value}: must be in (0, inf)")
        yield from column.tolist()
        task += len(column)


# ---- who arrives next ----------------------------------------------------------------------------------------------


class Source:
    """Decides which worker arrives next, given the tasks that have begun; ``order`` asks it.

    Attributes:
      events_per_piece: the largest number of events that ``order`` collects before it yields them.
    """

    events_per_piece: int = 1 << 16

    def start(self, num_workers: int) -> None:
        """Goes back to second 0.

        Raises:
          ValueError: if it has another number of workers.
        """

    def begin(self, worker: int, *, now: float, batch_index: int) -> None:
        """Notes that a worker has read the parameters, and begins a task."""

    def next(self) -> tuple[float, int]:
        """Returns the second of the next arrival, and the worker."""
        raise NotImplementedError


class _Simulated(Source):
    """Arrivals computed from durations."""

    def __init__(self, durations: Durations):
        self._durations = durations

    def start(self, num_workers: int) -> None:
        if (found := self._durations(0).shape[1:]) != (num_workers,) or not num_workers:
            raise ValueError(f"seconds: of {found} workers, must be ({num_workers},)")
        self._seconds_of = [_of_worker(self._durations, worker) for worker in range(num_workers)]
        self._ends: list[tuple[float, int]] = []  # (second, worker) of the current tasks

    def begin(self, worker: int, *, now: float, batch_index: int) -> None:
        heapq.heappush(self._ends, (now + next(self._seconds_of[worker]), worker))

    def next(self) -> tuple[float, int]:
        return heapq.heappop(self._ends)


class Recorded(Source):
    """Arrivals in a recorded order.

    Args:
      worker: [E], the worker that arrives.
      seconds: [E], the time of arrival, ascending.
      where: origin of the order, for errors.

    >>> recorded = Recorded([1, 0, 1], [0.5, 2.0, 2.5])
    >>> ((events, _),) = order(recorded, num_workers=2, num_events=3)
    >>> events.staleness, events.batch_index
    (array([0, 1, 1]), array([1, 0, 2]))
    """

    def __init__(self, worker: Sequence[int], seconds: Sequence[float], *, where: str = "order"):
        self.worker = list(worker)
        self.seconds = list(seconds)
        self._where = where

    def start(self, num_workers: int) -> None:
        if self.worker and not 0 <= min(self.worker) <= max(self.worker) < num_workers:
            raise ValueError(f"{self._where}: has workers {min(self.worker)} to {max(self.worker)}, of {num_workers}")
        self._num_taken = 0

    @property
    def is_over(self) -> bool:
        """Whether all arrivals since ``start`` have been returned."""
        return self._num_taken == len(self.worker)

    def next(self) -> tuple[float, int]:
        if self.is_over:
            raise ValueError(f"{self._where}: ends after {self._num_taken} gradients, before the run does")
        self._num_taken += 1
        return self.seconds[self._num_taken - 1], self.worker[self._num_taken - 1]


def read_order(path: str) -> Recorded:
    """Reads an order of arrival that a live run wrote, an .npz file with ``worker`` [E] and ``seconds`` [E].

    Raises:
      ValueError: one line, if the file cannot be read, or holds no valid order.
    """
    try:
        with foreign_files.arrays(path) as arrays:
            worker = np.asarray(arrays["worker"])
            seconds = np.asarray(arrays["seconds"], np.float64)
    except FileNotFoundError:
        raise ValueError(f"order={path!r}: no such file") from None
    except Exception as error:  # zipfile, zlib and NumPy raise many classes for a damaged archive
        raise ValueError(f"order={path!r}: is no order of arrival: {' '.join(str(error).split())}") from None
    fits = worker.ndim == 1 and worker.dtype.kind in "iu" and worker.shape == seconds.shape
    if not fits or not np.isfinite(seconds).all() or (np.diff(seconds, prepend=0.0) < 0).any():
        raise ValueError(f"order={path!r}: must be worker [E] and seconds [E], which grow")
    return Recorded(worker.tolist(), seconds.tolist(), where=f"order={path!r}")


# ---- the order -----------------------------------------------------------------------------------------------------


class Reads(NamedTuple):
    """Reads of the parameters after second 0, in order.

    The number of a read, counted from those at second 0, is the batch_index of the task that begins with it.
    """

    worker: np.ndarray  # [R] int32
    event: np.ndarray  # [R] int64, number of gradients that had arrived before
    seconds: np.ndarray  # [R] float64


class Events(NamedTuple):
    """Arrivals of gradients at the server, in order."""

    worker: np.ndarray  # [E] int32
    task: np.ndarray  # [E] int64, number of tasks that this worker finished before
    batch_index: np.ndarray  # [E] int64, number of the task's batch: that of its read among all reads
    read_event: np.ndarray  # [E] int64, number of gradients that had arrived when the task's parameters were read
    read_seconds: np.ndarray  # [E] float64
    seconds: np.ndarray  # [E] float64, time of arrival
    read_version: np.ndarray  # [E] int64, number of updates that the parameters had when read
    version: np.ndarray  # [E] int64, number of updates before the one that this gradient is part of

    @property
    def staleness(self) -> np.ndarray:
        """The number of updates that the gradient misses, [E] int64: ``version`` less ``read_version``."""
        return self.version - self.read_version


def order(
    durations: Durations | Source,
    *,
    num_workers: int,
    num_events: int,
    first_event: int = 0,
    staleness_bound: int | None = None,
    gradients_per_update: int = 1,
    own_batches: bool = False,
    events_per_piece: int | None = None,
) -> Iterator[tuple[Events, Reads]]:
    """Yields the events [first_event, num_events) and the reads that follow them, in pieces.

    At second 0 all workers have read the initial parameters, in the order of their indices. The events before the first
    one are simulated and discarded. Memory grows with the size of a piece, not with the number of events.

    Args:
      durations: the seconds of each task of each worker; or a ``Source``, which decides which worker arrives next.
      num_workers: n.
      num_events: the number of gradients to simulate from the beginning.
      first_event: the number of the first event to yield.
      staleness_bound: s, of stale synchronous parallel: a worker waits if it has finished over s tasks more than the
        slowest. 0 makes rounds, in which all gradients are of the same parameters; with None no worker waits. The bound
        is on tasks; it implies that a gradient misses at most (2 s + 1)(n - 1) updates.
      gradients_per_update: c, of soft synchronisation: the server updates with every c-th gradient; no worker waits.
      own_batches: whether the k-th batch of worker w has the number w + k n, whatever the workers' speeds; else batches
        are numbered in the order in which they are begun.
      events_per_piece: the largest number of events in a piece; None takes that of the source.

    Raises:
      ValueError: if the durations have another number of workers, end, or are not positive; if the bound is below 0.

    >>> durations = from_model(lambda step: jnp.array([1.0, 2.5]))  # worker 1 takes 2.5 times as long
    >>> ((events, _),) = order(durations, num_workers=2, num_events=7)
    >>> events.worker, events.staleness
    (array([0, 0, 1, 0, 0, 0, 1], dtype=int32), array([0, 0, 2, 1, 0, 0, 3]))
    >>> events.batch_index
    array([0, 2, 1, 3, 5, 6, 4])

    Reference: Chen, Pan, Monga, Bengio, Jozefowicz, arXiv 1604.00981, algorithms 1 and 2. The bound is from Ho et al.,
    "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013; the count from Zhang,
    Gupta, Lian, Liu, arXiv 1511.05950. Differs from them in: one server that is never busy, and reads that are never
    torn; Ho's caches are always fresh.
    """
    if staleness_bound is not None and staleness_bound < 0:
        raise ValueError(f"staleness_bound={staleness_bound}: must be in [0, inf) or None")
    source = durations if isinstance(durations, Source) else _Simulated(durations)
    source.start(num_workers)
    for worker in range(num_workers):
        source.begin(worker, now=0.0, batch_index=worker)
    events_per_piece = events_per_piece or source.events_per_piece
    # Lists, because accessing an item of an array takes several times as long.
    task = [0] * num_workers
    batch_index = list(range(num_workers))
    read_event = [0] * num_workers
    read_seconds = [0.0] * num_workers
    num_reads = num_workers
    gate = _Gate(task, bound=staleness_bound)
    arrived: list[tuple] = []
    reads: list[tuple] = []
    for event in range(1, num_events + 1):
        now, worker = source.next()
        if worker in gate.waiting:
            raise ValueError(f"order: event {event - 1} is of worker {worker}, which waits")
        if event > first_event:
            arrived.append((worker, task[worker], batch_index[worker], read_event[worker], read_seconds[worker], now))
        task[worker] += 1
        for reader in gate.readers_after(worker):
            batch = reader + num_workers * task[reader] if own_batches else num_reads
            batch_index[reader] = batch
            read_event[reader] = event
            read_seconds[reader] = now
            source.begin(reader, now=now, batch_index=batch)
            num_reads += 1
            if event > first_event:
                reads.append((reader, event, now))
        if arrived and (len(arrived) == events_per_piece or event == num_events):
            yield (
                _events(arrived, event - len(arrived), gradients_per_update),
                Reads(*_columns(reads, (np.int32, np.int64, float))),
            )
            arrived, reads = [], []


class _Gate:
    """Decides which workers read after an arrival, under a bound on how far a worker may be ahead.

    Attributes:
      waiting: workers that have finished a task and may not read yet.
    """

    def __init__(self, finished: list[int], *, bound: int | None):
        self.waiting: set[int] = set()
        self._finished = finished  # tasks of each worker; the caller counts them
        self._bound = bound
        self._slowest = min(finished)

    def readers_after(self, worker: int) -> list[int]:
        """Returns the workers that may read now, in order, of those that wait and ``worker``, which finished a task."""
        if self._bound is None:
            return [worker]
        may_read = [worker]
        if self._finished[worker] - 1 == self._slowest < min(self._finished):
            self._slowest = min(self._finished)
            may_read = sorted([*self.waiting, worker])
        readers = [w for w in may_read if self._finished[w] - self._slowest <= self._bound]
        self.waiting.add(worker)
        self.waiting.difference_update(readers)
        return readers


def _events(arrived: list[tuple], first_event: int, gradients_per_update: int) -> Events:
    worker, task, batch_index, read_event, read_seconds, seconds = _columns(
        arrived, (np.int32, *[np.int64] * 3, float, float)
    )
    event = np.arange(first_event, first_event + len(arrived))
    version = event // gradients_per_update
    read_version = read_event // gradients_per_update
    return Events(worker, task, batch_index, read_event, read_seconds, seconds, read_version, version)


def _columns(rows: list[tuple], dtypes: Sequence[type]) -> list[np.ndarray]:
    return [np.fromiter((row[i] for row in rows), dtype, len(rows)) for i, dtype in enumerate(dtypes)]
