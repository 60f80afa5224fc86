"""The claim about the bound on Adam."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from experiments.claims.adam_bound import claim
from experiments.execution import results
from tests.claim_rows import FAILS, HOLDS


def test_the_closed_form_is_the_mean_of_clipped_gradients():
    x = jnp.linspace(-4.0, 4.0, 10)
    noise = claim.NOISE * jax.random.normal(jax.random.key(0), (100_000, 10))
    clipped = jnp.clip((jnp.float32(claim.CURVATURES) * x)[None] + noise, -claim.MOST, claim.MOST)
    np.testing.assert_allclose(claim.mean_gradient(x), clipped.mean(axis=0), atol=0.01)


def test_the_measurement_falls_with_more_updates_and_stays_under_the_bound():
    few, many = (claim.CLAIM.measure(b1=0.9, num_workers=2, steps=n, seed=0)["squared"] for n in (50, 800))
    assert many < few
    assert many < claim.limit(800, 0.9)


def test_slopes_are_those_of_a_power():
    rows = [
        {"b1": b1, "num_workers": 1, "seed": seed, "squared": (1 + seed) * (1 - b1) ** -0.5, "steps": 1000}
        for b1 in claim.MOMENTA
        for seed in range(2)
    ]
    assert list(claim.slopes(claim.CLAIM.frame(rows), 1)) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(("factor", "word"), [(1, HOLDS), (80, HOLDS), (100, FAILS)])
def test_a_gradient_above_the_bound_refutes_it(factor, word):
    """The recorded disturbances of published gradients stay far below it."""
    rows = [{**row, "squared": factor * row["squared"]} for row in results.published("adam_bound")]
    assert claim.CLAIM.verdict(rows).word == word
