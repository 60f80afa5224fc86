"""The claim about the constants of the convergence proof."""

import pytest

from experiments.claims import convergence_constants
from tests.claim_rows import BUILT, FAILS, UNTESTED, whole_report


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, BUILT),
        ({"worst_cosine": 0.94}, FAILS),
        ({"shortest": 0.99}, FAILS),
        ({"longest": 2.01}, FAILS),
        ({"worst_cosine": 0.9425, "dimension": 3}, FAILS),
    ],
)
def test_constants(changes, word):
    row = {"dimension": 2, "num_points": 2, "worst_cosine": 0.9429, "shortest": 1.0, "longest": 1.9}
    row |= {"step": [1, 2], "cosine": [0.99, 0.9429]}
    rows = [{**row, "seed": 0}, {**row, "seed": 1, **changes}]  # one search is enough to refute
    assert convergence_constants.EXPERIMENT.judge(rows).word == word
    text = whole_report(convergence_constants.EXPERIMENT, rows)
    assert "at most 0.108 [MEM-hi; DERIVED again: arccos(2 sqrt(2) / 3) = 0.1082 pi] / 0.1" in text


def test_searches_that_stop_early_show_nothing():
    row = {"dimension": 2, "num_points": 2, "worst_cosine": 0.95, "shortest": 1.0, "longest": 1.9, "seed": 0}
    assert convergence_constants.EXPERIMENT.judge([row]).word == UNTESTED
    assert convergence_constants.EXPERIMENT.judge([{**row, "longest": 2.1}]).word == FAILS
