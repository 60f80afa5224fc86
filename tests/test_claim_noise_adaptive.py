"""The claim about steps that adapt to the noise."""

import numpy as np
import pytest

from experiments.claims.noise_adaptive import claim
from experiments.study import frames
from tests.claim_rows import FAILS, HOLDS, ORIGIN

CLAIM = claim.CLAIM


def test_newton_s_method_finds_the_minimum():
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


def rows(costs):
    """Rows in which the best rate is the fifth with one worker, and one further for each doubling.

    ``costs`` is what each place away from the best costs, by schedule, as a factor.
    """

    def losses(cost, best):
        return [cost ** abs(i - best) for i in range(len(claim.RATES))]

    made = []
    for run in CLAIM.runs("laptop", []):
        wiggle = 1 + 0.01 * run.labels["seed"]
        found = {
            claim.key(name, n): losses(cost * wiggle, 4 + i)
            for name, cost in costs.items()
            for i, n in enumerate(claim.WORKERS)
        }
        made.append({"run": run.name, **found, **run.labels, "origin": {**ORIGIN, "scale": "laptop"}})
    return made


@pytest.mark.parametrize(("ours", "word"), [(1.1, HOLDS), (3.0, FAILS)])
def test_what_is_lost_is_against_the_rate_tuned_anew(ours, word):
    made = rows({"exponential": ours, "constant": 2.0, "root": 1.5})
    lost = frames.groups(CLAIM.frame(made), ["steps", "workers"], "lost")
    assert not any(lost["constant", claim.TUNED_WITH])
    assert list(lost["constant", 16]) == pytest.approx([np.log(2.0 * (1 + 0.01 * seed)) for seed in range(1, 6)])
    assert CLAIM.verdict(made).word == word
