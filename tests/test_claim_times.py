"""Claims about times alone: of the k-th gradient, and how stale gradients are."""

import numpy as np
import pytest

from experiments.claims import kth_arrival, staleness
from reducers import arrivals
from tests.claim_rows import told


def arrival_row(*, model="paper_cluster", seed=0, mean=(1.03, 1.07, 1.3, 2.4), over_median=2.0):
    """A row with these factors between the last means, and this last mean over the median."""
    means = np.full(100, 1.6)
    means[96:] = 1.6 * np.cumprod(mean)
    median = means.copy()
    median[99] /= over_median
    quantiles = {str(k): np.linspace(1.5, 1.5 + k / 50, 49).tolist() for k in kth_arrival.DRAWN}
    within = np.linspace(1, 0.3, 100).tolist()
    return {
        "model": model,
        "seed": seed,
        "mean": means.tolist(),
        "median": median.tolist(),
        "within_2_seconds": within,
        "slowest": 300.0,
        "quantiles": quantiles,
    }


LIGHT = [arrival_row(model=kth_arrival.LIGHT, seed=seed, over_median=1.0) for seed in range(2)]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "supported"),
        ({"over_median": 1.4}, "not supported"),  # medians that are not far below
        ({"mean": (1.3, 1.2, 1.1, 1.05)}, "not supported"),  # slower than an exponential
    ],
)
def test_times_of_the_last_gradients_decide(changes, word):
    rows = [arrival_row(), arrival_row(seed=1, **changes), *LIGHT]  # one seed is enough to fail
    verdict = kth_arrival.EXPERIMENT.judge(rows)
    assert verdict.word == word


def test_medians_below_the_means_of_early_gradients_refute():
    row = arrival_row()
    row["median"][50] *= 0.9
    assert kth_arrival.EXPERIMENT.judge([row, *LIGHT]).word == "not supported"


def test_times_are_those_of_order_statistics():
    # Exponential: E T_(k) = shift + scale * (H_100 - H_(100 - k)); the median of the last is known, too.
    run = {"shift_seconds": 1.0, "scale_seconds": 0.2}
    row = kth_arrival._measure(model="shifted_exponential", steps=4000, seed=0, **run)
    oracle = arrivals.expected_arrivals("shifted_exponential", num_workers=100, **run)
    np.testing.assert_allclose(row["mean"], oracle, rtol=0.01)
    assert row["median"][99] == pytest.approx(1 - 0.2 * np.log(1 - 0.5**0.01), rel=0.01)
    share = (1 - np.exp(-(2 - 1) / 0.2)) ** 100
    assert row["within_2_seconds"][99] == pytest.approx(share, abs=0.03)
    assert row["quantiles"]["100"][24] == pytest.approx(row["median"][99], rel=1e-3)  # SHARES[24] is the half


def test_the_fitted_facts_alone_do_not_pass_the_rule():
    light = {"model": kth_arrival.LIGHT, "seed": 0, **kth_arrival.LIGHT_OPTIONS}
    row = {**light, **kth_arrival._measure(model=kth_arrival.LIGHT, steps=4000, seed=0, **kth_arrival.LIGHT_OPTIONS)}
    assert row["within_2_seconds"][99] == pytest.approx(0.3, abs=0.05)
    as_cluster = {**row, "model": kth_arrival.CLUSTER}
    assert kth_arrival.EXPERIMENT.judge([as_cluster]).word == "not supported"


def test_times_are_told():
    text = told(kth_arrival.EXPERIMENT, [arrival_row(), arrival_row(seed=1), *LIGHT])
    assert "| 100 |" in text
    assert "MEM hi" in text


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_times_are_drawn_for_several_seeds(scale):
    runs = kth_arrival.EXPERIMENT.runs(scale, [])
    assert len({run.name for run in runs}) == len(runs)
    assert {run.labels["model"] for run in runs} == {kth_arrival.CLUSTER, kth_arrival.LIGHT}
    assert len({run.labels["seed"] for run in runs}) >= (3 if scale == "laptop" else 2)


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
    tells = {"model": model, "num_workers": num_workers, "seed": seed}
    return {**tells, "whole": described[0], "layers": described}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "supported"),
        ({"swapped": True}, "not supported"),
        ({"off": 1.03}, "not supported"),
        ({"off": 0.97, "num_workers": 10}, "not supported"),
        ({"off": 0.97, "model": "lognormal"}, "not supported"),
    ],
)
def test_staleness_decides(changes, word):
    rows = [staleness_row(), staleness_row(num_workers=10), staleness_row(seed=1, **changes)]
    assert staleness.EXPERIMENT.judge(rows).word == word


def test_staleness_is_that_of_rounds():
    # Equal times: in each round worker w reads after w + 1 arrivals, and is followed by the 39 others.
    row = staleness._measure(model="constant", num_workers=40, num_gradients=400, seed=0)
    assert (row["whole"]["min"], row["whole"]["max"]) == (39, 39)
    assert row["layers"][0]["mean"] == 39
    assert row["layers"][17]["max"] <= 39


def test_staleness_of_random_times_averages_to_the_other_workers():
    row = staleness._measure(model="shifted_exponential", num_workers=10, num_gradients=4000, seed=1)
    assert row["whole"]["mean"] == pytest.approx(9, rel=0.01)
    assert row["whole"]["std"] > 0
    assert row["layers"][0] == row["whole"]


def test_staleness_is_told():
    rows = [staleness_row(seed=seed, num_workers=n) for seed in range(2) for n in (10, 40)]
    text = told(
        staleness.EXPERIMENT, [*rows, staleness_row(model="lognormal"), staleness_row(model="shifted_exponential")]
    )
    assert "| 17 |" in text
    assert "14.54 [MEM med]" in text


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_staleness_is_measured_for_several_seeds(scale):
    runs = staleness.EXPERIMENT.runs(scale, [])
    assert len({run.name for run in runs}) == len(runs)
    assert len({run.labels["seed"] for run in runs}) >= (3 if scale == "laptop" else 2)
    assert {run.labels["num_gradients"] / run.labels["num_workers"] for run in runs} == {
        100 if scale == "smoke" else 2500
    }
