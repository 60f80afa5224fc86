"""The claim about the staleness of asynchronous SGD."""

import numpy as np
import pytest

from experiments.claims import staleness
from tests.claim_rows import BUILT, FAILS, whole_report


def staleness_row(*, model="paper_cluster", num_workers=40, seed=0, off=1.0, swapped=False):
    """A row with a mean staleness that is off by a factor, and two layers that may be in the wrong order."""
    mean = (num_workers - 1) * off
    means = np.linspace(mean, mean / 18, 18)
    if swapped:
        means[[4, 5]] = means[[5, 4]]
    described = [
        {"min": 0, "mean": value, "median": value, "max": 99, "std": 5.0, "low": value - 1, "high": value + 3}
        for value in means.tolist()
    ]
    labels = {"model": model, "num_workers": num_workers, "seed": seed}
    return {**labels, "whole": described[0], "layers": described}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, BUILT),
        ({"swapped": True}, FAILS),
        ({"off": 1.03}, FAILS),
        ({"off": 0.97, "num_workers": 10}, FAILS),
        ({"off": 0.97, "model": "lognormal"}, FAILS),
    ],
)
def test_staleness(changes, word):
    rows = [staleness_row(), staleness_row(num_workers=10), staleness_row(seed=1, **changes)]
    assert staleness.EXPERIMENT.judge(rows).word == word
    text = whole_report(staleness.EXPERIMENT, [*rows, staleness_row(model="shifted_exponential")])
    assert "| 17 |" in text and "| top layer | 4 [MEM lo] / 0.0" in text and "14.54 [MEM med] / 2." in text


def test_staleness_is_that_of_rounds():
    # Equal times: in each round worker w reads after w + 1 arrivals, and is followed by the 39 others.
    row = staleness.EXPERIMENT.measure(model="constant", num_workers=40, num_gradients=400, seed=0)
    assert (row["whole"]["min"], row["whole"]["max"]) == (39, 39)
    assert row["layers"][0]["mean"] == 39
    assert row["layers"][17]["max"] <= 39


def test_staleness_of_random_times_averages_to_the_other_workers():
    row = staleness.EXPERIMENT.measure(model="shifted_exponential", num_workers=10, num_gradients=4000, seed=1)
    assert row["whole"]["mean"] == pytest.approx(9, rel=0.01)
    assert row["whole"]["std"] > 0
    assert row["layers"][0] == row["whole"]


@pytest.mark.parametrize(("scale", "tasks"), [("smoke", 100), ("laptop", 2500)])
def test_each_worker_does_as_many_tasks(scale, tasks):
    labels = [run.labels for run in staleness.EXPERIMENT.runs(scale, [])]
    assert {of["num_gradients"] / of["num_workers"] for of in labels} == {tasks}
