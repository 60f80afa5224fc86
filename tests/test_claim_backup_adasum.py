"""Backup workers and Adasum together: configs, verdicts, and what the report of a race says."""

import pytest

from experiments.claims import backup_adasum
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, reaching, some_runs, whole_report, without

CLAIM = backup_adasum.EXPERIMENT
METHODS = {"mean": (100, 3), "adasum": (80, 3), "backup": (100, 1.7), "backup_adasum": (80, 1.7), "async": (200, 0.1)}


def rows(**changes):
    """Method -> steps to the target, seconds of a step. Seeds differ, and the grid's third rate is the fastest."""

    def measured(labels):
        steps, seconds = (METHODS | changes)[labels["method"]]
        later = 0 if labels["rate"] == 0.05 else 60
        return reaching(steps + later + 10 * (labels["seed"] % 3), seconds=seconds, num_steps=600)

    return complete(CLAIM, measured)


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        combine = {"backup_adasum": "adasum", "backup": "mean"}.get(run.labels["method"])
        assert run.config["reducer"].get("combine") == combine and run.config["seed"] == run.labels["seed"]
        assert run.config["arrivals"]["name"] == "paper_cluster"
        assert (run.config["server"]["name"] == "asynchronous") == (run.labels["method"] == "async")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"backup": (80, 1.7)}, FAILS),  # a tie: Adasum adds nothing
        ({"adasum": (40, 3)}, FAILS),  # backups add nothing
        ({"async": (20, 0.1)}, HOLDS),  # of which the claim says nothing
        ({"adasum": (9999, 3)}, UNTESTED),
    ],
)
def test_verdicts(changes, word):
    assert CLAIM.verdict(rows(**changes)).word == word


def test_both_comparisons_are_corrected_and_shown():
    found = rows()
    contrasts = CLAIM.verdict(found).contrasts
    assert [contrast.compared for contrast in contrasts] == [
        "backup_adasum before backup",
        "backup_adasum before adasum",
    ]
    assert all(contrast.corrected == "Holm, 2 tests" and contrast.n == (20,) for contrast in contrasts)
    assert "| backup_adasum before adasum | -" in whole_report(CLAIM, found)


def test_a_missing_seed_is_named():
    found = without(rows(), stage="final", method="adasum", seed=7)
    verdict = CLAIM.verdict(found)
    assert verdict.word == UNTESTED and "method=adasum" in verdict.because and "seed=7" in verdict.because


def test_the_report_says_who_gets_there():
    text = whole_report(CLAIM, rows(adasum=(9999, 3)))
    assert "0 of 20 runs get there" in text
