"""The learning rate at 100 workers: the runs, and the verdict for each outcome of each part of the rule."""

import pytest

from experiments.claims.rate_tradeoff import claim as rate_tradeoff
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete

CLAIM = rate_tradeoff.CLAIM
EPOCHS = [15.0, 30.0, 45.0, 60.0]
CURVES = {
    0.25: [0.86, 0.88, 0.8855, 0.8855],
    0.5: [0.84, 0.88, 0.892, 0.893],
    1.0: [0.80, 0.86, 0.890, 0.898],
    2.0: [0.80, 0.85, 0.885, 0.8975],
}


def tradeoff_rows(low=CURVES[0.25], *, scale="gpu", updates=3750):
    def measured(labels):
        curve = {**CURVES, 0.25: low}[labels["factor"]]
        worse = 0.01 * (labels["split"] == "validation" and labels["base"] != 0.004)
        accuracy = [value - worse + (labels["seed"] - 1) * 0.0002 for value in curve]
        return {"accuracy": accuracy, "epoch": EPOCHS, "step": [updates * epoch / 60 for epoch in EPOCHS]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize(
    ("low", "word"),
    [
        (CURVES[0.25], HOLDS),
        ([0.80, 0.86, 0.88, 0.8855], FAILS),  # no sooner at the modest accuracy
        ([0.86, 0.88, 0.89, 0.8979], FAILS),  # lower by less than the noise
        ([0.86, 0.88, 0.89, 0.91], FAILS),  # the best itself
        ([0.80, 0.81, 0.82, 0.84], UNTESTED),  # never at the modest accuracy
    ],
)
def test_the_tradeoff(low, word):
    assert CLAIM.verdict(tradeoff_rows(low)).word == word


def test_runs_of_few_updates_decide_nothing():
    assert CLAIM.verdict(tradeoff_rows(updates=3000)).word == HOLDS
    verdict = CLAIM.verdict(tradeoff_rows(updates=2999))
    assert verdict.word == UNTESTED and "has 2999 updates" in verdict.because
    assert CLAIM.judge(CLAIM.frame(tradeoff_rows(scale="laptop", updates=563))).word == UNTESTED
