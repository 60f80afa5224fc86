"""Reducers whose state matters: the dynamic choice of backups, and gradients that are stale on purpose."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from reducers import arrivals
from reducers.arrived.dynamic_backup_workers import Estimates, most_gain_per_second
from tests.test_reducers import WORKER, over_steps

W = 8


# ---- dynamic_backup_workers ----------------------------------------------------------------------------------------


def descend(
    model, *, noise: float, rate: float, num_steps: int, dimensions: int = 400, spoil=None, values=(), **options
):
    """SGD on |w|^2 / 2, L = 1, with gradients of given noise; returns states and parameters of every step.

    spoil(gradients, slowest, step, *values): what the workers send, slowest being True for the slowest one of a step.
    """
    reducer = reducers.dynamic_backup_workers(WORKER, **options)
    key, start = jax.random.key(3), jnp.full(dimensions, 1.0)

    def step(values, carry, number):
        parameters, state = carry
        seconds = model(key, number, W)
        noises = jax.random.normal(jax.random.fold_in(key, number), (W, dimensions)) * noise
        gradients = jnp.expand_dims(parameters, 0) + noises
        if spoil is not None:
            gradients = spoil(gradients, jnp.expand_dims(seconds >= jnp.max(seconds), 1), number, *values)
        update = lambda g, s: reducer.update(g, s, arrival_seconds=seconds)  # noqa: E731
        reduced, states = jax.vmap(update, axis_name=WORKER, in_axes=(0, None))(gradients, state)
        state = jax.tree.map(lambda x: x[0], states)
        parameters = parameters - rate * reduced[0]
        known_to_all = (states.num_updates, states.estimates, states.previous, reducers.report(states).metrics)
        same = jnp.array([jnp.all(x == x[:1]) for x in jax.tree.leaves(known_to_all)]).all()
        return (parameters, state), (reducers.report(state).metrics, state.estimates, same)

    (parameters, state), (metrics, estimates, same) = jax.jit(
        lambda values: lax.scan(functools.partial(step, values), (start, reducer.init(start)), jnp.arange(num_steps))
    )(values)
    assert bool(same.all())  # on all workers, bit for bit
    return parameters, state, jax.tree.map(np.asarray, metrics), estimates


def test_estimates_are_what_they_are_called():
    model = arrivals.make("shifted_exponential", shift_seconds=1.0, scale_seconds=0.5)
    # So slow that the loss hardly falls: the true gradient stays near 400 * 1.
    _, state, metrics, _ = descend(model, noise=0.7, rate=1e-4, num_steps=300, decay=0.99)
    seen = state.estimates
    formula = arrivals.expected_arrivals("shifted_exponential", num_workers=W)
    np.testing.assert_allclose(seen.arrival_seconds[:W], formula, rtol=0.1)
    assert not np.any(seen.arrival_seconds[W:])
    assert float(seen.variance) == pytest.approx(400 * 0.7**2, rel=0.03)
    assert float(seen.signal) == pytest.approx(400 * 0.95, rel=0.06)
    assert metrics["contributors"][:10].tolist() == [8] * 10


def test_curvature_times_rate():
    """For |w|^2 / 2 it is the rate itself."""
    model = arrivals.make("lognormal", sigma=0.3)
    for rate in (0.05, 0.4):
        _, state, *_ = descend(model, noise=0.01, rate=rate, num_steps=6, warmup_steps=6)
        rho = np.sqrt(state.estimates.change / state.estimates.motion)
        assert float(rho) == pytest.approx(rate, rel=0.05)


def test_fewer_are_waited_for_where_waiting_is_dear_and_noise_small():
    straggler = arrivals.make("slow_workers", base={"name": "lognormal", "sigma": 0.05}, num_slow=2, factor=10.0)
    *_, metrics, _ = descend(straggler, noise=0.5, rate=0.3, num_steps=30)
    assert (metrics["contributors"][:10] == 8).all() and (metrics["contributors"][10:] <= 6).all()
    assert metrics["step_seconds"][10:].max() < 2 < metrics["step_seconds"][:10].min()


def test_a_dropped_worker_spoils_neither_update_nor_estimates():
    model = arrivals.make("slow_workers", base={"name": "lognormal", "sigma": 0.05}, num_slow=1, factor=10.0)
    spoiled_steps = range(6, 12)  # after the warm-up

    def run(*values):
        """The dropped gradients have one value or the other, in turns."""

        def spoil(g, slowest, step, even, odd):
            return jnp.where(slowest & (step >= 6) & (step < 12), jnp.where(step % 2 == 0, even, odd), g)

        options = dict(num_steps=25, warmup_steps=5, spoil=spoil, values=values)
        _, state, metrics, _ = descend(model, noise=0.5, rate=0.3, **options)
        return state, metrics

    state, metrics = run(0.0, 0.0)
    assert (metrics["contributors"][spoiled_steps] < 8).all()
    for one, other in zip(jax.tree.leaves(run(jnp.nan, jnp.inf)), jax.tree.leaves((state, metrics)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_choice_by_hand():
    times = jnp.array([1.0, 1.1, 1.2, 9.0])
    choose = lambda least=1, **estimates: int(  # noqa: E731
        most_gain_per_second(Estimates(times, **estimates), num_workers=4, min_required=least)
    )
    assert choose(signal=1.0, variance=4.0, change=0.25, motion=1.0) == 3  # gains -1/4, 1/4, 5/12, 1/2
    assert choose(signal=1.0, variance=0.0, change=0.25, motion=1.0) == 1  # no noise: the fastest alone
    assert choose(2, signal=1.0, variance=0.0, change=0.25, motion=1.0) == 2
    assert choose(signal=1.0, variance=99.0, change=0.25, motion=1.0) == 4  # nothing gains
    assert choose(signal=1.0, variance=0.0, change=5.0, motion=1.0) == 4  # rate x smoothness above 2: no descent
    assert choose(signal=jnp.nan, variance=1.0, change=0.25, motion=1.0) == 4


# ---- stale ---------------------------------------------------------------------------------------------------------


def delays_of(num_steps: int, **options):
    """Feeds gradients 1, 2, 3, ... and reads off how late each update is, None where it is zero."""
    reducer = reducers.stale(WORKER, **options)
    numbers = np.arange(1, num_steps + 1)
    given = np.repeat(numbers[:, None], 2, axis=1).astype(np.float32)
    updates, states = over_steps(reducer, given, shared={"arrival_seconds": np.float32([2, 1])})
    staleness = np.asarray(states.report.metrics["staleness"][:, 0])
    due = numbers - staleness
    np.testing.assert_array_equal(updates[:, 0], np.where(due >= 1, due, 0))  # the metric is the truth
    return staleness


def test_fixed_delay():
    assert delays_of(12, delay_steps=3).tolist() == [3] * 12
    assert delays_of(12, delay_steps=0).tolist() == [0] * 12
    assert delays_of(12, delay_steps=3, max_delay_steps=7).tolist() == [3] * 12


def test_linear_ramp():
    assert delays_of(14, delay_steps=4, ramp_up_steps=8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4]
    assert delays_of(5, delay_steps=7, ramp_up_steps=3).tolist() == [0, 2, 4, 7, 7]


@pytest.mark.parametrize(
    ("law", "largest", "mean", "deviation"), [("uniform", 8, 4.0, np.sqrt(20 / 3)), ("geometric", 60, 4.0, np.sqrt(20))]
)
def test_drawn_delays(law, largest, mean, deviation):
    delays = delays_of(8000, delay_steps=4, law=law, max_delay_steps=largest)
    assert delays.mean() == pytest.approx(mean, rel=0.03)
    assert delays.std() == pytest.approx(deviation, rel=0.04)
    assert delays.min() == 0 and delays.max() <= largest
    expected = 1 / 9 if law == "uniform" else 1 / 5  # P(0)
    assert (delays == 0).mean() == pytest.approx(expected, rel=0.1)
    assert np.abs(np.corrcoef(delays[:-1], delays[1:])[0, 1]) < 0.05


def test_long_delays_are_cut():
    delays = delays_of(2000, delay_steps=3, law="geometric")
    assert delays.max() == 12 and (delays == 12).mean() == pytest.approx((3 / 4) ** 12, rel=0.4)


def test_delays_follow_the_seed_alone():
    run = lambda seed: delays_of(50, delay_steps=5, law="uniform", seed=seed).tolist()  # noqa: E731
    assert run(0) == run(0) != run(1)
