"""The input of each device call: indices into resident data, or batches that a thread gathers ahead."""

import collections
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np

from data.example_order import ExampleOrder
from data.examples import Arrays, Columns, Examples, ReadError, gather
from data.iterators import Batches
from data.shares import OwnExamples

Feed = dict[str, Any]

BATCH_INDEX_MODULUS = 2**32  # devices fold batch indices into random keys as uint32

_LATE_SECONDS = 1.0  # while waiting for a batch, check this often whether the run is to stop
_LAST_BATCH_SECONDS = 5.0  # time for a closed reader to finish its batch


Plan = TypeVar("Plan", bound=Any)
"""The plan of one device call. Its ``batch_index`` is [k, W] int64: each worker's batch in each step of the call; -1
where a worker needs no batch."""


def fetch(resident: Mapping[str, jax.Array], feed: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns one worker's batch; called inside the step.

    Args:
      resident: ``Feeds.resident`` on this worker's device, or {} if batches are streamed.
      feed: One worker's part of a feed, without the axes [D, k, L].

    Returns:
      name -> [B, ...], as the examples are stored.
    """
    if "index" not in feed:
        return dict(feed["batch"])
    return {name: column.at[feed["index"]].get(mode="promise_in_bounds") for name, column in resident.items()}


class NumbersAlone(NamedTuple):
    """Feeds for workers in other processes that read their batches themselves: batch indices without examples.

    Attributes:
      resident: {}, since no example is on a device.
      waited_seconds: 0.
    """

    resident: Mapping[str, np.ndarray] = {}
    waited_seconds: float = 0.0

    def follow(self, plans: Iterable[Plan], *, is_to_stop: Any = None) -> Iterator[tuple[Plan, Feed]]:
        """Yields each plan with {"batch_index": [k, W]}, in order."""
        return ((plan, {"batch_index": plan.batch_index}) for plan in plans)


class _Reader:
    """A thread that makes feeds one after another. It is a daemon, so that a hanging read keeps no process alive."""

    def __init__(self, make: Callable[[np.ndarray], Feed]):
        self._make, self._is_closed = make, False
        self._asked: queue.SimpleQueue[tuple[futures.Future[Feed], np.ndarray] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="data feeds", daemon=True)
        self._thread.start()

    def submit(self, batch_index: np.ndarray) -> futures.Future[Feed]:
        feed: futures.Future[Feed] = futures.Future()
        self._asked.put((feed, batch_index))
        return feed

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None and not self._is_closed:
            feed, batch_index = asked
            try:
                feed.set_result(self._make(batch_index))
            except BaseException as error:
                feed.set_exception(error)

    def close(self) -> None:
        self._is_closed = True
        self._asked.put(None)
        self._thread.join(_LAST_BATCH_SECONDS)


class Feeds(contextlib.AbstractContextManager["Feeds"]):
    """Makes the feed of each plan, for workers laid out as [D devices, L lanes].

    Worker w is lane w % L of device w // L. The plans say which batch each worker gets; both placements give the same
    bits.

    Attributes:
      resident: Columns that each device holds; {} if batches are streamed.
      waited_seconds: Time that the consumer of ``follow`` has spent waiting for feeds or making them.
    """

    def __init__(
        self,
        examples: Examples | Batches,
        order: ExampleOrder | OwnExamples,
        *,
        layout: tuple[int, int],
        workers: slice = slice(None),
        placement: Literal["device", "stream"] = "device",
        depth: int = 4,
        steps_per_call: int = 1,
    ):
        """Prepares the feeds; no thread starts before ``follow``.

        Args:
          examples: The training examples; those of ``Batches`` are taken in order, as feeds are made.
          order: Gives the indices of the examples of each batch.
          layout: (D, L).
          workers: The workers that this process feeds; other processes make the batches of the others.
          placement: "device" sends indices into resident data, which must be ``Arrays``; "stream" sends batches.
          depth: Number of steps whose batches are streamed ahead; at least 1.
          steps_per_call: Steps of one device call. At least one call is streamed ahead.

        Raises:
          ValueError: If placement is "device" and the examples are not ``Arrays``.
        """
        if isinstance(order, OwnExamples) and not isinstance(examples, Batches):
            examples = order.as_labelled(examples)
        self.resident: Columns = {}
        if placement == "device":
            if not isinstance(examples, Arrays):
                raise ValueError("data.placement='device': these examples are read as they are needed; allowed: stream")
            self.resident = examples.columns
        self.waited_seconds = 0.0
        self._order = order
        self._layout = layout
        self._workers = workers
        self._streamed = examples if placement == "stream" else None
        self._depth = max(1, depth // steps_per_call)
        self._reader: _Reader | None = None

    def at(self, batch_index: np.ndarray) -> Feed:
        """Returns the feed of these batches, a pure function of their indices unless the examples are ``Batches``.

        Args:
          batch_index: [k, W] int64, for each step of a call and every worker of the run; -1 where a worker needs no
            batch.

        Returns:
          {"batch_index": [D, k, L] uint32, "index": [D, k, L, B] int32} for resident data, or
          {"batch_index": [D, k, L] uint32, "batch": {name: [D, k, L, B, ...]}} for streamed data; if the order weighs
          workers, also "share", [D, k, L] float32, what each worker weighs.
        """
        own = batch_index[:, self._workers]
        own = np.moveaxis(own.reshape(len(own), *self._layout), 1, 0)
        shape = own.shape  # [D, k, L]
        own = own.reshape(-1)
        feed: Feed = {"batch_index": (own % BATCH_INDEX_MODULUS).astype(np.uint32).reshape(shape)}
        if isinstance(self._streamed, Batches):
            feed["batch"] = self._taken(self._streamed, num_steps=len(batch_index))
            return feed
        index = np.zeros((len(own), self._order.batch_size), np.int32)
        needed = np.flatnonzero(own >= 0)
        breaks = np.flatnonzero(np.diff(own[needed]) != 1) + 1
        for run in filter(len, np.split(needed, breaks)):  # one lookup for each run of consecutive batches
            index[run] = self._order.indices(int(own[run[0]]), num_batches=len(run))
        if isinstance(self._order, OwnExamples) and (weights := self._order.weights) is not None:
            feed["share"] = weights[own % len(weights)].reshape(shape)
        if self._streamed is None:
            feed["index"] = index.reshape(*shape, -1)
        else:
            batch = gather(self._streamed, index, own)
            feed["batch"] = {name: part.reshape(*shape, *part.shape[1:]) for name, part in batch.items()}
        return feed

    def _taken(self, batches: Batches, *, num_steps: int) -> Columns:
        """Returns the batches of the next steps of a call, name -> [D, k, L, B, ...]."""
        try:
            steps = [batches.take() for _ in range(num_steps)]
        except (ValueError, OSError) as error:
            raise ReadError(str(error)) from error
        devices, lanes = self._layout
        of_workers = {name: np.stack([step[name] for step in steps], 0) for name in steps[0]}
        return {
            name: np.moveaxis(x.reshape(num_steps, devices, lanes, self._order.batch_size, *x.shape[2:]), 1, 0)
            for name, x in of_workers.items()
        }

    def follow(
        self, plans: Iterable[Plan], *, is_to_stop: Callable[[], bool] = lambda: False
    ) -> Generator[tuple[Plan, Feed], None, None]:
        """Yields each plan with its feed, in order.

        A thread makes streamed feeds ahead. It ends with ``close``, with this iterator, or when ``follow`` is called
        again. Exceptions of the thread are raised here.

        Args:
          plans: The plan of each call.
          is_to_stop: Called while a streamed feed is late; the iterator ends if it returns True.
        """
        self.close()
        made = ((plan, self.at(plan.batch_index)) for plan in plans)
        fed = made if self._streamed is None else self._prefetched(plans, is_to_stop)
        with contextlib.closing(fed):
            while True:
                start = time.perf_counter()
                item = next(fed, None)
                self.waited_seconds += time.perf_counter() - start
                if item is None:
                    return
                yield item

    def _prefetched(
        self, plans: Iterable[Plan], is_to_stop: Callable[[], bool]
    ) -> Generator[tuple[Plan, Feed], None, None]:
        plans = iter(plans)
        pending: collections.deque[tuple[Plan, futures.Future[Feed]]] = collections.deque()
        reader = self._reader = _Reader(self.at)
        try:
            while True:
                if self._reader is not reader:
                    raise RuntimeError("these feeds are closed")
                for plan in itertools.islice(plans, self._depth + 1 - len(pending)):
                    pending.append((plan, reader.submit(plan.batch_index)))
                if not pending:
                    return
                plan, feed = pending.popleft()
                while not futures.wait([feed], timeout=_LATE_SECONDS).done:
                    if is_to_stop():
                        return
                yield plan, feed.result()
        finally:
            reader.close()

    def close(self) -> None:
        """Ends the thread, if any; leaves it behind if it does not finish its batch in a few seconds."""
        if self._reader:
            self._reader.close()
            self._reader = None

    def __exit__(self, *exception: Any) -> None:
        self.close()
