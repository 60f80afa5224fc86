import itertools
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from data.example_order import ExampleOrder
from data.examples import Arrays
from data.feeds import Feeds, fetch

LAYOUTS = [(8, 1), (4, 2), (2, 4), (1, 8)]
NUM_EXAMPLES, BATCH_SIZE = 100, 3


def examples(num_examples=NUM_EXAMPLES) -> Arrays:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_examples, 4, 5, 2), dtype=np.uint8)
    labels = np.arange(num_examples, dtype=np.int32)  # the label tells which example it is
    return Arrays({"image": images, "label": labels})


def order() -> ExampleOrder:
    return ExampleOrder(num_examples=NUM_EXAMPLES, batch_size=BATCH_SIZE, seed=5)


def make(placement, layout=(4, 2), **options) -> Feeds:
    return Feeds(examples(), options.pop("order", order()), layout=layout, placement=placement, **options)


def at(feeds, step, num_workers=8):
    return feeds.at(step * num_workers + np.arange(num_workers)[None])


def iterate(feeds, first=0):
    """The feeds of all steps from the first on, without end."""
    plans = (SimpleNamespace(batch_index=step * 8 + np.arange(8)[None]) for step in itertools.count(first))
    return (feed for _, feed in feeds.follow(plans))


def feeding_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("data feeds")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not feeding_threads()


fetch_all = jax.jit(jax.vmap(jax.vmap(jax.vmap(fetch, (None, 0)), (None, 0)), (None, 0)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_placements_give_the_same_bits_in_the_right_order(layout):
    split = examples()
    with make("device", layout) as device, make("stream", layout) as stream:
        for step, on_device, streamed in zip(range(20), iterate(device), iterate(stream), strict=False):
            batch = fetch_all(device.resident, on_device)
            other = fetch_all({}, streamed)
            assert batch["image"].dtype == np.uint8 and batch["label"].dtype == np.int32
            assert batch["image"].shape == (layout[0], 1, layout[1], BATCH_SIZE, 4, 5, 2)
            expected = order().indices(step * 8, num_batches=8)  # worker w, device w // lanes, has batch step * 8 + w
            for feed in (on_device, streamed):
                np.testing.assert_array_equal(feed["batch_index"].ravel(), step * 8 + np.arange(8))
            for got in (batch, other):
                for name, column in split.columns.items():  # the label tells which example it is
                    np.testing.assert_array_equal(got[name].reshape(8, BATCH_SIZE, *column.shape[1:]), column[expected])


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_starts_anywhere_and_again(placement):
    with make(placement) as feeds:
        for first in (0, 7, 3):
            for step, feed in zip(range(first, first + 3), iterate(feeds, first), strict=False):
                jax.tree.map(np.testing.assert_array_equal, feed, at(feeds, step))
            assert len(feeding_threads()) <= 1


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_a_process_whose_workers_need_no_batch(placement):
    """Another process of the run has the work of this step; its feed has the form of any other."""
    with make(placement, (2, 2), workers=slice(4, 8)) as feeds:
        idle = feeds.at(np.array([[0, 1, -1, 2, -1, -1, -1, -1]]))
        busy = feeds.at(np.array([[0, 1, -1, 2, -1, 3, -1, 4]]))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), idle) == jax.tree.map(lambda x: (x.shape, x.dtype), busy)


def test_batch_indices_wrap():
    with make("device", (2, 2)) as feeds:
        before = at(feeds, 2**30 - 1, 4)
        after = at(feeds, 2**30, 4)
    assert before["batch_index"].ravel().tolist() == [2**32 - 4, 2**32 - 3, 2**32 - 2, 2**32 - 1]
    assert after["batch_index"].ravel().tolist() == [0, 1, 2, 3]
    assert after["batch_index"].dtype == np.uint32
    with make("device", (3, 1)) as feeds:  # inside one feed: 2**32 = 3 * 1431655765 + 1
        assert at(feeds, 1431655765, 3)["batch_index"].ravel().tolist() == [2**32 - 1, 0, 1]
        with pytest.raises(AssertionError):  # the order of examples does not wrap
            np.testing.assert_array_equal(at(feeds, 2**32, 3)["index"], at(feeds, 0, 3)["index"])


class Counted(ExampleOrder):
    """Says how many feeds were made, and fails where it is asked to."""

    def __init__(self, *, fail_at=None):
        super().__init__(num_examples=NUM_EXAMPLES, batch_size=BATCH_SIZE, seed=5)
        self.num_made = 0
        self.fail_at = fail_at
        self.changed = threading.Condition()

    def indices(self, first_batch_index, *, num_batches):
        with self.changed:
            if self.num_made == self.fail_at:
                raise OSError("the disk is gone")
            self.num_made += 1
            self.changed.notify_all()
        return super().indices(first_batch_index, num_batches=num_batches)

    def wait_until_made(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_made >= count, timeout=30)


@pytest.mark.parametrize(("depth", "steps_per_call", "ahead"), [(1, 1, 1), (4, 1, 4), (4, 2, 2), (4, 8, 1)])
def test_works_ahead_within_bounds(depth, steps_per_call, ahead):
    counted = Counted()
    with make("stream", order=counted, depth=depth, steps_per_call=steps_per_call) as feeds:
        for taken, _ in enumerate(itertools.islice(iterate(feeds), 10), start=1):
            counted.wait_until_made(taken + ahead)  # without being asked
            assert counted.num_made <= taken + ahead


@pytest.mark.parametrize("end", ["close", "with", "iterator", "next iterator"])
def test_the_thread_ends_when_the_consumer_stops_early(end):
    counted = Counted()
    feeds = make("stream", order=counted, depth=1)
    iterator = iterate(feeds)
    next(iterator)
    counted.wait_until_made(2)  # the one that was taken, and one ahead
    (thread,) = feeding_threads()
    if end == "close":
        feeds.close()
    elif end == "with":
        with feeds:
            pass
    elif end == "iterator":
        iterator.close()
    else:
        other = iterate(feeds)
        next(other)
        assert len(feeding_threads()) == 1
        feeds.close()
    assert not thread.is_alive()
    if end != "iterator":
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)
    feeds.close()  # a second time does no harm


def test_failure_reaches_the_consumer():
    with make("stream", order=Counted(fail_at=3), depth=2) as feeds:
        iterator = iterate(feeds)
        for _ in range(3):
            next(iterator)
        with pytest.raises(OSError, match="the disk is gone"):
            next(iterator)
        with pytest.raises(StopIteration):  # and again at once, instead of waiting for ever
            next(iterator)


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_waiting_is_measured(placement, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("data.feeds.time.perf_counter", lambda: next(clock))
    with make(placement) as feeds:
        assert feeds.waited_seconds == 0
        list(itertools.islice(iterate(feeds), 5))
        assert feeds.waited_seconds == 5  # one tick for each feed; what the consumer did between them is not counted


class Made:
    """Examples that are made as they are asked for."""

    num_examples = NUM_EXAMPLES

    def gather(self, index, batch_index):
        return {"number": index * 10 + batch_index[:, None]}


def test_what_is_made_on_the_way_is_streamed_with_its_batch_index():
    with pytest.raises(ValueError, match=r"data\.placement='device': these examples are read as they are needed"):
        Feeds(Made(), order(), layout=(2, 2), placement="device")
    with Feeds(Made(), order(), layout=(2, 2), placement="stream") as feeds:
        batch = feeds.at(np.array([[5, 0, 2, 1]]))["batch"]["number"]
    expected = [order().indices(i, num_batches=1)[0] * 10 + i for i in (5, 0, 2, 1)]
    np.testing.assert_array_equal(batch.reshape(4, BATCH_SIZE), expected)
