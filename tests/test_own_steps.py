"""Local workers that each take steps of their own number in a round: loops in float64, wrong variants, resuming."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

import reducers
from runs.errors import ConfigError
from tests.refused import refused
from tests.softmax_digits import RATE, Digits, stepper_of, vector
from tests.stepper import (
    DATASET,
    SMALL,
    checkpoint_of,
    largest_difference,
    same_bits,
    setup_of,
    train_whole_and_in_parts,
)
from tests.test_local_sgd import NESTEROV, nesterov
from training.steps import train_step

OWN = (5, 1, 3, 5, 2, 4, 5, 1)
STEPS = 20
MOMENTUM = ("--config.optimizer.momentum=0.9",)


def options(every_steps=OWN):
    return ("--config.reducer.name=local_sgd", f"--config.reducer.every_steps={every_steps}")


def rounds(digits, *, outer=lambda progress: progress, momentum=0.0, weights=lambda digits: np.ones(8)):
    """The shared parameters after rounds in which each worker takes its own steps, keeping its momentum, and waits."""
    z = digits.start
    velocity = np.zeros((8, len(z)))
    n = weights(digits)
    for first in range(0, STEPS, max(OWN)):
        xs = np.tile(z, (8, 1))
        for worker, count in enumerate(OWN):
            for step in range(first, first + count):
                velocity[worker] = digits.gradient(xs[worker], worker, step) + momentum * velocity[worker]
                xs[worker] -= RATE * velocity[worker]
        z = z + outer(n @ (xs - z) / n.sum())
    return z


def check_agrees(overrides, oracle, **layout):
    stepper = stepper_of(*options(), *overrides, train_steps=STEPS, **layout)
    expected = oracle(Digits(stepper))
    np.testing.assert_allclose(vector(stepper.steps(0, STEPS).params()), expected, atol=2e-6, rtol=0)


def of_shares(digits):
    return np.array([len(share) for share in digits.setup.shares(DATASET)], np.float64)


def of_steps(digits):
    return np.array(OWN, np.float64)


CASES = {
    "mean": ((), rounds),
    "diloco": (NESTEROV, lambda digits: rounds(digits, outer=nesterov(0.7, 0.9))),
    "momentum": (MOMENTUM, functools.partial(rounds, momentum=0.9)),
    "weighed by examples": (("--config.weigh=count",), functools.partial(rounds, weights=of_steps)),
    "weighed by shares": (
        ("--config.weigh=share", "--config.split.name=dirichlet"),
        functools.partial(rounds, weights=of_shares),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_workers_that_take_steps_of_their_own(name):
    check_agrees(*CASES[name])


def test_the_loop_rejects_an_optimizer_that_goes_on_where_its_worker_waits(monkeypatch):
    monkeypatch.setattr(train_step, "leave_out", lambda gradient, before, *, counted: gradient)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_agrees(*CASES["momentum"])


def test_the_loop_rejects_weights_of_another_kind():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_agrees(CASES["weighed by shares"][0], CASES["weighed by examples"][1])


@pytest.mark.parametrize(
    "layout",
    [
        {"num_devices": 8},
        {"num_devices": 4, "lanes": "dispatched"},
        {"num_devices": 2, "overrides": ("--config.mapping=shard_map",)},
        {"num_devices": 8, "overrides": ("--config.mapping=shard_map", "--config.devices_per_worker=2")},
    ],
    ids=str,
)
def test_they_do_wherever_they_are(layout):
    given = dict(layout)
    more = given.pop("overrides", ())
    one, found = (
        stepper_of(*options(), *MOMENTUM, *overrides, **where).steps(0, 7).host()
        for overrides, where in (((), {"num_devices": 1}), (more, given))
    )
    assert largest_difference(found.params, one.params) < 1e-6
    assert largest_difference(found.worker, one.worker) < 1e-5


def test_equal_numbers_are_one_number():
    found, one = (stepper_of(*options(every), *MOMENTUM).steps(0, 10).host() for every in ((4,) * 8, 4))
    assert same_bits(found.params, one.params) and same_bits(found.worker, one.worker)


def test_a_run_goes_on_within_a_round(tmp_path):
    short = (*options(), *MOMENTUM, *SMALL, "--config.reducer_on=updates", "--config.checkpoint_every_steps=3")
    train_whole_and_in_parts(
        ["--config=configs/digits.py", "--config.train_steps=12", *short, "--num_devices=2"], tmp_path, stop_after=7
    )
    setup = setup_of(*short, train_steps=12)
    assert same_bits(*(checkpoint_of(tmp_path / name, setup)[1] for name in ("whole", "parts")))


def test_a_worker_that_waits_is_in_no_metric():
    """Of the 8 workers 8, 6, 5, 4 and 3 take the steps of a round, and the others have no gradient norm."""
    stepper = stepper_of(*options())
    found = [stepper.steps(step, step + 1).metrics["contributors"] for step in range(6)]
    assert found == [8, 6, 5, 4, 3, 8]
    huge = jnp.full((8, 3), jnp.inf).at[0].set(1.0)
    reducer = reducers.local_sgd("worker", every_steps=(2,) + (1,) * 7)
    states = jax.vmap(reducer.init)(jnp.zeros((8, 3)))
    over = jax.vmap(lambda update, state: reducer.update(update, state), axis_name="worker")
    _, states = over(jnp.ones((8, 3)), states)
    result, states = over(huge, states)
    np.testing.assert_allclose(result, np.full((8, 3), 9 / 8))
    assert states.report.counted.tolist() == [True] + [False] * 7


def test_it_stands_after_an_optimizer_of_optax():
    """In a program of one's own, whose optimizer goes on only where its worker is counted."""
    own = (3, 1)
    optimizer, local = optax.sgd(0.1, momentum=0.9), reducers.local_sgd("worker", every_steps=own)
    targets = jnp.array([1.0, -2.0])

    def step(z, state, target):
        before, reducer_state = state
        gradient = reducers.own_params(z, reducer_state) - target
        updates, after = optimizer.update(gradient, before)
        updates, reducer_state = local.update(updates, reducer_state, z)
        kept = optax.tree.where(reducers.report(reducer_state).counted, after, before)
        return optax.apply_updates(z, updates), (kept, reducer_state)

    z = jnp.zeros(())
    state = jax.vmap(lambda z: (optimizer.init(z), local.init(z)), axis_size=2, in_axes=None)(z)
    over = jax.jit(jax.vmap(step, in_axes=(None, 0, 0), out_axes=(None, 0), axis_name="worker"))
    for _ in range(12):
        z, state = over(z, state, targets)

    shared, states = 0.0, [optimizer.init(jnp.zeros(()))] * 2
    for _ in range(4):
        progress = []
        for worker, count in enumerate(own):
            x = jnp.float32(shared)
            for _ in range(count):
                update, states[worker] = optimizer.update(x - targets[worker], states[worker])
                x += update
            progress.append(float(x) - shared)
        shared += sum(progress) / 2
    assert float(z) == pytest.approx(shared, abs=1e-6)


@pytest.mark.parametrize(
    ("every_steps", "more", "message"),
    [
        ((2, 3), (), r"config.reducer.every_steps=\(2, 3\): must have a number for each of num_workers=8"),
        ((2,) * 7 + (0,), (), "config.reducer.every_steps=.*: must be int in .* or a tuple of int in"),
        ((2,) * 7 + (1.5,), (), "config.reducer.every_steps=.*: must be int in .* or a tuple of int in"),
        ((), (), r"config.reducer.every_steps=\(\): must have a number for each worker"),
        ("fast", (), "config.reducer.every_steps='fast': must be int in .* or a tuple of int in"),
        (OWN, ("delay_steps=1",), "config.reducer.delay_steps=1: must be 0 with every_steps="),
        (OWN, ("from_step=9",), "config.reducer.from_step=9: must be 0 with every_steps="),
        (OWN, ("fragments=2",), "config.reducer.fragments=2: must be 1 with every_steps="),
        (
            OWN,
            ("combine={'name': 'backup_workers', 'num_required': 6}",),
            "config.reducer.every_steps=.*: must be one number where combine leaves workers out",
        ),
    ],
)
def test_numbers_that_workers_cannot_have_are_refused(every_steps, more, message):
    with refused(ConfigError, message):
        setup_of(
            *options(every_steps),
            "--config.reducer_on=updates",
            "--config.arrivals.name=lognormal",
            *(f"--config.reducer.{each}" for each in more),
        )


def test_steps_of_their_own_need_local_workers():
    with refused(ConfigError, "config.reducer.every_steps: unknown key"):
        setup_of("--config.reducer.name=mean", f"--config.reducer.every_steps={OWN}")
