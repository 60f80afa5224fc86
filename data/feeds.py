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
from data.sources import Split

Feed = dict[str, np.ndarray]
Placement = Literal["auto", "device", "stream"]


class HasDraw(Protocol):
    """What a feed can be made for."""

    @property
    def draw(self) -> np.ndarray:
        """[W] int64, the draw of each worker; -1 where it needs none."""


Turn = TypeVar("Turn", bound=HasDraw)

MAX_RESIDENT_BYTES = 256 * 2**20  # "auto": each device holds a copy of a training set up to this size
NUM_DRAW_NUMBERS = 2**32  # draw numbers are folded into keys as uint32


def fetch(resident: Mapping[str, jax.Array], feed: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns one worker's batch, inside the step: gathered from resident data, or what was streamed.

    Args:
      resident: ``Feeds.resident`` as it lies on this worker's device.
      feed: one worker's part of a feed, without the axes [D, L].

    Returns:
      {"image": [B, H, W, C] uint8, "label": [B] int32}
    """
    if "index" not in feed:
        return {"image": feed["image"], "label": feed["label"]}
    return {name: resident[name].at[feed["index"]].get(mode="promise_in_bounds") for name in ("image", "label")}


def resolve_placement(placement: Placement, *, num_bytes: int) -> Literal["device", "stream"]:
    """Returns where a training set of so many bytes lies: "auto" keeps up to 256 MiB on each device.

    Raises:
      ValueError: if it is no placement.
    """
    if placement not in ("auto", "device", "stream"):
        raise ValueError(f"data.placement={placement!r}: must be one of auto, device, stream")
    if placement == "auto":
        return "device" if num_bytes <= MAX_RESIDENT_BYTES else "stream"
    return placement


class Feeds:
    """The feed of every turn, for workers laid out as [D devices, L lanes]; worker w is lane w % L of device w // L.

    Which draw each worker takes is told by the turns. Either placement gives the same bits.

    Attributes:
      placement: "device" or "stream", never "auto".
      resident: {"image", "label"} for each device to hold, or {} when streaming.
      waited_seconds: time that the consumer of ``follow`` has spent waiting for feeds or making them, so far.
    """

    def __init__(
        self, split: Split, draws: Draws, *, layout: tuple[int, int], placement: Placement = "auto", depth: int = 4
    ):
        """Makes the feeds; nothing runs until ``follow``.

        Args:
          split: the training examples.
          draws: their order.
          layout: (D, L).
          placement: "device" sends indices to data that lies there, "stream" sends batches; "auto" is "device" for
            images of up to 256 MiB.
          depth: streamed batches that are made ahead, at least 1.

        Raises:
          ValueError: if a value is not allowed, or the draws are of another number of examples.
        """
        if min(layout) < 1 or depth < 1:
            raise ValueError(f"layout={layout}, depth={depth}: must be at least 1")
        if draws.num_examples != len(split.labels):
            raise ValueError(f"num_examples={draws.num_examples}: the split has {len(split.labels)}")
        self.placement = resolve_placement(placement, num_bytes=split.images.nbytes)
        self.resident = {"image": split.images, "label": split.labels} if self.placement == "device" else {}
        self.waited_seconds = 0.0
        self._depth = depth
        self._make = functools.partial(make_feed, draws=draws, layout=layout)
        if self.placement == "stream":
            self._make = functools.partial(make_feed, draws=draws, layout=layout, split=split)
        self._prefetch: _Prefetch | None = None

    def at(self, draw: np.ndarray) -> Feed:
        """Returns the feed of these draws, made here and now: a pure function of them.

        Args:
          draw: [W] int64, of each worker; -1 where it needs none.

        Returns:
          {"draw": [D, L] uint32, "index": [D, L, B] int32} when resident;
          {"draw": [D, L] uint32, "image": [D, L, B, H, W, C] uint8, "label": [D, L, B] int32} when streamed.
        """
        return self._make(draw)

    def follow(self, turns: Iterable[Turn]) -> Generator[tuple[Turn, Feed], None, None]:
        """Yields each turn with its feed, in order.

        Streamed feeds are made ahead by a thread, which ends with ``close``, with this iterator, or when the next one
        starts. What goes wrong in the thread is raised here.
        """
        self.close()
        prefetch: _Prefetch | None = None
        made: Iterator[tuple[Turn, Feed]] = _each(self._make, turns)
        if self.placement == "stream":
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


def make_feed(draw: np.ndarray, *, draws: Draws, layout: tuple[int, int], split: Split | None = None) -> Feed:
    """Returns the feed of draws [W]: indices, or the examples themselves where a split is given."""
    rows = np.zeros((len(draw), draws.batch_size), np.int32)
    given = np.flatnonzero(draw >= 0)
    breaks = np.flatnonzero(np.diff(draw[given]) != 1) + 1
    for run in np.split(given, breaks):  # consecutive draws are looked up at once
        rows[run] = draws.indices(int(draw[run[0]]), num_draws=len(run))
    index = rows.reshape(*layout, -1)  # [D, L, B]
    feed = {"draw": (draw % NUM_DRAW_NUMBERS).astype(np.uint32).reshape(layout)}
    if split is None:
        return {**feed, "index": index}
    return {**feed, "image": split.images[index], "label": split.labels[index]}


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
