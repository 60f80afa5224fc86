"""Claims that measure: measurements whose truth is known, and the verdict for each outcome of each part of a rule."""

import numpy as np
import pytest
from jax import numpy as jnp

from experiments.claims import (
    convergence_constants,
    kth_arrival,
    staleness,
    toy_polynomial,
)
from experiments.claims.toy_polynomial import NOT_STOPPED, PROBLEMS, RATES, steps_to_stop
from reducers import arrivals
from tests.claim_rows import FAILS, HOLDS, whole_report

# ---- constants of the convergence proof --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [({}, HOLDS), ({"worst_cosine": 0.94}, FAILS), ({"shortest": 0.99}, FAILS), ({"longest": 2.01}, FAILS)],
)
def test_constants(changes, word):
    row = {"dimension": 2, "num_points": 2, "worst_cosine": 0.9429, "shortest": 1.0, "longest": 1.9}
    row |= {"step": [1, 2], "cosine": [0.99, 0.9429]}
    rows = [{**row, "seed": 0}, {**row, "seed": 1, **changes}]  # one search is enough to refute
    assert convergence_constants.EXPERIMENT.judge(rows).word == word
    assert "0.1082" in whole_report(convergence_constants.EXPERIMENT, rows)


# ---- time to the k-th gradient -----------------------------------------------------------------------------------


def arrival_row(*, model="paper_cluster", seed=0, mean=(1.03, 1.07, 1.3, 2.4), over_median=2.0):
    """A row with these factors between the last means, and this last mean over the median."""
    means = np.full(100, 1.6)
    means[96:] = 1.6 * np.cumprod(mean)
    median = means.copy()
    median[99] /= over_median
    return {
        "model": model,
        "seed": seed,
        "mean": means.tolist(),
        "median": median.tolist(),
        "within_2_seconds": np.linspace(1, 0.3, 100).tolist(),
        "slowest": 300.0,
        "quantiles": {str(k): np.linspace(1.5, 1.5 + k / 50, 49).tolist() for k in kth_arrival.DRAWN},
    }


LIGHT = [arrival_row(model=kth_arrival.LIGHT, seed=seed, over_median=1.0) for seed in range(2)]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"over_median": 1.4}, FAILS),  # medians that are not far below
        ({"mean": (1.3, 1.2, 1.1, 1.05)}, FAILS),  # slower than an exponential
    ],
)
def test_times_of_the_last_gradients(changes, word):
    claim, rows = kth_arrival.EXPERIMENT, [arrival_row(), arrival_row(seed=1, **changes), *LIGHT]
    assert claim.judge(rows).word == word  # one seed is enough to fail
    text = whole_report(claim, rows)
    assert "| 100 |" in text and "MEM hi" in text
    rows[0]["median"][50] *= 0.9  # medians below the means of early gradients refute
    assert claim.judge(rows).word == FAILS


def test_times_are_those_of_order_statistics():
    # Exponential: E T_(k) = shift + scale * (H_100 - H_(100 - k)); the median of the last is known, too.
    run = {"shift_seconds": 1.0, "scale_seconds": 0.2}
    row = kth_arrival.EXPERIMENT.measure(model="shifted_exponential", steps=4000, seed=0, **run)
    oracle = arrivals.expected_arrivals("shifted_exponential", num_workers=100, **run)
    np.testing.assert_allclose(row["mean"], oracle, rtol=0.01)
    assert row["median"][99] == pytest.approx(1 - 0.2 * np.log(1 - 0.5**0.01), rel=0.01)
    share = (1 - np.exp(-(2 - 1) / 0.2)) ** 100
    assert row["within_2_seconds"][99] == pytest.approx(share, abs=0.03)
    assert row["quantiles"]["100"][24] == pytest.approx(row["median"][99], rel=1e-3)  # SHARES[24] is the half


def test_the_fitted_facts_alone_do_not_pass_the_rule():
    light = {"model": kth_arrival.LIGHT, "seed": 0, **kth_arrival.LIGHT_OPTIONS}
    row = {**light, **kth_arrival.EXPERIMENT.measure(steps=4000, **light)}
    assert row["within_2_seconds"][99] == pytest.approx(0.3, abs=0.05)
    assert kth_arrival.EXPERIMENT.judge([{**row, "model": kth_arrival.CLUSTER}]).word == FAILS


# ---- staleness ---------------------------------------------------------------------------------------------------


def staleness_row(*, model="paper_cluster", num_workers=40, seed=0, off=1.0, swapped=False):
    """A row with a mean staleness that is off by a factor, and two layers that may be in the wrong order."""
    mean = (num_workers - 1) * off
    means = np.linspace(mean, mean / 18, 18)
    if swapped:
        means[[4, 5]] = means[[5, 4]]
    described = [
        {"min": 0, "mean": value, "median": value, "max": 99, "std": 5.0, "low": value - 1, "high": value + 3}
        for value in means.tolist()
    ]
    labels = {"model": model, "num_workers": num_workers, "seed": seed}
    return {**labels, "whole": described[0], "layers": described}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"swapped": True}, FAILS),
        ({"off": 1.03}, FAILS),
        ({"off": 0.97, "num_workers": 10}, FAILS),
        ({"off": 0.97, "model": "lognormal"}, FAILS),
    ],
)
def test_staleness(changes, word):
    rows = [staleness_row(), staleness_row(num_workers=10), staleness_row(seed=1, **changes)]
    assert staleness.EXPERIMENT.judge(rows).word == word
    text = whole_report(staleness.EXPERIMENT, [*rows, staleness_row(model="shifted_exponential")])
    assert "| 17 |" in text and "14.54 [MEM med]" in text


def test_staleness_is_that_of_rounds():
    # Equal times: in each round worker w reads after w + 1 arrivals, and is followed by the 39 others.
    row = staleness.EXPERIMENT.measure(model="constant", num_workers=40, num_gradients=400, seed=0)
    assert (row["whole"]["min"], row["whole"]["max"]) == (39, 39)
    assert row["layers"][0]["mean"] == 39
    assert row["layers"][17]["max"] <= 39


def test_staleness_of_random_times_averages_to_the_other_workers():
    row = staleness.EXPERIMENT.measure(model="shifted_exponential", num_workers=10, num_gradients=4000, seed=1)
    assert row["whole"]["mean"] == pytest.approx(9, rel=0.01)
    assert row["whole"]["std"] > 0
    assert row["layers"][0] == row["whole"]


@pytest.mark.parametrize(("scale", "tasks"), [("smoke", 100), ("laptop", 2500)])
def test_each_worker_does_as_many_tasks(scale, tasks):
    labels = [run.labels for run in staleness.EXPERIMENT.runs(scale, [])]
    assert {of["num_gradients"] / of["num_workers"] for of in labels} == {tasks}


# ---- the toy polynomial ------------------------------------------------------------------------------------------


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


def test_the_polynomial_is_measured_at_every_rate():
    row = toy_polynomial.EXPERIMENT.measure(polynomial="square", x_max=1.0, num_draws=4, seed=0)
    assert set(row) == {f"{r}_{what}" for r in ("mean", "adasum") for what in ("steps", "stopped", "script")}
    assert {len(values) for values in row.values()} == {len(RATES)}
    assert all(2 < steps <= NOT_STOPPED for steps in row["adasum_steps"])


def polynomial_rows(mean, adasum, *, spread=0.1, both_at=1.0):
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
        (polynomial_rows(40, 20), HOLDS),
        (polynomial_rows(40, 20, both_at=0.5), HOLDS),  # at no rate do both stop: the best rates alone decide
        (polynomial_rows(40, 35), FAILS),  # fewer, but by little
        (polynomial_rows(40, 20, spread=30), FAILS),  # within the spread of the seeds
        (polynomial_rows(20, 40), FAILS),
    ],
)
def test_the_polynomial(rows, word):
    claim = toy_polynomial.EXPERIMENT
    assert claim.judge(rows).word == word and claim.findings(rows)
    assert len(claim.table(rows).cells) == 2 * len(PROBLEMS)


def test_the_seed_that_picks_is_not_reported():
    rows = polynomial_rows(40, 20)
    for row in rows:
        if row["seed"] == 0:
            row["adasum_steps"][3] = 1.0
    fewer = toy_polynomial.EXPERIMENT.findings(rows)[0].ours
    assert fewer.n == 3 and 49 < fewer.mean < 51
