"""Rules with workers that send garbage: which must fail, which must stand, and rates that all learn nothing."""

import math
import random

import pytest

from experiments.claims import byzantine_workers
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, whole_report, without

CLAIM, TUNED = byzantine_workers.EXPERIMENT, byzantine_workers.COMPARISON.tuned
BROKEN = ("mean", "adasum", "pcgrad")


def rows(*, spread=0.001, rest=0.98, **ends):
    """Rows in which each method ends at its accuracy, by default the broken ones near guessing, whatever their rate."""

    def measured(labels):
        around = ((labels["seed"] % 5) - 2) * spread - 0.01 * (labels["rate"] != 0.08)
        method = labels["method"].replace(" ", "_")
        if method in BROKEN and method not in ends:
            end = random.Random(str(sorted(labels.items()))).uniform(0.05, 0.15)
        else:
            end = ends.get(method, rest) + around
        return {"step": [1, 2], "epoch": [0.5, 1.0], "simulated_seconds": [0.0, 0.0], "accuracy": [0.5, end]}

    return complete(CLAIM, measured)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"krum": 0.974}, HOLDS),  # below the clean mean, but by less than the margin
        ({"krum": 0.99}, HOLDS),  # better is no failure
        ({"krum": 0.965}, FAILS),
        ({"geometric_median": 0.965}, FAILS),
        ({"coordinate_median": 0.965}, FAILS),
        ({"trimmed_mean": math.nan}, FAILS),
        ({"mean": 0.9}, FAILS),  # it loses eight points, which is no failure by the rule
        ({"adasum": 0.9}, FAILS),
        ({"adasum": math.nan}, HOLDS),  # it has learnt nothing
        ({"mgda": 0.3, "pcgrad": 0.98}, HOLDS),  # these are not judged
        ({"spread": 0.02}, FAILS),  # too noisy to show that nothing is lost
        ({"clean_mean": 0.3}, UNTESTED),
        ({"clean_mean": math.nan}, UNTESTED),
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and len(verdict.contrasts) in ((0, 6) if word == UNTESTED else (6,))


def test_differences_are_those_from_the_clean_mean():
    krum = next(c for c in CLAIM.verdict(rows(krum=0.975)).contrasts if "krum" in c.compared)
    assert krum.difference == pytest.approx(-0.5) and krum.holds


def test_rates_that_all_learn_nothing_are_not_picked_for_their_luck():
    found = rows()
    rates = {method: {row["rate"] for row in TUNED.tried(found, method=method)} for method in BROKEN}
    assert set(map(frozenset, rates.values())) == {frozenset(byzantine_workers.COMPARISON.rates["laptop"])}
    assert {TUNED.picked(found, method=method) for method in BROKEN} == {0.04}
    places = {cells[0]: cells[4] for cells in TUNED.table("laptop", found).cells}
    assert {method for method, place in places.items() if place == "none learns"} == set(BROKEN)


def test_two_of_nine_send_garbage_to_all_rules_but_the_control():
    for run in CLAIM.runs("laptop", []):
        config = run.config
        assert config["num_workers"] == 9
        if run.labels["method"] == "clean mean":
            assert config["reducer"] == {"name": "mean"}
        else:
            assert config["reducer"]["name"] == "corrupt" and len(config["reducer"]["workers"]) == 2
            assert config["reducer"]["combine"]["name"] == run.labels["method"]


def test_all_methods_are_needed_and_reported():
    found = rows()
    verdict = CLAIM.verdict(without(found, stage="final", method="upgrad"))
    assert verdict.word == UNTESTED and "method=upgrad" in verdict.because
    text = whole_report(CLAIM, found)
    assert all(f"| {method} |" in text for method in byzantine_workers.METHODS)
