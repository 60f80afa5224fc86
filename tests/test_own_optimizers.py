"""The optimizers of papers that optax lacks, against loops of their equations in float64, and their laws."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from optim import bounds, schedules
from optim.rules.differences import dgrad, diffgrad
from optim.rules.maximal_variance import gain, lamadam, madam
from optim.rules.noise_adaptive import accelerated_exponential
from optim.rules.plain import adagrad_plain, adam_plain
from optim.rules.relative_clip import relative_clip
from reducers.dtypes import mixing_dtypes

STEPS, SIZE, RATE = 200, 7, 0.004


def rate(step):
    """A rate that changes, so that its place shows."""
    return RATE / (1 + 0.05 * step)


# ---- loops in float64: gradients [S, D] and the start x -> x at the end ------------------------------------------


def clip_loop(grads, x, *, decay, sqrt_c):
    for t, g in enumerate(grads):
        eta = rate(t)
        share = min(1, sqrt_c * np.sqrt(2 * decay / eta) * np.linalg.norm(x) / np.linalg.norm(g))
        x = (1 - eta * decay) * x - eta * share * g
    return x


def accelerated_loop(grads, x, *, mu, smoothness, rho):
    before = after = x
    for t, g in enumerate(grads):
        alpha = rate(t + 1) / rate(t)
        size = rate(t) / (rho * smoothness)
        a = np.sqrt(mu * size)
        a_next = np.sqrt(mu * size * alpha)
        after = x - size * g
        x = after + (1 - a) * a * alpha / (a_next + alpha * a**2) * (after - before)
        before = after
    return x


def moments_loop(grads, *, low, high, eps):
    """Yields each gradient, and its denominator."""
    m = v = w = np.zeros(grads.shape[1])
    for t, g in enumerate(grads):
        beta = np.full(grads.shape[1], high)
        if t:
            mean = m / w
            var, dd = v / w - mean**2, (g - mean) ** 2
            beta = np.clip((dd + var) / (w * (dd - var) + dd + var + 1e-16), low, high)
        m = beta * m + (1 - beta) * g
        v = beta * v + (1 - beta) * g**2
        w = beta * w + (1 - beta)
        yield g, np.sqrt(v / w) + eps


def madam_loop(grads, x, *, b1, low, high, eps=1e-8, decay=0.0):
    momentum = 0.0
    for t, (g, root) in enumerate(moments_loop(grads, low=low, high=high, eps=eps)):
        momentum = b1 * momentum + (1 - b1) * g
        x = x - rate(t) * (momentum / (1 - b1 ** (t + 1)) / root + decay * x)
    return x


def lamadam_loop(grads, x, *, b1, low, high, eps=1e-15, decay=0.0):
    momentum = correction = 0.0
    for t, (g, root) in enumerate(moments_loop(grads, low=low, high=high, eps=eps)):
        momentum = b1 * momentum + (1 - b1) * rate(t) * g / root
        correction = b1 * correction + (1 - b1) * rate(t)
        x = x - momentum / (correction / rate(t)) - rate(t) * decay * x
    return x


def damped_loop(grads, x, *, friction, b1=0.9, b2=0.999, eps=1e-8):
    m = v = previous = np.zeros(grads.shape[1])
    for t, g in enumerate(grads):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = m / (1 - b1 ** (t + 1)) / (np.sqrt(v / (1 - b2 ** (t + 1))) + eps)
        x = x - rate(t) / (1 + np.exp(-friction(g, previous, v))) * step
        previous = g
    return x


def of_average(g, previous, v):
    del previous
    return 4 * np.abs(g - v) / np.abs(g - v).max()


def plain_loop(grads, x, *, b1, b2, eps=1e-8):
    m = v = 0.0
    for t, g in enumerate(grads):
        m, v = b1 * m + g, b2 * v + g**2
        size = 1 if b2 == 1 else np.sqrt((1 - b2 ** (t + 1)) / (1 - b2))
        x = x - rate(t) * (1 - b1) * size * m / np.sqrt(eps + v)
    return x


def changed(g, previous, v):
    del v
    return np.abs(previous - g)


# Name -> the optimizer, its loop, and the same loop with one thing wrong.
ROWS = {
    "relative_clip": (
        relative_clip(rate, weight_decay=0.5, sqrt_c=1.2),
        functools.partial(clip_loop, decay=0.5, sqrt_c=1.2),
        functools.partial(clip_loop, decay=0.5, sqrt_c=1.0),
    ),
    "accelerated_exponential": (
        accelerated_exponential(rate, mu=300.0, smoothness=200.0, rho=2.0),
        functools.partial(accelerated_loop, mu=300.0, smoothness=200.0, rho=2.0),
        functools.partial(accelerated_loop, mu=300.0, smoothness=200.0, rho=1.9),
    ),
    "madam": (
        madam(rate, b1=0.8, low=0.5, high=0.99, weight_decay=0.1),
        functools.partial(madam_loop, b1=0.8, low=0.5, high=0.99, decay=0.1),
        functools.partial(madam_loop, b1=0.8, low=0.99, high=0.99, decay=0.1),
    ),
    "lamadam": (
        lamadam(rate, b1=0.8, low=0.5, high=0.99, weight_decay=0.1),
        functools.partial(lamadam_loop, b1=0.8, low=0.5, high=0.99, decay=0.1),
        functools.partial(madam_loop, b1=0.8, low=0.5, high=0.99, decay=0.1),
    ),
    "diffgrad": (
        diffgrad(rate),
        functools.partial(damped_loop, friction=changed),
        functools.partial(damped_loop, friction=lambda g, previous, v: 0 * g),  # the first published version
    ),
    "dgrad": (
        dgrad(rate),
        functools.partial(damped_loop, friction=of_average),
        functools.partial(damped_loop, friction=changed),
    ),
    "adam_plain": (
        adam_plain(rate, b1=0.8, b2=0.99),
        functools.partial(plain_loop, b1=0.8, b2=0.99),
        functools.partial(plain_loop, b1=0.8, b2=1),
    ),
    "adagrad_plain": (
        adagrad_plain(rate, b1=0.8),
        functools.partial(plain_loop, b1=0.8, b2=1),
        functools.partial(plain_loop, b1=0.7, b2=1),
    ),
}


def problem():
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(STEPS, SIZE)) * np.exp(np.linspace(-1, 1, SIZE)) + np.linspace(-1, 1, SIZE)
    grads[50:60] *= 10  # a burst, which adapts decays and is clipped
    return grads, 0.05 * rng.normal(size=SIZE)


def run(optimizer, grads, x):
    """Takes all steps in the dtype of x."""

    def step(carry, g):
        x, state = carry
        updates, state = mixing_dtypes(optimizer.update)(g, state, x)
        return (optax.apply_updates(x, updates), state), None

    return jax.jit(lambda x, grads: jax.lax.scan(step, (x, optimizer.init(x)), grads)[0][0])(x, grads)


def run64(optimizer):
    """Takes all steps of the problem in float64."""
    with jax.enable_x64(True):
        x = run(optimizer, *map(jnp.asarray, problem()))
        assert x.dtype == jnp.float64
        return np.asarray(x)


@pytest.mark.parametrize("name", ROWS)
def test_each_is_the_loop_of_its_equations(name):
    optimizer, loop, wrong = ROWS[name]
    grads, x = problem()
    wanted = loop(grads, x)
    np.testing.assert_allclose(run(optimizer, jnp.float32(grads), jnp.float32(x)), wanted, atol=1e-6)
    np.testing.assert_allclose(run64(optimizer), wanted, rtol=0, atol=1e-12)
    assert np.abs(wrong(grads, x) - wanted).max() > 1e-5


# ---- maximal variance --------------------------------------------------------------------------------------------


def test_no_decay_has_a_larger_variance():
    rng = np.random.default_rng(0)
    cases = 2000
    w = rng.uniform(0.01, 1, cases)
    mean = rng.normal(size=cases)
    var = rng.exponential(size=cases)
    g = 3 * rng.normal(size=cases)
    with jax.enable_x64(True):
        state = tuple(map(jnp.asarray, (g, mean * w, (var + mean**2) * w, w)))
        best = 1 - np.asarray(gain(*state, low=0.3, high=0.999))

    def variance(beta):
        weight = beta * w + 1 - beta
        average = (beta * mean * w + (1 - beta) * g) / weight
        return (beta * (var + mean**2) * w + (1 - beta) * g**2) / weight - average**2

    most = np.max([variance(beta) for beta in np.linspace(0.3, 0.999, 4001)], axis=0)
    assert (variance(best) >= most * (1 - 1e-12)).all()
    assert not (variance(np.full(cases, 0.9)) >= most * (1 - 1e-12)).all()
    assert len(np.unique(best)) > cases / 4  # most are inside of the range


def test_at_the_first_step_the_decay_is_high_and_without_any_variance_low():
    still = jnp.ones(3)
    of_first = gain(still, 0 * still, 0 * still, 0 * still, low=0.5, high=0.99)
    of_constant = gain(still, 0.5 * still, 0.5 * still, 0.5 * still, low=0.5, high=0.99)
    assert set(np.asarray(of_first)) == {np.float32(1 - 0.99)}
    assert set(np.asarray(of_constant)) == {np.float32(0.5)}


# ---- the others --------------------------------------------------------------------------------------------------


def test_beta_is_at_most_the_steps_of_the_run():
    with pytest.raises(ValueError, match=r"^beta=11.0: must be at most the 10 steps"):
        schedules.make({"name": "exponential_to", "beta": 11.0}, total_steps=10, steps_per_epoch=10)


def test_the_bound_of_adam_has_the_stated_orders():
    def bound(steps, b1=0.0, d=10):
        return bounds.adam(steps, d, 2.0, 1.0, steps**-0.5, (b1, 1 - 1 / steps), gap=1.0)

    order = [bound(steps) / (np.log(steps) / np.sqrt(steps)) for steps in (10**6, 10**8, 10**10)]
    assert max(order) / min(order) < 1.5
    assert bound(10**8, d=1000) / bound(10**8, d=100) == pytest.approx(10, rel=0.01)
    of_momentum = [bound(10**8, b1=b1) * (1 - b1) for b1 in (0.5, 0.9, 0.99)]
    assert max(of_momentum) / min(of_momentum) < 1.5
    for given, message in (({"betas": (0.9, 0.5)}, "b1=0.9, b2=0.5: must be"), ({"N": 5}, "N=5: must be above")):
        with pytest.raises(ValueError, match=f"^{message}"):
            bounds.adam(**{"N": 100, "d": 1, "R": 1.0, "L": 1.0, "alpha": 0.1, "betas": (0.9, 0.99), "gap": 1} | given)
    np.testing.assert_allclose(bounds.weights(1000, 0.9).sum(), 1)
    assert bounds.weights(1000, 0.9)[-1] == pytest.approx(0.1 * bounds.weights(1000, 0.9)[0])
