"""Grids that are continued until a pick is inside, and what a report says of picks, seeds and rules."""

import dataclasses
import math

import pytest

from experiments.study import report
from experiments.study.run import Run
from experiments.study.tuning import Score, Tuned
from tests.claim_rows import HOLDS, UNTESTED, complete, made_up, reaching, under, without

TUNED = Tuned(
    points=lambda scale: [{"method": "ours"}, {"method": "theirs"}],
    grid=lambda scale, point: (0.1, 0.2, 0.4),
    recipe=lambda scale, *, method, rate: Run(
        labels={"data": "digits"}, spec="configs/digits.py", overrides={"optimizer.learning_rate": rate}
    ),
    seeds={"smoke": 1, "laptop": 5},
)
CLAIM = made_up(TUNED)


def ending(best, *, worst=math.inf):
    """Measurements that end best at a rate; rates from `worst` on diverge."""

    def measured(labels):
        rate, target = labels["rate"], best[labels["method"]]
        return {"accuracy": [math.nan if rate >= worst else 0.9 - 0.1 * abs(math.log(rate / target))]}

    return measured


def picks(rows):
    return {method: TUNED.picked(rows, method=method) for method in ("ours", "theirs")}


@pytest.mark.parametrize("best", [0.2, 0.8, 1.6, 0.05, 0.0125])
def test_a_grid_is_continued_until_the_best_is_inside(best):
    rows = complete(CLAIM, ending({"ours": best, "theirs": 0.2}))
    assert picks(rows) == {"ours": pytest.approx(best), "theirs": 0.2}
    assert all(TUNED.is_inside(rows, method=method) for method in picks(rows))
    tried = {row["rate"] for row in TUNED.tried(rows, method="theirs")}
    assert tried == {0.1, 0.2, 0.4}  # which needs no more
    assert CLAIM.verdict(rows).word == HOLDS
    added = round(abs(math.log2(best / 0.2)))  # one value beyond the best on its side, of which one was there
    cells = {row[0]: row[-1] for row in TUNED.table("laptop", rows).to_numpy()}
    assert cells == {"ours": str(added), "theirs": "0"}


def test_a_pick_beside_runs_that_diverge_is_inside():
    rows = complete(CLAIM, ending({"ours": 0.4, "theirs": 0.2}, worst=0.5))
    assert picks(rows)["ours"] == 0.4 and TUNED.is_inside(rows, method="ours")


def test_a_pick_that_stays_at_the_edge_decides_nothing():
    rows = complete(CLAIM, ending({"ours": 1e9, "theirs": 0.2}))
    assert len({row["rate"] for row in TUNED.tried(rows, method="ours")}) == 3 + 8
    verdict = CLAIM.verdict(rows)
    assert verdict.word == UNTESTED
    assert "ours" in verdict.because
    assert "edge of its grid, 102" in verdict.because
    assert "at the edge" in report.section(CLAIM, rows)


def test_values_that_tie_are_no_reason_to_go_on():
    rows = complete(CLAIM, lambda labels: {"accuracy": [0.5]})
    assert picks(rows) == {"ours": 0.2, "theirs": 0.2} and CLAIM.verdict(rows).word == HOLDS


@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_learn_nothing_tie_and_one_that_learns_is_followed(sign):
    floored = dataclasses.replace(TUNED, score=Score(floor=sign * 0.2, mode="max" if sign > 0 else "min"))
    claim = made_up(floored)

    def measured(labels):  # guessing is luckiest at the largest rate; at the smallest theirs begin to learn
        guess = 0.1 + 0.05 * labels["rate"]
        learns = labels["method"] == "theirs" and labels["rate"] <= 0.1
        return {"accuracy": [sign * (0.3 if learns else min(guess, 0.2))]}

    rows = complete(claim, measured)
    tried = {method: {row["rate"] for row in floored.tried(rows, method=method)} for method in ("ours", "theirs")}
    assert tried["ours"] == {0.1, 0.2, 0.4} and floored.picked(rows, method="ours") == 0.2
    assert min(tried["theirs"]) == 0.05 and floored.picked(rows, method="theirs") < 0.2
    assert floored.table("laptop", rows)["In its grid"].tolist() == ["none learns", "inside"]


def test_every_tuning_seed_counts_and_none_may_be_missing():
    def measured(labels):  # the first seed alone would pick 0.4
        lucky = labels["rate"] == 0.4 and labels["seed"] == 0
        return {"accuracy": [0.99 if lucky else 0.9 if labels["rate"] == 0.2 else 0.5]}

    rows = complete(CLAIM, measured)
    assert picks(rows)["ours"] == 0.2
    missing = without(rows, split="validation", method="ours", seed=2, rate=0.1)
    assert not TUNED.is_tuned("laptop", missing, {"method": "ours"})
    assert TUNED.is_tuned("laptop", missing, {"method": "theirs"})
    assert CLAIM.verdict(missing).word == UNTESTED


def test_a_missing_seed_of_the_reported_runs_is_named():
    rows = complete(CLAIM, ending({"ours": 0.2, "theirs": 0.2}))
    verdict = CLAIM.verdict(without(rows, split="test", method="theirs", seed=3))
    assert verdict.word == UNTESTED and "method=theirs,rate=0.2,split=test,seed=3" in verdict.because


def test_a_rule_that_was_changed_after_rows_is_shown_with_the_old_one():
    rows = complete(CLAIM, ending({"ours": 0.2, "theirs": 0.2}))
    before = under(CLAIM, "Supported if it is not much worse.").stated

    def recorded(stated, rows):
        return [{**row, "origin": {**row["origin"], "rule": stated}} for row in rows]

    same = report.section(CLAIM, recorded(CLAIM.stated, rows))
    assert "changed after" not in same and "under this rule in other words" not in same
    mixed = report.section(CLAIM, recorded(before, rows[:7]) + recorded(CLAIM.stated, rows[7:]))
    assert (
        f"changed after the first runs; 7 of {len(rows)} were made under: Supported if it is not much worse." in mixed
    )


def test_the_first_at_the_target_is_picked_or_else_the_most_accurate():
    tuned = dataclasses.replace(TUNED, score=Score(target=lambda rows: 0.9, along="step"))

    def tried(reached):
        for rate, (at, accuracy) in reached.items():
            yield {"rate": rate, "method": "ours", **tuned.stages[0], **reaching(at, seconds=1, accuracy=accuracy)}

    assert tuned.picked(list(tried({0.1: (50, 0.95), 0.2: (40, 0.92), 0.4: (60, 0.99)})), method="ours") == 0.2
    assert tuned.picked(list(tried({0.1: (50, 0.6), 0.2: (50, 0.8), 0.4: (50, math.nan)})), method="ours") == 0.2
