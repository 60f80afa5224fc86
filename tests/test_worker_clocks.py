"""Simulated time and bytes of workers that do not meet in every step, against plain event loops over their clocks."""

import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from tests.softmax_digits import stepper_of
from training.checkpoints import initial_counters

STEPS = 1000
TIMES = ("--config.arrivals.name=lognormal", "--config.arrivals.sigma=0.8")


def trace(stepper, num_steps=STEPS):
    """[steps, workers], as the arrival model of a run says."""
    return np.stack([stepper.setup.arrival_seconds(step) for step in range(num_steps)]).astype(np.float64)


def told(reducer_options, num_steps=STEPS):
    """The simulated seconds that each step of a run tells, and its times."""
    stepper = stepper_of(*TIMES, *reducer_options, train_steps=num_steps)
    seconds = []
    for step in range(num_steps):
        seconds.append(stepper.steps(step, step + 1).metrics["step_seconds"])
    return np.array(seconds), trace(stepper, num_steps)


LOCAL = ("--config.reducer.name=local_sgd", "--config.reducer.every_steps=8")
FIRST = "--config.reducer.combine={'name': 'backup_workers', 'num_required': 6}"


# ---- the loops: each returns the latest time that has passed for sure after every step ----------------------------


def all_meet(times, *, every):
    clocks, reached = np.zeros(times.shape[1]), []
    for step, seconds in enumerate(times, start=1):
        clocks += seconds
        reached.append(clocks.max())
        if step % every == 0:
            clocks[:] = clocks.max()
    return reached


def first_meet(times, *, every, required):
    now, reached, clocks = 0.0, [], np.zeros(times.shape[1])
    for step, seconds in enumerate(times, start=1):
        clocks += seconds
        if step % every == 0:
            now += np.sort(clocks)[required - 1]
            clocks[:] = 0
        reached.append(now)  # who is left out may still be at work, and has nothing to say
    return reached


def late(times, *, every, delay):
    clocks = np.zeros(times.shape[1])
    reached = []
    launched = None
    for step, seconds in enumerate(times, start=1):
        clocks += seconds
        if launched is not None and step % every == delay % every:
            clocks = np.maximum(clocks, launched)  # until all of what was launched is there
        if step % every == 0:
            launched = clocks.max()
        reached.append(clocks.max())
    return reached


def around(times, *, adapt_first):
    clocks, reached = np.zeros(times.shape[1]), []
    for seconds in times:
        done = clocks + seconds
        if adapt_first:  # neighbours send what they have after this step
            clocks = np.max([done, np.roll(done, 1), np.roll(done, -1)], axis=0)
        else:  # neighbours have sent what they had before it
            clocks = np.max([done, np.roll(clocks, 1), np.roll(clocks, -1)], axis=0)
        reached.append(clocks.max())
    return reached


def springs(times, *, every):
    clocks, reached = np.zeros(times.shape[1]), []
    for step, seconds in enumerate(times):
        before = clocks.max()
        clocks = clocks + seconds
        if step % every == 0:
            clocks = np.maximum(clocks, before)
        reached.append(clocks.max())
    return reached


RING = ("--config.reducer.name=gossip", "--config.reducer.topology=ring")
OWN = (8, 1, 3, 8, 2, 4, 5, 1)
CASES = {
    "all": (LOCAL, lambda times: all_meet(times, every=8)),
    "own": (
        (*LOCAL, f"--config.reducer.every_steps={OWN}"),
        lambda times: all_meet(np.where(np.arange(len(times))[:, None] % 8 < OWN, times, 0), every=8),
    ),
    "first": ((*LOCAL, FIRST), lambda times: first_meet(times, every=8, required=6)),
    "delay": ((*LOCAL, "--config.reducer.delay_steps=2"), lambda times: late(times, every=8, delay=2)),
    "longest_delay": ((*LOCAL, "--config.reducer.delay_steps=8"), lambda times: late(times, every=8, delay=8)),
    "ring": (RING, lambda times: around(times, adapt_first=False)),
    "ring_adapts": (
        (*RING, "--config.reducer.order=adapt_then_combine"),
        lambda times: around(times, adapt_first=True),
    ),
    "springs": (
        ("--config.reducer.name=elastic_averaging", "--config.reducer.every_steps=4", "--config.reducer.strength=0.1"),
        lambda times: springs(times, every=4),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_time_told_is_that_of_an_event_loop(name):
    overrides, loop = CASES[name]
    seconds, times = told(overrides, num_steps=STEPS)
    np.testing.assert_allclose(np.cumsum(seconds), loop(times), rtol=1e-5)


# ---- examples and bytes ------------------------------------------------------------------------------------------


def counters_after(overrides, num_steps):
    """What a run has come to, as its logger counts it."""

    stepper = stepper_of(*TIMES, *overrides, train_steps=num_steps)
    counters = initial_counters(stepper.setup)
    for step in range(num_steps):
        numbers = stepper.steps(step, step + 1).metrics
        decided = round(numbers.get("steps_decided", 1))
        counters.add(
            num_gradients=8 * decided,
            contributors=numbers["contributors"] * decided,
            step_seconds=numbers["step_seconds"],
            sent_bytes=stepper.setup.traffic.bytes_per_worker * numbers.get("communications", 1),
        )
    return counters, stepper


def test_examples_of_who_is_left_out_of_a_round_are_dropped():
    counters, _ = counters_after((*LOCAL, FIRST), 16)
    assert (counters.num_counted, counters.num_dropped) == (2 * 8 * 6, 2 * 8 * 2)
    counters, _ = counters_after((*LOCAL, FIRST), 20)  # of the last four steps nothing is decided yet
    assert (counters.num_counted, counters.num_dropped) == (2 * 8 * 6, 2 * 8 * 2)


def test_the_batch_of_a_worker_that_waits_is_dropped():
    counters, _ = counters_after((*LOCAL, f"--config.reducer.every_steps={OWN}"), 16)
    assert (counters.num_counted, counters.num_dropped) == (2 * sum(OWN), 2 * (64 - sum(OWN)))


def test_where_the_reducer_inside_is_not_called_nobody_is_left_out():
    metrics = {"contributors": jnp.float32(3), "step_seconds": jnp.float32(2), "bits": jnp.float32(4)}
    inside = reducers.Report(counted=jnp.array(False), overflowed=jnp.array(True), metrics=metrics)
    found = inside.if_called(jnp.array(False), num_workers=8)
    assert found.counted and not found.overflowed
    assert found.metrics == {"contributors": 8, "step_seconds": 0, "bits": 4}
    assert inside.if_called(jnp.array(True), num_workers=8) == inside
