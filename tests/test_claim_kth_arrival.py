"""The claim about the time to the k-th gradient."""

import numpy as np
import pytest

from experiments.claims.kth_arrival import claim as kth_arrival
from reducers import arrivals


def test_times_are_those_of_order_statistics():
    # Exponential: E T_(k) = shift + scale * (H_100 - H_(100 - k)); the median of the last is known, too.
    run = {"shift_seconds": 1.0, "scale_seconds": 0.2}
    row = kth_arrival.CLAIM.measure(model="shifted_exponential", steps=4000, seed=0, **run)
    oracle = arrivals.expected_arrivals("shifted_exponential", num_workers=100, **run)
    np.testing.assert_allclose(row["mean"], oracle, rtol=0.01)
    assert row["median"][99] == pytest.approx(1 - 0.2 * np.log(1 - 0.5**0.01), rel=0.01)
    share = (1 - np.exp(-(2 - 1) / 0.2)) ** 100
    assert row["within_2_seconds"][99] == pytest.approx(share, abs=0.03)
    assert row["quantiles"]["100"][24] == pytest.approx(row["median"][99], rel=1e-3)  # SHARES[24] is the half
