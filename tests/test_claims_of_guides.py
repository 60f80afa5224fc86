"""Claims of user guides on Adasum: its learning rate on MNIST, and what it combines first."""

import math

import pytest

from experiments.claims import adasum_groups, mnist_guide
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, whole_report, without


def rows(claim, end_of, *, spread=0.0005):
    """Rows of all runs; ``end_of(labels)`` gives the accuracy at the end, around which seeds spread."""

    def measured(labels):
        end = end_of(labels) + spread * ((labels["seed"] % 5) - 2)
        return {
            "step": [1, 2],
            "epoch": [1.0, 2.0],
            "simulated_seconds": [0.0, 0.0],
            "accuracy": [0.5, end],
        }

    return complete(claim, measured)


# ---- Horovod's MNIST -----------------------------------------------------------------------------------------------


def guide_rows(*, guide=0.99, untuned=0.98, tuned=0.985, **options):
    """Rows in which the mean's best rate is 8 times that of one worker, and Adasum's the guide's or 5 times it."""

    def end_of(labels):
        reducer, factor = labels["reducer"], labels["factor"]
        if reducer == "adasum":
            return guide if factor == 2.5 else guide - 0.01
        return tuned if factor == 8.0 else untuned - 0.0001 * abs(math.log(factor / 8))

    return rows(mnist_guide.EXPERIMENT, end_of, **options)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"tuned": 0.995}, HOLDS),  # the tuned mean is above: the report has it, the rule does not use it
        ({"guide": 0.98}, FAILS),
        ({"guide": 0.981, "spread": 0.01}, FAILS),  # above by less than the noise
    ],
)
def test_the_guide(changes, word):
    found = guide_rows(**changes)
    verdict = mnist_guide.EXPERIMENT.verdict(found)
    assert verdict.word == word and len(verdict.contrasts) == 4
    text = whole_report(mnist_guide.EXPERIMENT, found)
    assert "consistently better than averaging, no numbers [READ]" in text and "averaging at 16 times" in text


def test_the_guide_needs_all_runs():
    found = guide_rows()
    assert mnist_guide.EXPERIMENT.verdict(without(found, factor=16.0, split="test")).word == UNTESTED


def test_a_pick_that_is_untuned_is_run_once():
    names = [row["run"] for row in guide_rows()]
    assert len(names) == len(set(names))


# ---- layers and groups ---------------------------------------------------------------------------------------------


def group_rows(*, spread=0.002, **ends):
    def end_of(labels):
        end = {"model": 0.97, "mean": 0.97, **ends}.get(labels["method"].replace(" ", "_"), 0.98)
        return end - 0.01 * (labels["rate"] != 0.04)

    return rows(adasum_groups.EXPERIMENT, end_of, spread=spread)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"mean": 0.99}, HOLDS),  # the plain mean is no part of the rule
        ({"mean_in_groups": 0.974}, FAILS),
        ({"adasum_in_groups": 0.99}, FAILS),  # better is not equivalent either
        ({"model": 0.98}, FAILS),
        ({"spread": 0.02}, FAILS),  # too noisy for equivalence
        ({"mean": 0.3}, UNTESTED),
        ({"model": math.nan}, HOLDS),
    ],
)
def test_layers_and_groups(changes, word):
    found = group_rows(**changes)
    assert adasum_groups.EXPERIMENT.verdict(found).word == word
    assert "Horovod's guide" in whole_report(adasum_groups.EXPERIMENT, found)
