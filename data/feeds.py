"""From draws to what each step is fed: indices into data on the device, or batches gathered ahead by a thread."""

import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal

import jax
import numpy as np

from data.draws import Draws
from data.sources import Split

Feed = dict[str, np.ndarray]
Placement = Literal["auto", "device", "stream"]

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
    """The feed of every step, for workers laid out as [D devices, L lanes]; worker w is lane w % L of device w // L.

    Synchronous: worker w draws number ``step * D * L + w`` at each step. Either placement gives the same bits.

    Attributes:
      placement: "device" or "stream", never "auto".
      resident: {"image", "label"} for each device to hold, or {} when streaming.
      waited_seconds: time that the consumer of ``iterate`` has spent waiting for feeds or making them, so far.
    """

    def __init__(
        self, split: Split, draws: Draws, *, layout: tuple[int, int], placement: Placement = "auto", depth: int = 4
    ):
        """Makes the feeds; nothing runs until ``iterate``.

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

    def at(self, step: int) -> Feed:
        """Returns the feed of one step, made here and now: a pure function of the step.

        Returns:
          {"draw": [D, L] uint32, "index": [D, L, B] int32} when resident;
          {"draw": [D, L] uint32, "image": [D, L, B, H, W, C] uint8, "label": [D, L, B] int32} when streamed.
        """
        return self._make(step)

    def iterate(self, first_step: int = 0) -> Generator[Feed, None, None]:
        """Yields the feeds of ``first_step`` and all later steps, without end.

        Streamed feeds are made ahead by a thread, which ends with ``close``, with this iterator, or when the next one
        starts. What goes wrong in the thread is raised here.
        """
        self.close()
        prefetch: _Prefetch | None = None
        make: Callable[[int], Feed] = self._make
        if self.placement == "stream":
            prefetch = self._prefetch = _Prefetch(make, first_step, depth=self._depth)
            make = prefetch.take
        try:
            for step in itertools.count(first_step):
                start = time.perf_counter()
                feed = make(step)
                self.waited_seconds += time.perf_counter() - start
                yield feed
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


def make_feed(step: int, *, draws: Draws, layout: tuple[int, int], split: Split | None = None) -> Feed:
    """Returns one step's feed: indices, or the examples themselves where a split is given."""
    num_workers = layout[0] * layout[1]
    first_draw = step * num_workers
    index = draws.indices(first_draw, num_draws=num_workers).reshape(*layout, -1)  # [D, L, B]
    draw = (np.arange(num_workers, dtype=np.uint64) + first_draw % NUM_DRAW_NUMBERS) % NUM_DRAW_NUMBERS
    feed = {"draw": draw.astype(np.uint32).reshape(layout)}
    if split is None:
        return {**feed, "index": index}
    return {**feed, "image": split.images[index], "label": split.labels[index]}


class _Prefetch:
    """A thread that makes the feeds of consecutive steps, at most ``depth`` ahead of who takes them."""

    def __init__(self, make: Callable[[int], Feed], first_step: int, *, depth: int):
        self._ready: queue.Queue[Feed | BaseException] = queue.Queue(depth)
        self._stop = threading.Event()
        # The thread must not hold this object, or a forgotten one would live for ever.
        arguments = (make, first_step, self._ready, self._stop)
        self._thread = threading.Thread(target=_work, args=arguments, name="data feeds", daemon=True)
        self._thread.start()

    def take(self, step: int) -> Feed:
        """Returns the next feed, which must be that of ``step``; waits for it if need be."""
        del step
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


def _work(make: Callable[[int], Feed], step: int, ready: queue.Queue, stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            ready.put(make(step))
            step += 1
    except BaseException as failure:  # whatever it is, it belongs to the consumer
        ready.put(failure)
