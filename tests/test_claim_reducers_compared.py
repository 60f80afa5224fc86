"""All reducers on digits, and the comparison that this claim and others are made of."""

import pytest

from experiments import report
from experiments.claims import reducers_compared
from tests.claim_rows import ORIGIN

CLAIM, COMPARISON = reducers_compared.EXPERIMENT, reducers_compared.COMPARISON


def rows_of(runs, accuracy=0.98, **others):
    """Rows in which each method ends at its accuracy; the second half of the way is above the target."""
    found = []
    for run in runs:
        end = others.get(run.labels["method"], accuracy) + 0.001 * run.labels["seed"]
        measured = {"step": [1, 2], "epoch": [0.5, 1.0], "simulated_seconds": [0.0, 0.0], "accuracy": [0.5, end]}
        found.append({"run": run.name, **run.labels, **measured, "origin": ORIGIN})
    return found


def complete(**ends):
    rows = rows_of(CLAIM.runs("laptop", []), **ends)
    return rows + rows_of(final(rows), **ends)


def final(rows):
    return [run for run in CLAIM.runs("laptop", rows) if run.labels["stage"] == "final"]


def test_configs_of_both_scales_are_valid():
    for scale in ("smoke", "laptop"):
        runs = CLAIM.runs(scale, [])
        assert len(runs) == len(COMPARISON.methods) * len(COMPARISON.rates[scale])
        assert {run.config["data"]["evaluate_on"] for run in runs} == {"validation"}


def test_what_is_reported_is_of_the_test_set_at_the_picked_rate():
    rows = rows_of(CLAIM.runs("laptop", []))
    rows[3]["accuracy"] = [0.99, 0.99]  # of the mean, and first at the target
    runs = [run for run in final(rows) if run.labels["method"] == "mean"]
    assert {run.labels["rate"] for run in runs} == {rows[3]["rate"]} and len(runs) == 5
    assert {run.config["data"]["evaluate_on"] for run in runs} == {"test"}
    assert not final(rows[:-1]) or "adasum of deltas" not in {run.labels["method"] for run in final(rows[:-1])}


@pytest.mark.parametrize(("end", "word"), [(0.98, "supported"), (0.97, "supported"), (0.99, "not supported")])
def test_one_that_is_above_the_mean_decides(end, word):
    verdict = CLAIM.judge(complete(adacons=end))
    assert verdict.word == word and ("adacons" in verdict.because) == (word == "not supported")


def test_without_all_of_them_nothing_is_decided():
    rows = [row for row in complete() if row["method"] != "sum"]
    assert CLAIM.judge(rows).word == "not tested at this scale"


def test_where_the_mean_learns_nothing_nothing_is_decided():
    assert CLAIM.judge(complete(mean=0.3)).word == CLAIM.judge(complete(mean=float("nan"))).word
    assert CLAIM.judge(complete(mean=0.3)).word == "not tested at this scale"


def test_it_is_told_and_drawn():
    text = report.section(CLAIM, complete(sum=0.9))
    assert "epochs to 97.5 %, mean | not given | 1.00 ± 0.00 epochs (n=5)" in text
    assert "epochs to 97.5 %, sum | not given | 0 of 5 runs get there" in text
    assert report.draw(CLAIM, complete()).axes
