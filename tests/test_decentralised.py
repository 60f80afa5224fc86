"""Asynchronous SGD without a server: messages by hand, a plain simulator, limits, layouts, exact resume, refusals."""

import functools
import heapq
import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import asynchronous
from asynchronous import messages
from tests.async_toy import from_table
from tests.in_process import keys, train_digits
from tests.stepper import (
    Stepper,
    ask_to_stop,
    checkpoint_of,
    crash,
    digits_setup,
    end_and_go_on,
    largest_difference,
    records,
    same_bits,
    setup_of,
)
from training import dry_run, step_plan
from training.steps.train_step import compute_gradients, make_gradient_function

NUM_EVENTS = 50
SMALL = keys("""
    model.hidden_sizes=(8,) model.dropout_rate=0.0
    optimizer.learning_rate=0.2 optimizer.momentum=None
    ema_decay=None
""")
EXPONENTIAL = keys("arrivals.name=shifted_exponential")
CONSTANT = keys("arrivals.name=constant")
WITHOUT, WITH = ((*SMALL, f"--config.server.name={name}") for name in ("decentralised", "asynchronous"))
LOGNORMAL = "--config.server.latency_seconds={'name':'lognormal','median_seconds':0.5,'sigma':1.0}"
LATE = (*WITHOUT, *EXPONENTIAL, LOGNORMAL)


# ---- messages ----------------------------------------------------------------------------------------------------

# Seconds of a message from each worker, by row, to each other worker.
LATENCY = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 0.5], [0.0, 7.0, 0.0]])


def scripted():
    """Workers 0, 1 and 2, whose tasks take 2, 3 and 5 seconds."""
    return asynchronous.exchange(
        from_table(np.tile([2.0, 3.0, 5.0], (9, 1))),
        lambda worker, task: LATENCY[worker],
        num_workers=3,
        num_events=10,
    )


def test_messages_worked_out_by_hand():
    ((events, _, received),) = scripted()
    assert events.seconds.tolist() == [2, 3, 4, 5, 6, 6, 8, 9, 10, 10]
    assert events.worker.tolist() == [0, 1, 0, 2, 0, 1, 0, 1, 0, 2]
    expected = {  # update: receiver -> event with which it is received; 10 is after the end
        0: {1: 1, 2: 4},  # at 3 s, the very time of event 1, and at 6 s
        1: {0: 2, 2: 2},  # at 4 s and at 3.5 s
        2: {1: 3, 2: 6},
        3: {0: 3, 1: 10},  # at once, and at 12 s
        4: {1: 6, 2: 8},  # at 7 s and at 10 s
        5: {0: 6, 2: 6},
        6: {1: 7, 2: 10},
        7: {0: 8, 2: 8},
        8: {1: 10, 2: 10},
        9: {0: 9, 1: 10},
    }
    found = {update: {} for update in expected}
    for event, worker, update in zip(*received, strict=True):
        found[int(update)][int(worker)] = int(event)
    assert found == expected
    # Worker 1 began event 7 at 6 s with updates 0, 1, 2 and 5; worker 2 began event 9 at 5 s with 1 and 3.
    assert events.staleness.tolist() == [0, 1, 1, 3, 1, 3, 1, 3, 1, 7]
    assert asynchronous.num_slots(scripted(), num_workers=3) == 3 + 7  # update 3 is under way at the end


def test_mail_of_a_wave_by_hand():
    """Events 4 and 5: worker 2 receives update 0 and computes on; workers 0 and 1 receive nothing."""
    ((events, reads, received),) = scripted()
    waves = {wave.first_event: wave for wave in asynchronous.waves([(events, reads)], num_workers=3)}
    assert [wave.events.worker.tolist() for wave in waves.values()][:4] == [[0, 1], [0, 2], [0, 1], [0, 1]]
    mail = asynchronous.mail(waves[4], received, num_slots=10)
    assert mail.slot.tolist() == [4, 5, 10] and mail.num_before.tolist() == [0, 0, 0]
    assert [row[row >= 0].tolist() for row in mail.inbox] == [[], [], [0]]
    mail = asynchronous.mail(waves[2], received, num_slots=10)  # update 3 reaches worker 0 after event 2, its own
    assert [row[row >= 0].tolist() for row in mail.inbox] == [[1, 3], [2], [1]]
    assert mail.num_before.tolist() == [1, 0, 1]


def test_pieces_change_nothing(monkeypatch):
    def joined(pieces):
        events, _, received = zip(*pieces, strict=True)
        return np.concatenate([e.staleness for e in events]), np.concatenate([np.stack(r) for r in received], axis=1)

    whole = joined(scripted())
    monkeypatch.setattr(messages, "EVENTS_PER_PIECE", 3)
    assert len(list(scripted())) == 4
    for ours, theirs in zip(joined(scripted()), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    known = step_plan.decentralised_waves(0, scripted(), num_slots=10, num_workers=3)
    means = np.concatenate([wave.known["staleness_mean"] for wave in known])
    assert means.tolist() == [0, 1 / 2, 2 / 3, 5 / 4, 6 / 5, 9 / 6, 10 / 7, 13 / 8, 14 / 9, 21 / 10]


def test_a_round_is_a_message_from_each_to_each():
    setup = setup_of(*LATE, train_steps=NUM_EVENTS)
    updates = np.concatenate([received.update for *_, received in setup.mode.exchange()])
    assert np.bincount(updates).tolist() == [7] * NUM_EVENTS
    num_bytes = sum(4 * x.size for x in jax.tree.leaves(setup.worker_shapes.params))
    round_bytes = 8 * 8 * setup.traffic.bytes_per_worker  # of 8 updates, over 8 workers
    assert round_bytes == pytest.approx(8 * 7 * num_bytes)
    assert "(7 send)" in dry_run.describe(setup, num_devices=4, compiled="never")


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_latency_without_sense_is_refused(seconds):
    table = from_table(np.ones((9, 2)))
    with pytest.raises(ValueError, match=r"^latency_seconds: is .* must be in \[0, inf\)$"):
        list(asynchronous.exchange(table, lambda w, _: np.full((len(w), 2), seconds), num_workers=2, num_events=4))


# ---- against a plain simulator -----------------------------------------------------------------------------------


def finish(stepper):
    """Takes all calls that are left; returns the state on the host."""
    while stepper.calls(1):
        pass
    return stepper.host()


@functools.cache
def final(*overrides, num_events=NUM_EVENTS, **options):
    return finish(Stepper(setup_of(*overrides, train_steps=num_events), **{"lanes": "vmap", **options}))


def simulate(setup):
    """Workers, replicas and messages, one gradient at a time, from durations and latencies alone.

    Returns:
      The replicas, what each computes at, the staleness of each gradient, and the replicas after the last message.
    """
    n, start = setup.config.num_workers, setup.init_worker()
    stepper = Stepper(setup, num_devices=1, lanes="vmap")
    function = make_gradient_function(setup)
    resident = jax.tree.map(lambda x: x[0], stepper.resident)

    @jax.jit
    def gradient(snapshot, batch):
        state = start._replace(snapshot=snapshot)
        return compute_gradients(state, batch, resident, gradient=function, augment=setup.source.augment).updates

    def plus(tree, other):
        return jax.tree.map(np.add, tree, other)

    params = jax.tree.map(np.asarray, start.params)
    replicas = [params] * n
    snapshots = [params] * n
    has = [0] * n
    known = [0] * n
    batches, staleness, num_done = list(range(n)), [], [0] * n
    finishing = sorted((float(setup.mode.durations(0)[0, w]), w) for w in range(n))
    under_way = []  # (seconds, number of the update, receiver, update)

    def deliver(until):
        while under_way and under_way[0][0] <= until:
            _, _, receiver, update = heapq.heappop(under_way)
            replicas[receiver], has[receiver] = plus(replicas[receiver], update), has[receiver] + 1

    for k in range(setup.num_steps):
        now, w = heapq.heappop(finishing)
        deliver(now)
        batch = stepper.feeds.at(np.full((1, n), batches[w]))
        g = gradient(snapshots[w], jax.tree.map(lambda x: x[0, 0, 0], batch))
        rate = np.float32(setup.learning_rate(k))
        update = jax.tree.map(lambda x, rate=rate: -rate * np.asarray(x), g)
        replicas[w], has[w] = plus(replicas[w], update), has[w] + 1
        seconds = setup.mode.latencies(np.array([w]), np.array([num_done[w]]))[0]
        for receiver in set(range(n)) - {w}:
            heapq.heappush(under_way, (now + seconds[receiver], k, receiver, update))
        deliver(now)
        staleness.append(k - known[w])
        snapshots[w], known[w], batches[w] = replicas[w], has[w], n + k
        num_done[w] += 1
        heapq.heappush(finishing, (now + float(setup.mode.durations(0)[num_done[w], w]), w))
    stacked = [jax.tree.map(lambda *rows: np.stack(rows), *trees) for trees in (replicas, snapshots)]
    deliver(math.inf)
    return *stacked, staleness, replicas


def test_waves_equal_one_at_a_time():
    setup = setup_of(*LATE, train_steps=NUM_EVENTS)
    replicas, snapshots, staleness, at_rest = simulate(setup)
    found = final(*LATE)
    assert largest_difference(found.replica, replicas) < 1e-6
    assert largest_difference(found.snapshot, snapshots) < 1e-6
    mean = jax.tree.map(lambda x: x.mean(0), replicas)
    assert largest_difference(found.params, mean) < 1e-6
    assert np.concatenate([events.staleness for events in setup.mode.events()]).tolist() == staleness
    assert max(staleness) > 1
    spread = max(np.ptp(x, axis=0).max() for x in jax.tree.leaves(found.replica))
    assert spread > 1e-3  # messages are under way
    # After the last message all replicas are equal.
    *_, (_, _, received) = setup.mode.exchange()
    rest = [np.array(x) for x in jax.tree.leaves(found.replica)]
    for event, worker, update in zip(*received, strict=True):
        for x, kept in zip(rest, jax.tree.leaves(found.server), strict=True):
            x[worker] += kept[update % setup.mode.num_slots] if event == setup.num_steps else 0
    assert max(np.ptp(x, axis=0).max() for x in rest) < 1e-6
    assert largest_difference([x[0] for x in rest], jax.tree.leaves(at_rest[0])) < 1e-6


@pytest.mark.parametrize(
    ("num_devices", "lanes", "lift", "steps_per_call"),
    [
        (4, "dispatched", "shard_map", 1),
        (2, "vmap", "shard_map", 4),
        (1, "dispatched", "pmap", 1),
    ],
)
def test_layouts_agree(num_devices, lanes, lift, steps_per_call):
    options = {"num_devices": num_devices, "lanes": lanes, "steps_per_call": steps_per_call}
    assert largest_difference(final(*LATE, f"--config.mapping={lift}", **options), final(*LATE)) < 1e-6


def spoiling(batch_index):
    """Returns a stepper in which everything that is computed on one batch is NaN."""

    def wrap(compute):
        def spoilt(state, batch, resident):
            mine = compute(state, batch, resident)
            return jax.tree.map(lambda x: jnp.where(batch["batch_index"] == batch_index, jnp.nan, x), mine)

        return spoilt

    return Stepper(setup_of(*LATE, train_steps=NUM_EVENTS), num_devices=2, lanes="vmap", wrap=wrap)


def test_idle_workers_leave_nothing():
    found = finish(spoiling(np.uint32(2**32 - 1)))  # the batch of a worker that has no gradient in the wave
    assert int(found.step) == NUM_EVENTS and largest_difference(found, final(*LATE)) < 1e-6


def test_a_gradient_that_is_not_finite_freezes_all_replicas():
    stepper, before = spoiling(np.uint32(20)), None
    for plan in stepper.setup.plans(0, steps_per_call=1):
        (metrics,) = stepper.call(plan)
        if 20 in plan.batch_index:
            position = plan.inputs["position"][0, list(plan.batch_index[0]).index(20)]
            report = metrics["nonfinite"]
            assert report.is_bad and np.flatnonzero(np.isnan(report.losses)).tolist() == [position]
            break
        before = stepper.host()
    assert 8 < int(before.step) < NUM_EVENTS and same_bits(finish(stepper), before)


# ---- limits ------------------------------------------------------------------------------------------------------


def test_one_worker_is_plain_sgd_bit_for_bit():
    one = {"num_devices": 1, "num_events": 20}
    single = "--config.num_workers=1"
    found = final(*WITHOUT, *CONSTANT, single, **one)
    plain = final(*SMALL, single, **one)
    for part in ("step", "params", "opt_state"):
        assert same_bits(getattr(found, part), getattr(plain, part)), part
    assert same_bits(jax.tree.map(lambda x: x[0], found.replica), plain.params)


@pytest.mark.parametrize("arrivals", [EXPONENTIAL, CONSTANT], ids=["exponential", "ties"])
def test_without_latency_it_is_the_asynchronous_server(arrivals):
    found = final(*WITHOUT, *arrivals)
    server = final(*WITH, *arrivals)
    late = final(*WITHOUT, *arrivals, "--config.server.latency_seconds=0.5")
    assert largest_difference(found.params, server.params) < 1e-6
    assert largest_difference(found.snapshot, server.snapshot) < 1e-6
    assert all(np.ptp(x, axis=0).max() < 1e-6 for x in jax.tree.leaves(found.replica))
    assert largest_difference(late.params, server.params) > 1e-4


# ---- the trainer -------------------------------------------------------------------------------------------------

SHORT = keys("""
    num_workers=4 batch_size_per_worker=8
    train_steps=40 log_every_steps=1 eval_every_steps=10 checkpoint_every_steps=16
""")
RUN = (*LATE, *SHORT)


def run(workdir, *more):
    """Trains; returns the exit code."""
    return train_digits(workdir, *RUN, *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("decentralised")
    assert run(workdir) == 0
    return workdir


def test_records(finished, capsys):
    setup = digits_setup(*RUN)
    found = records(finished)
    staleness = np.concatenate([events.staleness for events in setup.mode.events()])
    assert [r["step"] for r in found] == list(range(1, 41))
    assert staleness.max() > 0
    assert [r["staleness"] for r in found] == staleness.tolist()
    assert [r["staleness_mean"] for r in found] == (np.cumsum(staleness) / np.arange(1, 41)).tolist()
    assert [r["staleness_max"] for r in found] == np.maximum.accumulate(staleness).tolist()
    assert "consensus_distance" not in found[0]
    counts = np.zeros(staleness.max() + 1, int)
    for line in (finished / "staleness.csv").read_text().splitlines()[1:]:
        _, value, count = map(int, line.split(","))
        counts[value] += count
    np.testing.assert_array_equal(counts, np.bincount(staleness))
    state = checkpoint_of(finished, setup)[1]["state"]
    evaluation = records(finished, "eval")[-1]
    distance = sum(x.var(axis=0).sum() for x in map(np.asarray, jax.tree.leaves(state.replica)))
    assert evaluation["consensus_distance"] == pytest.approx(distance, rel=1e-4)
    assert distance > 1e-6
    assert evaluation["staleness_mean"] == found[-1]["staleness_mean"]
    assert run(finished, "--evaluate_only") == 0
    assert f"{evaluation['accuracy']:.2%}" in capsys.readouterr().out


@pytest.mark.parametrize(("after", "end"), [(22, crash), (9, ask_to_stop), (33, ask_to_stop)])
def test_ended_and_gone_on_is_bit_for_bit_the_same(after, end, finished, tmp_path):
    end_and_go_on(after, lambda: run(tmp_path), end)
    states = [checkpoint_of(workdir, digits_setup(*RUN))[1]["state"] for workdir in (tmp_path, finished)]
    assert same_bits(*states)
    assert records(tmp_path) == records(finished)
    assert records(tmp_path, "eval") == records(finished, "eval")
