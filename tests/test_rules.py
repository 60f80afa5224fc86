"""Rules of claims: each kind of part can hold, be refuted, or stay open; the text says what decides."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from experiments.study.rule import (
    ACCURACY,
    FINITE_ACCURACY,
    Bound,
    Compare,
    Condition,
    Group,
    Grows,
    Measure,
    Rule,
    all_finite,
    ends_above,
)
from experiments.study.significance import TooFewRuns
from tests.claim_rows import BUILT, FAILS, HOLDS, UNTESTED

NEAR = [-0.1, 0.0, 0.1, 0.05, -0.05]
MEASURE = Measure(words="the length", values=lambda rows: [row["length"] for row in rows], unit="cm", gap="mm")


def rows(**means):
    """Five runs of each arm around its mean; a list gives the values themselves."""
    found = []
    for arm, mean in means.items():
        values = mean if isinstance(mean, list) else [mean + noise for noise in NEAR]
        found += [{"arm": arm, "seed": seed, "length": value} for seed, value in enumerate(values)]
    return found


def arm(name):
    return Group(name, MEASURE, lambda rows: [row for row in rows if row["arm"] == name])


A, B, C = map(arm, "abc")


def rule(*parts, **options):
    return Rule(parts=lambda scale: parts, **options)


def word(parts, **means):
    return rule(*parts).judge(rows(**means)).word


@pytest.mark.parametrize(
    ("part", "b", "expected"),
    [
        ({"is_": "above"}, 4.0, HOLDS),
        ({"is_": "above"}, 5.0, FAILS),
        ({"is_": "above", "refuted": "reversed"}, 4.0, HOLDS),
        ({"is_": "above", "refuted": "reversed"}, 5.0, UNTESTED),
        ({"is_": "above", "refuted": "reversed"}, 6.0, FAILS),
        ({"is_": "below", "refuted": "never"}, 6.0, HOLDS),
        ({"is_": "below", "refuted": "never"}, 4.0, UNTESTED),
        ({"is_": "below"}, 6.0, HOLDS),
        ({"is_": "above", "by": -0.5}, 5.2, HOLDS),  # not below by half of a millimetre
        ({"is_": "above", "by": 0.5}, 4.8, FAILS),  # above, but not by as much
        ({"is_": "below", "by": 0.2, "share": True}, 4.5, HOLDS),  # 4.5 and a fifth of it
        ({"is_": "below", "by": 0.2, "share": True}, 4.0, FAILS),
        ({"is_": "above", "paired": True}, 5.0, FAILS),
        ({"is_": "above", "paired": True, "by": -0.5}, 5.0, HOLDS),
        ({"is_": "above", "paired": True}, [4.8, 4.9, 5.0, 4.95, 4.85], HOLDS),  # each is 0.1 lower
        ({"is_": "as", "by": 0.5}, 5.1, HOLDS),
        ({"is_": "as", "by": 0.5}, 5.5, FAILS),
        ({"is_": "as", "by": 0.5, "refuted": "beyond"}, 5.5, UNTESTED),
        ({"is_": "as", "by": 0.5, "refuted": "beyond"}, 6.5, FAILS),
        ({"is_": "as", "by": 0.5, "refuted": "beyond"}, 3.5, FAILS),
    ],
)
def test_two_groups(part, b, expected):
    assert word([Compare(ours=A, theirs=B, **part)], a=5.0, b=b) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"is_": "above", "theirs": 4.8}, HOLDS),
        ({"is_": "above", "theirs": 5.0}, FAILS),
        ({"is_": "below", "theirs": 4.8}, FAILS),
        ({"is_": "as", "theirs": 5.1, "by": 0.3}, HOLDS),
        ({"is_": "as", "theirs": 5.3, "by": 0.3}, FAILS),
    ],
)
def test_a_group_and_a_number(part, expected):
    assert word([Compare(ours=A, **part)], a=5.0) == expected


def test_a_difference_within_the_noise_shows_nothing():
    wide = {"a": [1.0, 9.0, 5.2, 4.9, 5.4], "b": [5.0, 2.0, 8.0, 5.1, 4.8]}
    for refuted, expected in (("not shown", FAILS), ("reversed", UNTESTED), ("beyond", UNTESTED), ("never", UNTESTED)):
        relation = {"is_": "as", "by": 0.5} if refuted == "beyond" else {"is_": "above"}
        assert word([Compare(ours=A, theirs=B, refuted=refuted, **relation)], **wide) == expected


def test_all_tests_are_corrected_together_and_their_opposites_apart():
    parts = [
        Compare(ours=A, is_="above", theirs=B, refuted="reversed"),
        Compare(ours=A, is_="above", theirs=C, refuted="reversed", at="there"),
        Compare(ours=B, is_="below", theirs=C, judged=False),
    ]
    found = rule(*parts).judge(rows(a=5.0, b=4.85, c=4.7))
    assert [contrast.corrected for contrast in found.contrasts] == ["Holm, 3 tests"] * 3 + ["Holm, 2 tests"] * 2
    assert [contrast.compared for contrast in found.contrasts][3:] == ["a below b", "a below c, there"]
    plain = [
        stats.ttest_ind(np.add(one, NEAR), np.add(other, NEAR), equal_var=False, alternative="greater").pvalue
        for one, other in ((5.0, 4.85), (5.0, 4.7), (4.7, 4.85))
    ]
    ours = [contrast.p for contrast in found.contrasts[:2]]
    p = np.sort([*plain[:2], 1 - plain[2]])
    assert sorted(ours)[0] == pytest.approx(3 * p[0])


def test_what_is_not_judged_may_fail_and_what_is_needed_may_not():
    above = Compare(ours=A, is_="above", theirs=B)
    other = Compare(ours=A, is_="above", theirs=C)
    for change, expected in (({"judged": False}, HOLDS), ({"needed": True}, UNTESTED), ({}, FAILS)):
        assert word([above, dataclasses.replace(other, **change)], a=5.0, b=4.0, c=6.0) == expected


def test_a_part_counts_where_its_condition_is_met():
    where = Condition("there are three arms", lambda rows: len({row["arm"] for row in rows}) == 3)
    parts = [Compare(ours=A, is_="above", theirs=B), Compare(ours=A, is_="above", theirs=C, where=where)]
    assert word(parts, a=5.0, b=4.0) == HOLDS and word(parts, a=5.0, b=4.0, c=6.0) == FAILS


def test_a_trend():
    def by_seed(rows):
        return list(zip(*(group.values(rows) for group in (A, B, C)), strict=True))

    part = Grows(words="it grows from a to c", by_run=by_seed)
    assert word([part], a=1.0, b=2.0, c=3.0) == HOLDS and word([part], a=3.0, b=2.0, c=1.0) == FAILS


@pytest.mark.parametrize(
    ("bound", "value", "expected"),
    [
        ({"least": 1.0}, 1.0, HOLDS),
        ({"least": 1.0}, 0.9, FAILS),
        ({"most": 1.0}, 1.0, HOLDS),
        ({"most": 1.0}, 1.1, FAILS),
        ({"beyond": 1.0}, 1.0, FAILS),
        ({"least": 1.0, "refutes": False}, 0.9, UNTESTED),
        ({"least": 1.0}, math.nan, FAILS),
    ],
)
def test_bounds(bound, value, expected):
    part = Bound(words="the height", values=lambda rows: [2.0 if bound.get("least") else 0.0, value][1:], **bound)
    assert word([part], a=1.0) == expected
    constructed = rule(part, constructed=True).judge(rows(a=1.0)).word
    assert constructed == (BUILT if expected == HOLDS else expected)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.6, 0.9), HOLDS), ((0.4, 0.9), UNTESTED), ((0.1, 0.4), FAILS), ((math.nan, math.nan), UNTESTED)],
)
def test_an_interval_speaks_against_a_claim_only_as_a_whole(interval, expected):
    part = Bound(words="the exponent", values=lambda rows: interval, beyond=0.5, interval=True)
    assert word([part], a=1.0) == expected
    refuting = Compare(ours=A, is_="above", theirs=B)
    assert word([part, refuting], a=1.0, b=2.0) == FAILS


def test_one_test_against_a_claim_is_enough():
    against = Rule(
        parts=lambda scale: [Compare(ours=A, is_="below", theirs=B, by=2.0, refuted="never")],
        against=lambda scale: [Compare(ours=A, is_="above", theirs=B), Compare(ours=A, is_="above", theirs=C)],
    )
    assert against.judge(rows(a=5.0, b=5.0, c=5.0)).word == HOLDS
    assert against.judge(rows(a=5.0, b=5.0, c=4.0)).word == FAILS
    assert against.judge(rows(a=5.0, b=3.0, c=5.0)).word == FAILS
    assert against.judge(rows(a=5.0, b=[0.0, 6.0, 3.0, 9.0, 7.0], c=5.0)).word == UNTESTED


def test_needs_come_first_and_say_what_is_missing():
    found = rule(Compare(ours=A, is_="above", theirs=B), needs=[all_finite(A, B), ends_above(B, 3.0)])
    assert found.judge(rows(a=5.0, b=4.0)).word == HOLDS
    little = found.judge(rows(a=5.0, b=2.0))
    assert little.word == UNTESTED and little.because == "b learns little: it ends at 2.00 ± 0.08 cm (n=5)."
    off = found.judge(rows(a=5.0, b=[1.0, math.inf]))
    assert off.word == UNTESTED and off.because == "A value is not finite in a run of b."


def test_a_bound_that_is_broken_decides_where_no_test_can_be_made():
    part = Bound(words="the share", values=lambda rows: [0.5], least=1.0)
    tests = [part, Compare(ours=A, is_="above", theirs=B)]
    assert word(tests, a=5.0, b=[math.inf, 1.0]) == FAILS
    with pytest.raises(TooFewRuns):
        word(tests[1:], a=5.0, b=[math.inf, 1.0])


def test_the_text_says_what_decides():
    text = rule(
        *(Compare(ours=ours, is_="above", theirs=C, by=-1, at=at) for at in ("here", "there") for ours in (A, B)),
        Bound(words="the height", values=lambda rows: [1.0], least=1.0, most=2.0, unit="m"),
        setting="five seeds",
        needs=[ends_above(C, 3.0)],
        remark="Nothing else counts.",
    ).text
    assert text == (
        "By the length, five seeds. Supported if each of a and b is above c less 1 mm, at each of here and there (4 "
        "one-sided Welch tests, corrected together by Holm's method, at 0.05); and the height is at least 1 m and at "
        "most 2 m. Not tested if c is not above 3 cm on average. Not supported otherwise. Nothing "
        "else counts."
    )


def test_tests_of_several_measures_name_theirs():
    height = Measure(words="the height", values=MEASURE.values, short="height")
    two = [Compare(ours=A, is_="above", theirs=B), Compare(ours=Group("a", height, A.pick), is_="below", theirs=B)]
    found = rule(*two).judge(rows(a=5.0, b=4.0))
    assert [contrast.compared for contrast in found.contrasts] == ["a above b", "a below b in height"]
    assert "a is above b and a is below b in height (2 one-sided" in rule(*two).text


def test_the_text_says_when_a_claim_stays_open():
    both = [
        Compare(ours=A, is_="above", theirs=B, refuted="reversed"),
        Compare(ours=A, is_="as", theirs=C, by=0.1, share=True, refuted="beyond"),
    ]
    text = rule(*both).text
    assert "a is above b and a is as c to within 10 %" in text
    assert "shown the other way round" in text and "90 % interval" in text and "Not tested if neither is so." in text
    needed = rule(Compare(ours=A, is_="above", theirs=B, needed=True), both[0]).text
    assert needed.endswith("Not tested if neither is so, or if this is not shown: a is above b.")


def test_a_verdict_lists_its_groups_and_what_is_not_shown():
    found = rule(Compare(ours=A, is_="above", theirs=B), Compare(ours=A, is_="above", theirs=C, at="there"))
    because = found.judge(rows(a=5.0, b=4.0, c=6.0)).because
    assert because.startswith("The length: a 5.00 ± 0.08 cm (n=5); b 4.00 ± 0.08 cm (n=5); a, there 5.00")
    assert because.endswith("1 of 2 comparisons hold. Not shown: a above c, there.")


def test_a_verdict_that_stays_open_says_how_many_runs_an_equivalence_needs():
    open_part = Compare(ours=A, is_="as", theirs=B, by=0.1, refuted="beyond")
    because = rule(open_part).judge(rows(a=5.0, b=5.05)).because
    # 2 ((1.645 + 1.282) 0.079 / 0.1)^2, rounded up
    assert because.endswith("If there is no difference, 11 runs a side would show each of these with a power of 80 %.")
    assert "If there" not in rule(open_part).judge(rows(a=5.0, b=9.0)).because
    assert "If there" not in rule(open_part).judge(rows(a=[5.0, 5.001] * 5, b=[5.0, 5.001] * 5)).because


@pytest.mark.parametrize("measure", [ACCURACY, FINITE_ACCURACY])
@pytest.mark.parametrize("relation", ["above", "below"])
def test_a_difference_of_accuracies_is_shown_to_a_hundred_points_at_most(measure, relation):
    ours, theirs = (
        Group(name, measure, lambda rows, name=name: [row for row in rows if row["name"] == name]) for name in "ab"
    )
    ends = [("a", 1.0), ("a", 0.3), ("b", 0.0), ("b", 0.1)]
    of_runs = [{"name": name, "accuracy": [end]} for name, end in ends]
    found = Compare(ours=ours, is_=relation, theirs=theirs).contrast(of_runs)
    assert found.interval == "+60.00 points [-100.00, +100.00]" and found.high > 100
