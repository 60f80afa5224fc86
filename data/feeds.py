"""From draws to what each turn is fed: indices into data on the device, or batches gathered ahead by a thread."""

import functools
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeVar

import jax
import numpy as np

from data.draws import Draws
from data.examples import Arrays, Columns, Examples, gather

Feed = dict[str, Any]


class HasDraw(Protocol):
    """What a feed can be made for."""

    @property
    def draw(self) -> np.ndarray:
        """[W] int64, the draw of each worker, or [k, W] of k turns at once; -1 where it needs none."""


Turn = TypeVar("Turn", bound=HasDraw)

NUM_DRAW_NUMBERS = 2**32  # draw numbers are folded into keys as uint32


def fetch(resident: Mapping[str, jax.Array], feed: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns one worker's batch, inside the step: gathered from resident data, or what was streamed.

    Args:
      resident: ``Feeds.resident`` as it lies on this worker's device.
      feed: one worker's part of a feed, without the axes [D, L].

    Returns:
      name -> [B, ...], as the examples are stored
    """
    if "index" not in feed:
        return dict(feed["batch"])
    return {name: column.at[feed["index"]].get(mode="promise_in_bounds") for name, column in resident.items()}


class Feeds:
    """The feed of every turn, for workers laid out as [D devices, L lanes]; worker w is lane w % L of device w // L.

    Which draw each worker takes is told by the turns. Either placement gives the same bits.

    Attributes:
      resident: columns for each device to hold, or {} when streaming.
      waited_seconds: time that the consumer of ``follow`` has spent waiting for feeds or making them, so far.
    """

    def __init__(
        self,
        examples: Examples,
        draws: Draws,
        *,
        layout: tuple[int, int],
        workers: slice = slice(None),
        placement: Literal["device", "stream"] = "device",
        depth: int = 4,
        turns_each: int = 1,
    ):
        """Makes the feeds; nothing runs until ``follow``.

        Args:
          examples: the training examples.
          draws: their order.
          layout: (D, L).
          workers: those that are fed here, in order; the others' batches are made elsewhere.
          placement: "device" sends indices to data that lie there, which must be ``Arrays``; "stream" sends batches.
          depth: turns whose batches are streamed ahead, at least 1.
          turns_each: that are fed at once; one such feed is always made ahead.

        Raises:
          ValueError: if a value is not allowed, or the draws are of another number of examples.
        """
        if min(layout) < 1 or depth < 1:
            raise ValueError(f"layout={layout}, depth={depth}: must be at least 1")
        if draws.num_examples != examples.num_examples:
            raise ValueError(f"num_examples={draws.num_examples}: there are {examples.num_examples}")
        self.resident: Columns = {}
        self.waited_seconds = 0.0
        self._depth, self._workers = max(1, depth // turns_each), workers
        self._make = functools.partial(make_feed, draws=draws, layout=layout)
        self._streams = placement == "stream"
        if self._streams:
            self._make = functools.partial(make_feed, draws=draws, layout=layout, examples=examples)
        elif isinstance(examples, Arrays):
            self.resident = examples.columns
        else:
            raise ValueError(
                f"data.placement={placement!r}: these examples are read as they are needed; allowed: stream"
            )
        self._prefetch: _Prefetch | None = None

    def at(self, draw: np.ndarray) -> Feed:
        """Returns the feed of these draws, made here and now: a pure function of them.

        Args:
          draw: int64, of each worker that is fed anywhere; -1 where it needs none; of one turn, or [k, W] of several.

        Returns:
          {"draw": [D, L] uint32, "index": [D, L, B] int32} when resident;
          {"draw": [D, L] uint32, "batch": {name: [D, L, B, ...]}} when streamed; of several turns [D, k, L, ...].
        """
        return self._make(draw[..., self._workers])

    def follow(self, turns: Iterable[Turn]) -> Generator[tuple[Turn, Feed], None, None]:
        """Yields each turn with its feed, in order.

        Streamed feeds are made ahead by a thread, which ends with ``close``, with this iterator, or when the next one
        starts. What goes wrong in the thread is raised here.
        """
        self.close()
        prefetch: _Prefetch | None = None
        made: Iterator[tuple[Turn, Feed]] = _each(self.at, turns)
        if self._streams:
            made = prefetch = self._prefetch = _Prefetch(made, depth=self._depth)
        try:
            while True:
                start = time.perf_counter()
                item = next(made, None)
                self.waited_seconds += time.perf_counter() - start
                if item is None:
                    return
                yield item
        finally:
            if prefetch:
                prefetch.close()

    def close(self) -> None:
        """Ends the thread, if there is one; at most one batch is still gathered."""
        if self._prefetch:
            self._prefetch.close()
            self._prefetch = None

    def __enter__(self) -> "Feeds":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def make_feed(draw: np.ndarray, *, draws: Draws, layout: tuple[int, int], examples: Examples | None = None) -> Feed:
    """Returns the feed of draws [W] or [k, W]: indices, or the batches themselves where the examples are given."""
    draw = np.moveaxis(draw.reshape(*draw.shape[:-1], *layout), -2, 0)  # [D, L] or [D, k, L]
    shape, draw = draw.shape, draw.reshape(-1)
    index = np.zeros((len(draw), draws.batch_size), np.int32)
    given = np.flatnonzero(draw >= 0)
    breaks = np.flatnonzero(np.diff(draw[given]) != 1) + 1
    for run in np.split(given, breaks):  # consecutive draws are looked up at once
        index[run] = draws.indices(int(draw[run[0]]), num_draws=len(run))
    feed = {"draw": (draw % NUM_DRAW_NUMBERS).astype(np.uint32).reshape(shape)}
    if examples is None:
        return {**feed, "index": index.reshape(*shape, -1)}
    batch = gather(examples, index, draw)
    return {**feed, "batch": {name: part.reshape(*shape, *part.shape[1:]) for name, part in batch.items()}}


def _each(make: Callable[[np.ndarray], Feed], turns: Iterable[Turn]) -> Iterator[tuple[Turn, Feed]]:
    return ((turn, make(turn.draw)) for turn in turns)


class _Prefetch:
    """A thread that takes from an iterator, at most ``depth`` ahead of who takes from this one."""

    def __init__(self, items: Iterator[Any], *, depth: int):
        self._ready: queue.Queue[Any] = queue.Queue(depth)
        self._stop = threading.Event()
        # The thread must not hold this object, or a forgotten one would live for ever.
        arguments = (items, self._ready, self._stop)
        self._thread = threading.Thread(target=_work, args=arguments, name="data feeds", daemon=True)
        self._thread.start()

    def __iter__(self) -> "_Prefetch":
        return self

    def __next__(self) -> Any:
        """Returns the next item; waits for it if need be."""
        if self._stop.is_set():
            raise RuntimeError("these feeds are closed")
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._stop.set()
        while True:  # make room: the thread may be waiting for it, and looks at the event before it puts again
            try:
                self._ready.get_nowait()
            except queue.Empty:
                break
        self._thread.join()


def _work(items: Iterator[Any], ready: queue.Queue, stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            ready.put(next(items))
    except BaseException as end:  # whatever it is, StopIteration too, it belongs to the consumer
        ready.put(end)
