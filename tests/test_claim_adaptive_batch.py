"""An adaptive step and an adaptive batch: configs, the verdict for each outcome, and what stands in for MNIST."""

import math
import random

import pytest

from experiments.claims import adaptive_batch
from experiments.study import datasets, report
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, TUNED = adaptive_batch.EXPERIMENT, adaptive_batch.TUNED
SGD, STEP, BATCH, BOTH = adaptive_batch.METHODS
CNN, MNIST = "CNN on digits", "softmax on MNIST"
AS_CLAIMED = {SGD: 0.3, STEP: 0.28, BATCH: 0.29, BOTH: 0.26}


def rows(ends=None, *, spread=0.002):
    """Rows that end as the claim has it, but for those in ``ends``."""

    def measured(labels):
        task, method = labels["task"], labels["method"]
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        end = {**(ends or {})}.get((task, method), AS_CLAIMED[method]) + noise
        rates = adaptive_batch.TASKS[task].rates[method in (STEP, BOTH)]
        end += (0.1 * abs(math.log(labels["rate"] / rates[1])) - 0.1) * (labels["split"] == "validation")
        found = {"step": [150, 300], "epoch": [0.5, 1.0], "examples": [4800, 9600], "updates": [150, 300]}
        if method in (BATCH, BOTH):
            found |= {"updates": [140, 200], "batch_examples": [32.0, 128.0]}
        return found | {"loss": [end + 0.1, end], "accuracy": [0.9, 0.92]}

    return complete(CLAIM, measured)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, labels = run.config, run.labels
        grows, adapts = labels["method"] in (BATCH, BOTH), labels["method"] in (STEP, BOTH)
        assert config["reducer"]["name"] == ("adaptive_batch" if grows else "mean")
        assert config["optimizer"]["name"] == ("adagrad_norm" if adapts else "sgd")
        assert config["optimizer"].get("momentum") is None and config["optimizer"]["learning_rate"] == labels["rate"]
        assert config["schedule"]["name"] == "constant" and config["data"]["name"] == labels["data"]
        assert config["num_workers"] * config["batch_size_per_worker"] == 32
        if grows:
            assert dict(config["reducer"]["rule"]) == {"name": "inner_product_test", "theta": 0.5, "nu": 5.84}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"ends": {(CNN, BATCH): 0.4}}, HOLDS),  # it is not judged
        ({"ends": {(CNN, STEP): 0.31}}, FAILS),
        ({"ends": {(MNIST, BOTH): 0.29}}, FAILS),
        ({"ends": {(MNIST, BOTH): 0.28}}, UNTESTED),  # neither better nor worse
        ({"spread": 0.1}, UNTESTED),
        ({"ends": {(CNN, BOTH): math.nan}}, UNTESTED),
        ({"ends": {(CNN, SGD): 2.0}}, UNTESTED),  # it learns little
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and len(verdict.contrasts) in ((0, 12) if word == UNTESTED else (12,))


def test_all_seeds_of_all_tasks_are_needed():
    verdict = CLAIM.verdict(without(rows(), split="test", task=CNN, method=BOTH, seed=4))
    assert verdict.word == UNTESTED and "Runs are missing" in verdict.because


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


def test_it_is_reported():
    found = rows()
    text = whole_report(CLAIM, found)
    batches = {(line[0], line[1]): line[-1] for line in CLAIM.table(found).cells}
    assert batches[CNN, BOTH] == "128 ± 0 (n=5)" and batches[CNN, STEP] == "32"
    assert "| updates, CNN on digits, both | not given | 200 ± 0 (n=5) |" in text
    panels = report.draw(CLAIM, found).axes
    assert [axes.get_title() for axes in panels] == list(adaptive_batch.TASKS)
    assert [len(axes.lines) for axes in panels] == [4, 4, 4]
    assert list(panels[0].lines[0].get_xdata()) == [4.8, 9.6]
    assert str(CLAIM.basis(found)) == "digits, mnist, softmax regression and a small CNN, n = 5"
