"""The two claims about the toy polynomial, and the fit itself."""

import numpy as np
import pytest
from jax import numpy as jnp

from experiments.claims.toy_polynomial import claim as toy_polynomial
from experiments.claims.toy_polynomial_average import claim as toy_polynomial_average
from experiments.study import polynomials
from experiments.study.polynomials import NOT_STOPPED, RATES, steps_to_stop

CLAIM = toy_polynomial.CLAIM


@pytest.mark.parametrize(
    ("samples", "rate", "mean", "adasum"),
    [
        ((1.0, -1.0), 0.25, range(15, 35), (3,)),  # orthogonal: Adasum is the sum, which solves both at once
        ((1.0, -1.0), 0.5, (3,), (NOT_STOPPED,)),  # twice the rate: the mean solves both, the sum goes too far by all
        ((1.0, 1.0), 0.25, (3,), (3,)),  # parallel: Adasum is the mean
        ((0.5, -0.5), 0.1, (NOT_STOPPED,), (NOT_STOPPED,)),  # too slow for 50 steps
    ],
)
def test_steps_of_samples_that_repeat(samples, rate, mean, adasum):
    x = jnp.tile(jnp.array(samples), (50, 1))
    for reducer, expected in (("mean", mean), ("adasum", adasum)):
        assert int(steps_to_stop(x, jnp.array([rate]), polynomial="square", reducer=reducer)[0]) in expected


def test_the_cubic_is_fitted_by_three_coefficients():
    x = jnp.tile(jnp.array([0.5, 0.5]), (50, 1))
    rate = 1 / (2 * (0.5**4 + 0.5**2 + 1))  # what makes one sample's error vanish in one step
    assert steps_to_stop(x, jnp.array([rate]), polynomial="cubic", reducer="mean")[0] in (3, 4, 5)


def test_seed_0_has_the_samples_of_the_guides_script():
    for x_max in (1, 2):
        own = [2 * x_max * np.random.RandomState(seed).rand(50) - x_max for seed in (1, 2)]
        np.testing.assert_allclose(polynomials.samples_of_numpy(0, x_max=x_max), np.stack(own, axis=1), rtol=1e-5)
    first, second = (np.asarray(polynomials.samples_of_numpy(seed, x_max=1)).ravel() for seed in (0, 1))
    assert not set(first.tolist()) & set(second.tolist())


def test_the_guides_own_samples_are_measured_at_every_rate():
    row = CLAIM.measure(x_max=1, seed=0)
    assert {name: len(steps) for name, steps in row.items()} == {"mean": len(RATES), "adasum": len(RATES)}
    place = RATES.index(0.36)
    assert row["mean"][place] == 46
    assert row["adasum"][place] in (23, 25)  # by the rounding of the last bits


def test_the_average_is_measured_at_every_rate():
    row = toy_polynomial_average.CLAIM.measure(polynomial="square", x_max=1.0, num_draws=4, seed=0)
    assert set(row) == {f"{reducer}_{what}" for reducer in ("mean", "adasum") for what in ("steps", "stopped")}
    assert {len(values) for values in row.values()} == {len(RATES)}
    assert all(2 < steps <= NOT_STOPPED for steps in row["adasum_steps"])
