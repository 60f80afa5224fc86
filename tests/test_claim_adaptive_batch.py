"""An adaptive step and an adaptive batch: configs, the verdict for each outcome, and what stands in for MNIST."""

from experiments.claims.adaptive_batch import claim as adaptive_batch
from experiments.study import datasets

CLAIM, TUNED = adaptive_batch.CLAIM, adaptive_batch.TUNED
CNN, MNIST = "CNN on digits", "softmax on MNIST"


def test_without_mnist_there_are_the_tasks_on_digits():
    with datasets.stand_in("digits"):
        tasks = {run.labels["task"] for run in CLAIM.runs("laptop", [])}
    assert tasks == {"softmax on digits", CNN} == {run.labels["task"] for run in CLAIM.runs("smoke", [])}
    assert {run.labels["task"] for run in CLAIM.runs("laptop", [])} == {*tasks, MNIST}


def test_a_run_whose_batch_stays_has_as_many_updates_as_steps():
    end = {"kind": "eval", "step": 40, "epoch": 1.0, "examples": 1280, "loss": 0.3, "accuracy": 0.9}
    assert CLAIM.reduce([end])["updates"] == [40] and "batch_examples" not in CLAIM.reduce([end])
    grown = CLAIM.reduce([{**end, "updates": 30.0, "batch_examples": 64.0, "batch_steps": 2.0}])
    assert grown["updates"] == [30.0] and grown["batch_examples"] == [64.0]
