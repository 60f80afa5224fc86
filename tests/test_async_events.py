"""The order of asynchronous runs: against sums of durations, closed forms, and hand-made traces."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import asynchronous
from asynchronous.events import BLOCK
from tests.async_toy import from_table

LAWS = {
    "constant": lambda rng, shape: np.ones(shape),
    "exponential": lambda rng, shape: rng.exponential(1.0, shape),
    "lognormal": lambda rng, shape: rng.lognormal(0.0, 0.5, shape),
    "pareto": lambda rng, shape: 1 + rng.pareto(2.0, shape),
    "slow workers": lambda rng, shape: rng.lognormal(0.0, 0.1, shape) * np.linspace(1, 5, shape[1]),
    "outliers": lambda rng, shape: np.where(rng.random(shape) < 0.01, 30.0, 1.5) + 0.1 * rng.random(shape),
}


def durations_of(law, *, num_workers):
    return functools.lru_cache(None)(lambda block: LAWS[law](np.random.default_rng([0, block]), (BLOCK, num_workers)))


def run(durations, *, num_workers, num_events, **options):
    """All events and reads of a run."""
    pieces = list(asynchronous.order(durations, num_workers=num_workers, num_events=num_events, **options))
    events, reads = zip(*pieces, strict=True)
    return tuple(type(parts[0])(*map(np.concatenate, zip(*parts, strict=True))) for parts in (events, reads))


# ---- the order ---------------------------------------------------------------------------------------------------


def by_hand(durations, *, num_workers, num_events, bound, count):
    """The server, slowly: looks at every worker at every moment."""
    arrives = [durations(0)[0, w] for w in range(num_workers)]
    done = [0] * num_workers
    read = [0] * num_workers
    batch_index = list(range(num_workers))
    num_reads, rows = num_workers, []
    for event in range(num_events):
        worker = min(range(num_workers), key=lambda w: (arrives[w], w))
        now = arrives[worker]
        rows.append((worker, batch_index[worker], read[worker] // count, event // count, now))
        done[worker] += 1
        arrives[worker] = math.inf
        for w in range(num_workers):
            if arrives[w] == math.inf and (bound is None or done[w] - min(done) <= bound):
                arrives[w] = now + durations(done[w] // BLOCK)[done[w] % BLOCK, w]
                read[w], batch_index[w] = event + 1, num_reads
                num_reads += 1
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bound", [None, 0, 1, 3])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_order_is_that_of_the_slow_server(law, bound, count):
    durations = durations_of(law, num_workers=5)
    expected = by_hand(durations, num_workers=5, num_events=900, bound=bound, count=count)
    events, _ = run(durations, num_workers=5, num_events=900, staleness_bound=bound, gradients_per_update=count)
    found = (events.worker, events.batch_index, events.read_version, events.version, events.seconds)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_slow_server_rejects_another_bound():
    durations = durations_of("slow workers", num_workers=5)
    expected = by_hand(durations, num_workers=5, num_events=900, bound=1, count=1)
    events, _ = run(durations, num_workers=5, num_events=900, staleness_bound=2)
    assert not np.array_equal(events.worker, expected[0])


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_an_order_goes_on_from_any_event(bound):
    durations = durations_of("lognormal", num_workers=6)
    whole = run(durations, num_workers=6, num_events=400, staleness_bound=bound)
    options = {"num_workers": 6, "num_events": 400, "staleness_bound": bound, "events_per_piece": 37}
    pieces = run(durations, **options)
    later = run(durations, **options, first_event=211)
    reads_before = (whole[1].event <= 211).sum()
    for table, (one, two, three) in enumerate(zip(whole, pieces, later, strict=True)):
        for a, b, c in zip(one, two, three, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a[[211, reads_before][table] :], c)


def test_batches_are_numbered_by_reads_and_each_comes_once():
    durations = durations_of("exponential", num_workers=5)
    events, reads = run(durations, num_workers=5, num_events=500)
    assert len(set(events.batch_index)) == 500 and events.batch_index.max() < 505
    later = events.batch_index >= 5  # the first five are of the start
    np.testing.assert_array_equal(reads.worker[events.batch_index[later] - 5], events.worker[later])
    np.testing.assert_array_equal(reads.event[events.batch_index[later] - 5], events.read_event[later])
    alone, _ = run(durations_of("exponential", num_workers=1), num_workers=1, num_events=300)
    np.testing.assert_array_equal(alone.batch_index, np.arange(300))


# ---- what is known of staleness ----------------------------------------------------------------------------------


def test_an_event_on_a_hand_made_trace():
    table = from_table(np.array([[1.0, 3.0, 10.0]] * 15))
    events, _ = run(table, num_workers=3, num_events=14)
    assert events.worker.tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 2]
    assert events.staleness.tolist() == [0, 0, 0, 3, 1, 0, 0, 3, 1, 0, 0, 3, 1, 13]


# ---- durations ---------------------------------------------------------------------------------------------------


def test_durations_of_an_arrival_model():
    def arrival_seconds(step):
        return 1 + jax.random.exponential(jax.random.fold_in(jax.random.key(3), step), (4,))

    durations = asynchronous.from_model(arrival_seconds)
    np.testing.assert_allclose(durations(1)[5], arrival_seconds(jnp.array(BLOCK + 5)), rtol=1e-6)
    events, _ = run(durations, num_workers=4, num_events=2000)
    assert abs(events.staleness.mean() - 3) < 0.1


@pytest.mark.parametrize(
    ("table", "num_workers", "message"),
    [
        (np.ones((5, 2)), 2, "ends before task 5 of worker 0"),
        (np.ones((5, 2)), 3, r"of \(2,\) workers, must be \(3,\)"),
        (np.array([[1.0, 1.0], [1.0, 0.0]]), 2, r"seconds\[1, 1\]=0.0: must be in \(0, inf\)"),
        (np.array([[1.0, np.nan]]), 2, r"seconds\[0, 1\]=nan"),
        (np.array([[np.inf, 1.0]]), 2, r"seconds\[0, 0\]=inf"),
        (np.ones(5), 1, r"of \(\) workers, must be \(1,\)"),
    ],
)
def test_refused_durations(table, num_workers, message):
    with pytest.raises(ValueError, match=message):
        run(from_table(table), num_workers=num_workers, num_events=20)


def test_a_bound_below_0_is_refused():
    with pytest.raises(ValueError, match="staleness_bound=-1"):
        run(durations_of("constant", num_workers=2), num_workers=2, num_events=4, staleness_bound=-1)


# ---- waves -------------------------------------------------------------------------------------------------------


def cut(law="exponential", *, bound=None, count=1, first_event=0, **options):
    order = asynchronous.order(
        durations_of(law, num_workers=9),
        num_workers=9,
        num_events=700,
        first_event=first_event,
        staleness_bound=bound,
        gradients_per_update=count,
    )
    return list(asynchronous.waves(order, num_workers=9, first_event=first_event, **options))


def dependencies_within(waves):
    """Gradients of parameters that were read after their wave began."""
    return sum(int((wave.events.read_event > wave.first_event).sum()) for wave in waves)


@pytest.mark.parametrize("bound", [None, 0, 2])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("law", ["constant", "exponential", "slow workers"])
def test_waves_hold_every_event_once_and_nothing_that_depends(law, bound, count):
    waves = cut(law, bound=bound, count=count)
    assert np.concatenate([wave.events.worker for wave in waves]).size == 700
    assert [wave.next_event for wave in waves[:-1]] == [wave.first_event for wave in waves[1:]]
    assert dependencies_within(waves) == 0
    for wave, after in itertools.pairwise(waves):  # none could be longer
        assert after.events.read_event[0] > wave.first_event
        assert len(set(wave.events.worker)) == len(wave.events.worker)
    for wave in waves:
        slots = wave.slots
        np.testing.assert_array_equal(slots.position[wave.events.worker], np.arange(len(wave.events.worker)))
        np.testing.assert_array_equal(slots.staleness[wave.events.worker], wave.events.staleness)
        np.testing.assert_array_equal(slots.batch_index[wave.events.worker], wave.events.batch_index)
        assert (slots.position >= 0).sum() == len(wave.events.worker)
    # Each read follows the gradient that the read's own gradient says it follows.
    read_at = np.zeros(9, int)
    for wave in waves:
        np.testing.assert_array_equal(read_at[wave.events.worker], wave.events.read_event)
        reads = wave.slots.reads_after
        read_at = np.where(reads > 0, wave.first_event + reads, read_at)


def test_dependencies_are_found_where_waves_are_too_long():
    waves = cut()
    joined = waves[3]._replace(
        events=type(waves[3].events)(*(np.concatenate(c) for c in zip(waves[3].events, waves[4].events, strict=True)))
    )
    assert dependencies_within([joined]) > 0


def test_stops():
    assert {len(wave.events.worker) for wave in cut(stops=(1,))} == {1}
    waves = cut("constant", stops=(10, 25), first_event=3)
    starts = {wave.first_event for wave in waves}
    assert set(range(10, 700, 10)) | set(range(25, 700, 25)) <= starts
    assert waves[0].first_event == 3 and max(len(wave.events.worker) for wave in waves) <= 9
