"""The toy polynomial: the fit on samples that a human can follow, and each verdict."""

import numpy as np
import pytest
from jax import numpy as jnp

from experiments.claims import toy_polynomial
from experiments.claims.toy_polynomial import EXPERIMENT, NOT_STOPPED, PROBLEMS, RATES, steps_to_stop


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


def test_measurement_has_a_count_for_every_rate():
    row = toy_polynomial._measure(polynomial="square", x_max=1.0, num_draws=4, seed=0)
    assert set(row) == {f"{r}_{what}" for r in ("mean", "adasum") for what in ("steps", "stopped", "script")}
    assert {len(values) for values in row.values()} == {len(RATES)}
    assert all(2 < steps <= NOT_STOPPED for steps in row["adasum_steps"])


def _rows(mean: float, adasum: float, *, spread: float = 0.1, both_at: float = 1.0) -> list[dict]:
    """Rows whose best rate is RATES[3] for both; elsewhere nothing stops, but at RATES[0] as given."""
    rows = []
    for name, x_max in PROBLEMS:
        for seed in range(4):
            row = {"polynomial": name, "x_max": x_max, "seed": seed}
            for reducer, steps in (("mean", mean), ("adasum", adasum)):
                values, stopped = np.full(len(RATES), 100.0), np.zeros(len(RATES))
                values[3] = steps + spread * seed * (reducer == "adasum")
                stopped[3] = both_at
                row[f"{reducer}_steps"], row[f"{reducer}_stopped"] = values.tolist(), stopped.tolist()
                row[f"{reducer}_script"] = [100] * len(RATES)
            rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (_rows(40, 20), "supported"),
        (_rows(40, 20, both_at=0.5), "supported"),  # at no rate do both stop: the best rates alone decide
        (_rows(40, 35), "not supported"),  # fewer, but by little
        (_rows(40, 20, spread=30), "not supported"),  # within the spread of the seeds
        (_rows(20, 40), "not supported"),
    ],
)
def test_verdicts(rows, word):
    assert EXPERIMENT.judge(rows).word == word
    assert EXPERIMENT.findings(rows)
    assert len(EXPERIMENT.table(rows).cells) == 2 * len(PROBLEMS)


def test_the_seed_that_picks_is_not_reported():
    rows = _rows(40, 20)
    for row in rows:
        if row["seed"] == 0:
            row["adasum_steps"][3] = 1.0
    fewer = EXPERIMENT.findings(rows)[0].ours
    assert fewer.n == 3
    assert 49 < fewer.mean < 51


@pytest.mark.parametrize("scale", list(EXPERIMENT.hours))
def test_runs(scale):
    runs = EXPERIMENT.runs(scale, [])
    assert len({run.name for run in runs}) == len(runs) == len(PROBLEMS) * (2 if scale == "smoke" else 6)
