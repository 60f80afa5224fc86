"""The claim about decays of maximal variance."""

import pytest

from experiments.claims.maximal_variance import claim
from tests.claim_rows import FAILS, HOLDS, ORIGIN

CLAIM = claim.CLAIM


def test_losses_are_of_all_rates_and_a_good_one_is_near_the_noise():
    row = CLAIM.measure(trials=2, seed=0)
    assert set(row) == set(claim.METHODS)
    assert {len(losses) for losses in row.values()} == {len(claim.RATES)}
    for losses in row.values():
        assert losses[0] > 5 * min(losses)  # the smallest rate does not get there in a thousand steps
        assert 1e-4 < min(losses) < 0.5


def rows(ours, theirs):
    """Rows whose best rate is the third."""
    made = []
    for run in CLAIM.runs("laptop", []):
        losses = {name: [9.0, 8.0, 7.0 + 0.01 * run.labels["seed"], 9.0] for name in claim.METHODS}
        losses[claim.MADAM][2] = ours + 0.01 * run.labels["seed"] ** 2
        losses["adam, b2 = 0.9"][2] = theirs + 0.01 * run.labels["seed"]
        made.append({"run": run.name, **losses, **run.labels, "origin": {**ORIGIN, "scale": "laptop"}})
    return made


@pytest.mark.parametrize(("ours", "theirs", "word"), [(1.0, 2.0, HOLDS), (2.0, 1.0, FAILS)])
def test_the_best_adam_is_picked_with_a_seed_that_is_not_reported(ours, theirs, word):
    made = rows(ours, theirs)
    df = CLAIM.frame(made)
    assert set(df["best"]) == {"adam, b2 = 0.9"}
    assert sorted(df[df["optimizer"] == claim.MADAM]["seed"]) == [1, 2, 3, 4, 5]
    assert CLAIM.verdict(made).word == word
