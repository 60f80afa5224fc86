"""The claim about the staleness of asynchronous SGD."""

import pytest

from experiments.claims.staleness import claim as staleness


def test_staleness_is_that_of_rounds():
    # Equal times: in each round worker w reads after w + 1 arrivals, and is followed by the 39 others.
    row = staleness.CLAIM.measure(model="constant", num_workers=40, num_gradients=400, seed=0)
    assert (row["whole"]["min"], row["whole"]["max"]) == (39, 39)
    assert row["layers"][0]["mean"] == 39
    assert row["layers"][17]["max"] <= 39


def test_staleness_of_random_times_averages_to_the_other_workers():
    row = staleness.CLAIM.measure(model="shifted_exponential", num_workers=10, num_gradients=4000, seed=1)
    assert row["whole"]["mean"] == pytest.approx(9, rel=0.01)
    assert row["whole"]["std"] > 0
    assert row["layers"][0] == row["whole"]


@pytest.mark.parametrize(("scale", "tasks"), [("smoke", 100), ("laptop", 2500)])
def test_each_worker_does_as_many_tasks(scale, tasks):
    labels = [run.labels for run in staleness.CLAIM.runs(scale, [])]
    assert {of["num_gradients"] / of["num_workers"] for of in labels} == {tasks}
