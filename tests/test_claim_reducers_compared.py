"""All reducers on digits: significance, equivalence within a margin, and neither."""

import math

import pytest

from experiments.claims import reducers_compared
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, whole_report, without

CLAIM = reducers_compared.EXPERIMENT


def rows(accuracy=0.98, *, spread=0.001, **ends):
    """Rows in which each method ends at its accuracy, and seeds spread around it."""

    def measured(labels):
        around = ((labels["seed"] % 5) - 2) * spread - 0.01 * (labels["rate"] != 0.04)
        end = ends.get(labels["method"], accuracy) + around
        return {"step": [1, 2], "epoch": [0.5, 1.0], "simulated_seconds": [0.0, 0.0], "accuracy": [0.5, end]}

    return complete(CLAIM, measured)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"adacons": 0.97}, HOLDS),
        ({"adacons": 0.9802}, HOLDS),  # above the mean of 0.98, but not by the margin, and not beyond the noise
        ({"adacons": 0.99}, FAILS),
        ({"adacons": 0.982, "spread": 0.02}, UNTESTED),  # too noisy to tell
        ({"mean": 0.3}, UNTESTED),  # the mean learns nothing
        ({"mean": math.nan}, UNTESTED),
        ({"sum": math.nan}, HOLDS),  # a method that diverges is not above the mean
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and ("adacons above mean" in verdict.because) == (word == FAILS)


def test_all_methods_are_needed_and_reported():
    found = rows(sum=0.9)
    verdict = CLAIM.verdict(without(found, stage="final", method="sum"))
    assert verdict.word == UNTESTED and "method=sum" in verdict.because
    text = whole_report(CLAIM, found)
    assert all(f"| {method} |" in text for method in reducers_compared.COMPARISON.methods)
