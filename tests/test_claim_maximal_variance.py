"""The claim about decays of maximal variance."""

from experiments.claims.maximal_variance import claim

CLAIM = claim.CLAIM


def test_losses_are_of_all_rates_and_a_good_one_is_near_the_noise():
    row = CLAIM.measure(trials=2, seed=0)
    assert set(row) == set(claim.METHODS)
    assert {len(losses) for losses in row.values()} == {len(claim.RATES)}
    for losses in row.values():
        assert losses[0] > 5 * min(losses)  # the smallest rate does not get there in a thousand steps
        assert 1e-4 < min(losses) < 0.5
