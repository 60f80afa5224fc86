"""The claim about large batches: configs, grids, and the verdict for each part of its rule."""

import math

import pytest

from experiments.claims.large_batch import claim as large_batch
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete

CLAIM, TUNED = large_batch.CLAIM, large_batch.TUNED
MOST = 8192


def rows(*, scale="gpu", **ends):
    """Runs that end at these accuracies in percent, half a point apart by seed; inner rates are better."""

    def measured(labels):
        name = f"{labels['reducer']}_{labels['batch']}"
        end = ends.get(name, {"sum": 90, "adasum": 90, "lars": 86.5}[labels["reducer"]])
        grid = large_batch.grid(scale, labels)
        away = abs(math.log2(labels["rate"] / sorted(grid)[len(grid) // 2]))
        last = (end - 0.5 * labels["seed"] - away) / 100
        return {"epoch": [10.0, 20.0, 30.0], "accuracy": [0.2, last, last]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ({"sum_8192": 80}, HOLDS),
        ({"sum_8192": 80, "adasum_8192": 88.5}, HOLDS),  # loses little
        ({"sum_8192": 80, "adasum_8192": 86}, FAILS),  # above the mean, but it does not train as well as with few
        ({"sum_8192": 89.9}, FAILS),  # no better than the mean
        ({"sum_8192": 92}, FAILS),
        ({"sum_8192": math.nan}, HOLDS),  # the mean diverges
        ({"sum_8192": 80, "sum_256": 84}, UNTESTED),  # the task is not learnt with few examples, either
    ],
)
def test_verdicts(ends, word):
    found = rows(**ends)
    verdict = CLAIM.verdict(found)
    assert verdict.word == word and len(verdict.tests) in ((0, 2) if word == UNTESTED else (2,))
    assert "ResNet-20, n = 3" in CLAIM.basis(CLAIM.frame(found))


def test_five_rates_a_factor_of_two_apart_are_tried_on_cifar():
    tried = {row["rate"] for row in TUNED.tried(rows(), batch=MOST, reducer="sum")}
    assert sorted(tried) == [0.4, 0.8, 1.6, 3.2, 6.4]
    assert not TUNED.tried(rows(), batch=256, reducer="lars")
