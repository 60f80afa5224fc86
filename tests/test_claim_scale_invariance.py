"""The claim about networks without a scale."""

import numpy as np
import pytest

from experiments.claims.scale_invariance import claim, training

CLAIM = claim.CLAIM


@pytest.mark.parametrize("form", claim.FORMS)
def test_scales_and_rates_that_belong_together_train_an_invariant_network_alike(form):
    """The rate grows with the square of the parameters' scale, and falls with that of the loss."""
    of = training.task("transformer", form, split="validation")
    same = [(0.1, 1.0, 1.0), (0.1 * 10**2, 10.0, 1.0), (0.1 / 8, 1.0, 8.0), (0.1 * 10**2 * 8, 10.0, 1 / 8)]
    lanes = [(which, *lane) for which in range(3) for lane in same]  # Adam's step has a length of its own
    found = np.array(training.end_losses(of, lanes, steps=5, seed=0)).reshape(3, len(same))
    apart = np.abs(found - found[:, :1]).max(axis=1)
    assert (apart < 1e-4).all() if form == "on" else (apart > 5e-3).all()
    assert abs(found[0, 0] - found[1, 0]) > 1e-2  # decay changes something


def test_no_loss_counts_as_more_than_a_guess():
    labels = {"network": "CNN", "form": "off", "split": "test", **{claim.place_of(name): 0 for name in claim.RATES}}
    losses = {name: [1e9, None, *[1.5] * 7] for name in claim.RATES}
    df = CLAIM.frame([{**labels, "guess": 4.0, **losses, "seed": 3}])
    assert df["losses"].tolist() == [[4.0, 4.0, *[1.5] * 7]] * 4 and set(df["spread"]) == {2.5}


def test_rates_are_picked_before_runs_are_reported():
    assert {run.labels["split"] for run in CLAIM.runs("laptop", [])} == {"validation"}
