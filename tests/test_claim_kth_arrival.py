"""The claim about the time to the k-th gradient."""

import numpy as np
import pytest

from experiments.claims import kth_arrival
from reducers import arrivals
from tests.claim_rows import BUILT, FAILS, whole_report


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
        ({}, BUILT),
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


def test_workers_without_outliers_pass_the_part_on_growth_alone():
    light = {"model": kth_arrival.LIGHT, "seed": 0, **kth_arrival.LIGHT_OPTIONS}
    row = {**light, **kth_arrival.EXPERIMENT.measure(steps=4000, **light)}
    assert row["within_2_seconds"][99] == pytest.approx(0.3, abs=0.05)
    assert kth_arrival.parts_that_hold([row], kth_arrival.LIGHT) == (True, False)
    verdict = kth_arrival.EXPERIMENT.judge([{**row, "model": kth_arrival.CLUSTER}, row])
    assert verdict.word == FAILS and "the first part holds, and the second fails" in verdict.because
