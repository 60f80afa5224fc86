"""The claim about steps that adapt to the noise."""

import itertools

import numpy as np
import pytest

from experiments.claims.noise_adaptive import claim
from experiments.execution import results
from experiments.study import frames
from tests.claim_rows import FAILS, HOLDS

CLAIM = claim.CLAIM


def test_the_minimum_is_one():
    w = claim.minimum()
    rng = np.random.default_rng(1)
    assert all(claim.loss(w) < claim.loss(w + 1e-3 * rng.normal(size=w.shape)) for _ in range(5))
    step = 1e-5 * np.eye(claim.SIZE)
    slope = [(claim.loss(w + one) - claim.loss(w - one)) / 2e-5 for one in step]
    np.testing.assert_allclose(slope, 0, atol=1e-8)


def test_more_workers_have_less_noise_at_a_constant_rate():
    row = CLAIM.measure(steps=200, trials=2, seed=0)
    assert set(row) == {claim.key(name, n) for name in claim.LABELS for n in claim.WORKERS}
    assert {len(losses) for losses in row.values()} == {len(claim.RATES)}
    at = next(i for i, rate in enumerate(claim.RATES) if rate > 0.5)
    assert row["constant, 64 workers"][at] < 0.2 * row["constant, 1 workers"][at]


@pytest.mark.parametrize(("ours", "word"), [(1.1, HOLDS), (3.0, FAILS)])
def test_what_is_lost_is_against_the_rate_tuned_anew(ours, word):
    """The best rate is the fifth with one worker, one further for each doubling, and each place away has its cost."""
    costs = {"exponential": ours, "constant": 2.0, "root": 1.5}
    made = results.published("noise_adaptive")
    for row, name, (i, n) in itertools.product(made, claim.LABELS, enumerate(claim.WORKERS)):
        cost = costs[name] * (1 + 0.01 * row["seed"])
        row[claim.key(name, n)] = [cost ** abs(place - 4 - i) for place in range(len(claim.RATES))]
    lost = frames.groups(CLAIM.frame(made), ["steps", "workers"], "lost")
    assert not any(lost["constant", claim.TUNED_WITH])
    assert list(lost["constant", 16]) == pytest.approx([np.log(2.0 * (1 + 0.01 * seed)) for seed in range(1, 6)])
    assert CLAIM.verdict(made).word == word
