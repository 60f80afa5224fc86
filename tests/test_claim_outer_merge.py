"""Three merges of outer updates: configs, the verdict for each outcome, and lengths from a run's records."""

from experiments.claims.outer_merge import claim as outer_merge

CLAIM, TUNED = outer_merge.CLAIM, outer_merge.TUNED


def test_lengths_are_in_units_of_an_update():
    # Four of six have arrived, orthogonal and of length 3: Adasum is 6 long, R is 3, and their mean 1.5.
    train = {"kind": "train", "orthogonality": 1.0, "contributors": 4.0, "gain": 4.0, "cosine": 0.0}
    end = {"kind": "eval", "step": 10, "epoch": 1.0, "simulated_seconds": 1.0, "loss": 0.2, "accuracy": 0.9}
    measured = CLAIM.reduce([train, train, end])
    assert measured["length"] == 2.0 and measured["length_of_mean"] == 0.5 and measured["cosine"] == 0.0
    assert "length" not in CLAIM.reduce([{"kind": "train", "step": 10}, end])
