"""Batches that grow: the same updates as larger batches, the sums that rules are told, the rules, and wrong ones."""

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

import optim
import reducers
from reducers.local import batch_rules
from reducers.local.adaptive_batch import noise_of
from reducers.local.batch_rules import BatchRule, Noise
from tests.stepper import Stepper, largest_difference, same_bits, setup_of
from tests.test_reducers import WORKER, over_steps
from training.train_state import to_devices

ADAPTIVE = "--config.reducer.name=adaptive_batch"
PLAIN = ("--config.ema_decay=None", "--config.schedule.name=constant", "--config.model.hidden_sizes=(16,)")
FIXED = "--config.reducer.rule={{'name': 'fixed', 'every_steps': {}}}"
NORM_TEST = "--config.reducer.rule={'name': 'norm_test', 'theta': 0.5}"


# ---- limits ------------------------------------------------------------------------------------------------------


def test_one_step_a_batch_is_the_reducer_itself():
    mean = reducers.mean(WORKER)
    same = reducers.adaptive_batch(WORKER, rule={"name": "fixed", "every_steps": 1}, combine=mean)
    assert same.init(1.0) == mean.init(1.0)
    assert same.local_workers == "never"
    assert same.reduces == "gradients"
    ours = Stepper(setup_of(ADAPTIVE, FIXED.format(1), *PLAIN))
    plain = Stepper(setup_of(*PLAIN))
    assert same_bits(ours.steps(0, 5).state, plain.steps(0, 5).state)


@pytest.mark.parametrize(("num_devices", "lift"), [(2, "pmap"), (1, "shard_map")])
def test_more_steps_are_more_workers(num_devices, lift):
    """On the same batches, with dropout and momentum: 4 workers and 3 steps a batch, or 12 workers."""
    few = setup_of(ADAPTIVE, FIXED.format(3), *PLAIN, "--config.num_workers=4", f"--config.mapping={lift}")
    many = setup_of(*PLAIN, "--config.num_workers=12")
    ours = Stepper(few, num_devices=num_devices).steps(0, 15)
    theirs = Stepper(many, num_devices=4).steps(0, 5)
    assert few.config.model.dropout_rate > 0 and few.config.optimizer.momentum > 0
    assert largest_difference(ours.params(), theirs.params()) < 1e-6


def test_what_is_shared_stays_where_nothing_is_due():
    stepper = Stepper(setup_of(ADAPTIVE, FIXED.format(4), *PLAIN, "--config.optimizer.momentum=0.9")).steps(0, 4)
    before = stepper.host()
    after = stepper.steps(4, 7).host()
    assert same_bits(before.params, after.params) and same_bits(before.opt_state, after.opt_state)
    assert (stepper.metrics["updates"], stepper.metrics["communications"]) == (1, 0)
    assert not same_bits(before.params, stepper.steps(7, 8).params())


# ---- what rules are told -----------------------------------------------------------------------------------------


def told(gradients, *, counted=None):
    """The noise by one all-reduce, of worker 0."""
    axes = (WORKER,)
    counted = np.ones(len(gradients), bool) if counted is None else counted

    def one(g, counts):
        average = jax.tree.map(lambda x: jax.lax.psum(jnp.where(counts, x, 0), axes) / int(counted.sum()), g)
        return noise_of(g, average, counted=counts, axes=axes)

    noise = jax.vmap(one, axis_name=WORKER)({"w": jnp.float32(gradients)}, counted)
    return jax.tree.map(lambda x: float(x[0]), noise)


@pytest.mark.parametrize("counted", [np.ones(6, bool), np.arange(6) % 3 > 0])
def test_the_sums_are_those_of_the_workers_gradients(counted):
    g = np.random.default_rng(0).standard_normal((6, 9)) + 1
    kept = g[counted]
    found = told(np.where(counted[:, None], g, np.nan), counted=counted)
    mean, n = kept.mean(0), len(kept)
    products = kept @ mean
    assert found.squared_gradient == pytest.approx(mean @ mean, rel=1e-5)
    assert found.variance == pytest.approx(((kept - mean) ** 2).sum() / (n - 1), rel=1e-5)
    assert found.along == pytest.approx(((products - mean @ mean) ** 2).sum() / (n - 1), rel=1e-4)
    assert found.num_workers == n


def proposal(rule, noise, *, steps=3.0, count=1):
    return float(rule.update(rule.init(), noise, jnp.float32(steps), jnp.int32(count))[1])


def test_the_rules_ask_for_what_their_papers_say():
    """In examples: a worker's gradient is a mean over k B of them, and n k B are in an update."""
    g = np.random.default_rng(1).standard_normal((5, 7)) + 0.3
    n, k, batch = 5, 3, 16
    noise = Noise(*map(jnp.float32, told(g)))
    mean = g.mean(0)
    squared = mean @ mean
    products = g @ mean
    norms = (g**2).sum(1)
    of_norm = k * batch * ((g - mean) ** 2).sum() / ((n - 1) * 0.7**2 * squared)
    assert n * batch * proposal(batch_rules.norm_test(theta=0.7), noise) == pytest.approx(of_norm, rel=1e-4)
    left = squared - ((g - mean) ** 2).sum() / (n - 1) / n
    unbiased = proposal(batch_rules.norm_test(theta=0.7, unbiased=True), noise)
    assert n * batch * unbiased == pytest.approx(of_norm * squared / left if left > 0 else n * batch * k, rel=1e-4)
    forward = k * batch * ((products - squared) ** 2).sum() / ((n - 1) * 0.6**2 * squared**2)
    sideways = k * batch * (norms - products**2 / squared).sum() / ((n - 1) * 0.9**2 * squared)
    rule = batch_rules.inner_product_test(theta=0.6, nu=0.9)
    state, asked = rule.init(), []
    for _ in range(batch_rules.NUM_PROPOSALS):
        state, steps = rule.update(state, noise, jnp.float32(k), jnp.int32(1))
        asked.append(n * batch * float(steps))
    assert asked[:4] == [n * batch * k] * 4
    assert asked[4] == pytest.approx(max(forward, sideways), rel=1e-4)
    assert int(state.num_proposals) == 0


def test_the_smallest_of_five_proposals_counts():
    rule = batch_rules.inner_product_test(theta=1.0, nu=1e9)
    state = batch_rules.inner_product_test().init()
    for along in (50.0, 30.0, 70.0, 40.0, 60.0):  # of one worker, steps of 2: 2 P / n
        state, steps = rule.update(state, Noise(*map(jnp.float32, (1.0, 0.0, along, 10.0))), jnp.float32(2), 1)
    assert float(steps) == pytest.approx(6.0)


@pytest.mark.parametrize(("mu", "smoothness", "growth"), [(0.1, 1.0, 2.0), (1.0, 3.0, 4.0), (0.01, 1.0, 1.5)])
def test_a_stage_ends_when_a_quadratic_is_down_to_the_noise(mu, smoothness, growth):
    """The distance of the slowest direction begins at 2 growth floors, and falls by 1 - mu / L an update."""
    distance, updates = 2 * growth, 0
    while distance > 1:
        distance = distance * (1 - mu / smoothness)
        updates = updates + 1
    rule = batch_rules.two_scale(growth=growth, mu=mu, smoothness=smoothness)
    asked = [proposal(rule, None, steps=1.0, count=count) for count in range(1, 3 * updates + 1)]
    assert [count for count, steps in enumerate(asked, 1) if steps > 1] == [updates, 2 * updates, 3 * updates]
    assert max(asked) == growth


def test_other_rules():
    quiet, noisy = (Noise(*map(jnp.float32, (1.0, variance, 0.0, 4.0))) for variance in (3.9, 4.1))
    by_noise = batch_rules.two_scale(growth=3.0)
    assert (proposal(by_noise, quiet), proposal(by_noise, noisy)) == (3.0, 9.0)
    geometric = batch_rules.geometric(factor=1.5, every_updates=4)
    assert [proposal(geometric, None, count=count) for count in (3, 4, 5, 8)] == [3.0, 4.5, 3.0, 4.5]


# ---- batches -----------------------------------------------------------------------------------------------------


def batches(rule, gradients, **options):
    """The batch of each step, in steps, and the results, of gradients [steps, workers, m]."""
    reducer = reducers.adaptive_batch(WORKER, rule=rule, **options)
    results, states = over_steps(reducer, np.float32(gradients))
    for of_each in (states.batch_steps, states.held):
        assert not np.ptp(of_each, axis=1).any()
    return states.report.metrics["batch_steps"][:, 0].astype(int).tolist(), np.asarray(results[:, 0])


def test_an_update_is_the_mean_over_its_steps():
    gradients = np.random.default_rng(2).standard_normal((14, 4, 5))
    steps, results = batches({"name": "geometric", "factor": 2.0, "every_updates": 1}, gradients)
    assert steps == [1, 2, 2, 4, 4, 4, 4, *[8] * 7]
    for last, first in ((0, 0), (2, 1), (6, 3)):
        np.testing.assert_allclose(results[last], gradients[first : last + 1].mean((0, 1)), rtol=1e-5)
    assert not results[[1, 3, 4, 5, *range(7, 14)]].any()


def wanting(*wanted):
    """A rule that asks for these batches, whatever the noise."""
    asked = jnp.float32([*wanted, *[0] * 50])
    return BatchRule(lambda: (), lambda state, noise, steps, count: (state, asked[count - 1]))


def test_a_batch_never_shrinks_and_has_a_limit():
    gradients = np.random.default_rng(3).standard_normal((25, 3, 2))
    steps, _ = batches(wanting(3, 1, np.nan, -5, 2.2, 99), gradients, max_steps=7)
    assert steps == [1, *[3] * 15, *[7] * 9]


def test_the_check_rejects_a_batch_that_shrinks(monkeypatch):
    monkeypatch.setattr(jnp, "maximum", lambda old, new: new)
    with pytest.raises((AssertionError, ValueError)):
        test_a_batch_never_shrinks_and_has_a_limit()


def test_noise_makes_batches_grow_and_a_nan_does_not():
    rng = np.random.default_rng(4)
    noisy = 0.3 + rng.standard_normal((60, 4, 8))
    steps, _ = batches({"name": "norm_test", "theta": 0.5}, noisy)
    assert steps == sorted(steps) and 3 < steps[-1] < 60
    noisy[0] = np.nan
    steps, _ = batches({"name": "norm_test", "theta": 0.5}, noisy[:2])
    assert steps == [1, 1]


def in_half(**options):
    return reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER, **options)


def test_a_gradient_that_is_not_finite_is_dropped_and_what_overflowed_is_kept():
    """The first two reductions overflow: no batch grows with them, and what was finite arrives with the next."""
    geometric = {"name": "geometric", "factor": 2.0, "every_updates": 1}
    steps, results = batches(geometric, np.ones((5, 2, 3)), combine=in_half(initial_scale=2.0**16))
    assert steps == [1, 1, 1, 2, 2] and results[:, 0].tolist() == [0, 0, 1, 0, 1]
    gradients = np.ones((9, 2, 3))
    gradients[1, 0, 0] = np.nan
    fixed = {"name": "fixed", "every_steps": 2}
    _, results = batches(fixed, gradients, combine=in_half(initial_scale=1.0))
    assert results[:, 0].tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 0]


def test_the_mean_is_measured_beside_another_reducer():
    gradients = 0.3 + np.random.default_rng(5).standard_normal((30, 4, 8))
    rule = {"name": "norm_test", "theta": 0.5}
    plain, _ = batches(rule, gradients)
    adasum, _ = batches(rule, gradients, combine=reducers.adasum(WORKER))
    assert plain == adasum and plain[-1] > 1


def test_one_worker_cannot_estimate_noise():
    with pytest.raises(ValueError, match=r"^rule: num_workers=1 cannot estimate the noise; take fixed or geometric"):
        batches({"name": "norm_test"}, np.ones((1, 1, 2)))
    assert batches({"name": "geometric", "factor": 2.0, "every_updates": 1}, np.ones((3, 1, 2)))[0] == [1, 2, 2]


# ---- training ----------------------------------------------------------------------------------------------------


def test_a_run_goes_on_within_a_batch_bit_for_bit():
    whole = Stepper(setup_of(ADAPTIVE, NORM_TEST, *PLAIN), num_devices=2).steps(0, 20)
    assert whole.metrics["batch_steps"] > 1
    parts = Stepper(whole.setup, num_devices=2).steps(0, 11)
    again = Stepper(whole.setup, num_devices=2)
    again.state = to_devices(parts.host(), again.layout)
    assert parts.host().reducer_state.held[0] > 0
    assert same_bits(again.steps(11, 20).host(), whole.host())


def test_adagrad_norm_against_its_formula():
    optimizer = optim.optimizers.make(
        {"name": "adagrad_norm", "learning_rate": 0.5, "beta": 2.0, "eps": 0.1}, learning_rate=lambda step: 0.5
    )
    x, total = np.array([1.0, -2.0]), 2.0
    params = jnp.float32(x)
    state = optimizer.init(jnp.float32(x))
    for _ in range(5):
        gradient = 2 * x
        x = x - 0.5 * gradient / total**0.6
        total = total + gradient @ gradient
        updates, state = optimizer.update(2 * params, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params, x, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "value"), [(jnp.bfloat16, 1.0), (jnp.float16, 100.0)])
def test_gradients_of_many_steps_are_summed_in_full_precision(dtype, value):
    reducer = reducers.adaptive_batch("worker", rule={"name": "fixed", "every_steps": 1024})
    updates, _ = over_steps(reducer, jnp.full((1024, 2, 3), value, dtype))
    assert updates.dtype == dtype and (updates[-1] == value).all()
