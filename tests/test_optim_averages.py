"""The moving average and the scaling rules, against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optim import averages, factors


def reference(values, *, decay):
    """TensorFlow's: shadow -= (1 - d) * (shadow - variable), d = min(decay, (1 + t) / (10 + t)), in float64."""
    average, averages = np.float64(values[0]), []
    for t, value in enumerate(values[1:], start=1):
        d = min(decay, (1 + t) / (10 + t))
        average -= (1 - d) * (average - value)
        averages.append(average)
    return averages


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9999])
def test_against_tensorflows_rule(decay):
    values = np.random.default_rng(0).normal(size=101)
    average = {"w": jnp.float32(values[0])}
    step = jax.jit(lambda a, p, t: averages.ema(a, p, num_updates=t, decay=decay))
    for t, (value, wanted) in enumerate(zip(values[1:], reference(values, decay=decay), strict=True), start=1):
        average = step(average, {"w": jnp.float32(value)}, jnp.int32(t))
        np.testing.assert_allclose(average["w"], wanted, atol=2e-6)


@pytest.mark.parametrize(("num_updates", "decay"), [(2 * 10**9, 1 - 1e-8), (10**8, 1 - 1e-9), (10**6, 0.9999)])
def test_a_decay_near_1_is_not_1(num_updates, decay):
    expected = 1 - min(decay, (1 + num_updates) / (10 + num_updates))
    np.testing.assert_allclose(averages.ema_rate(jnp.int32(num_updates), decay=decay), expected, rtol=1e-6)


def test_dtypes_are_kept_and_counters_copied():
    params = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(3), "n": jnp.arange(3)}
    moved = averages.ema(jax.tree.map(jnp.zeros_like, params), params, num_updates=10**6, decay=0.5)
    assert jax.tree.map(lambda x: x.dtype, moved) == jax.tree.map(lambda x: x.dtype, params)
    np.testing.assert_array_equal(moved["a"], np.full(3, 0.5))
    np.testing.assert_array_equal(moved["n"], [0, 1, 2])


def test_constant_parameters_are_a_fixed_point():
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=100), jnp.float32)}
    moved = averages.ema(params, params, num_updates=3, decay=0.99)
    np.testing.assert_array_equal(moved["w"], params["w"])


def test_scaling_rules():
    assert [factors.of_workers("none", num_workers=w) for w in (1, 8, 32)] == [1, 1, 1]
    assert [factors.of_workers("linear", num_workers=w) for w in (1, 8, 32)] == [1, 8, 32]
    assert [factors.of_workers("sqrt", num_workers=w) for w in (1, 4, 64)] == [1, 2, 8]
