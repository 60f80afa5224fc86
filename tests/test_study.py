"""The kit of claims: tests, verdicts and frames, and where SciPy and pandas would pass over something."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest

from experiments.study import frames, inference, prose
from experiments.study.frames import Value
from experiments.study.inference import equivalent, holm, paired, trend, welch
from experiments.study.verdict import bound, decide
from tests.claim_rows import BUILT, FAILS, HOLDS, UNTESTED

FEW, MORE = [1.0, 2.0, 3.0], [3.0, 4.0, 5.5]
# Student's sleep data (Biometrika 6, 1908): extra hours of ten patients with two drugs. R's t.test gives, unpaired
# (Welch), t = -1.8608, df = 17.776, p = 0.07939, interval [-3.3654832, 0.2054832]; paired, t = -4.0621, p = 0.002833,
# interval [-2.4598858, -0.7001142].
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def with_p(*values, **options):
    return [inference.Test(compared=f"test {i}", method="", n=(2,), p=p, **options) for i, p in enumerate(values)]


# ---- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "p", "low", "high"), [(welch, 0.07939, -3.3654832, 0.2054832), (paired, 0.002833, -2.4598858, -0.7001142)]
)
def test_sleep_data_give_the_values_of_r(make, p, low, high):
    found = make("one drug", FIRST, "against", "the other", SECOND, unit="h")
    assert (found.p, found.low, found.high) == pytest.approx((p, low, high), rel=1e-3)
    assert found.difference == pytest.approx(-1.58)
    assert make("one drug", FIRST, "below", "the other", SECOND).p == pytest.approx(p / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("ours", "theirs", "unit", "shown"),
    [
        ([100.0, 50.0], [0.0, 0.0], "points", "+75.00 points [-100.00, +100.00]"),
        ([2.0, 2.0], [1.0, 1.0], "points", "+1.00 points"),
    ],
)
def test_an_interval_is_shown_no_further_than_differences_go(ours, theirs, unit, shown):
    assert welch("a", ours, "above", "b", theirs, unit=unit).interval == shown


def test_effects_have_no_size_where_the_spread_is_rounding_or_two_pairs_are_all():
    tiny = [0.3, 0.3, 0.1 + 0.2]
    assert all(make("a", tiny, "above", "b", [0.2] * 3).effect == math.inf for make in (welch, paired))
    assert math.isnan(paired("a", [1.0, 2.1], "above", "b", [0.0, 1.0]).effect)


@pytest.mark.parametrize("make", [welch, paired])
@pytest.mark.parametrize("theirs", [1.0, 2.0, 3.0])
@pytest.mark.parametrize(("is_", "holds"), [("above", [True, False, False]), ("below", [False, False, True])])
def test_constants_have_a_verdict_where_scipy_has_nan(make, theirs, is_, holds):
    found = make("a", [2.0] * 3, is_, "b", [theirs] * 3)
    assert found.holds is holds[int(theirs) - 1] and found.low == found.high == 2.0 - theirs
    assert found.effect == (0.0 if theirs == 2 else math.copysign(math.inf, 2 - theirs))


def test_constants_are_equivalent_within_the_margin_alone():
    assert equivalent("a", [1.0] * 3, "b", [1.1] * 3, margin=0.5).holds
    assert not equivalent("a", [1.0] * 3, "b", [1.6] * 3, margin=0.5).holds
    assert equivalent("a", [1.0] * 3, 1.2, margin=0.5).p == 0


def test_rounding_is_no_difference():
    for found in (
        welch("a", [1 - 0.9] * 3, "below", "b", [0.1] * 3),
        paired("a", [0.1 + 0.2, 1.1], "above", "b", [0.3, 1.1]),
    ):
        assert (found.holds, found.difference, found.effect) == (False, 0.0, 0.0)


def test_values_whose_squares_overflow_are_tested_as_small_ones():
    plain = welch("a", MORE, "above", "b", FEW)
    large = welch("a", [1e200 * value for value in MORE], "above", "b", [1e200 * value for value in FEW])
    assert (large.p, large.effect) == pytest.approx((plain.p, plain.effect))
    assert (large.difference, large.low) == pytest.approx((1e200 * plain.difference, 1e200 * plain.low))


def test_one_side_may_be_constant():
    with warnings.catch_warnings(action="error"):
        assert welch("a", [5.0] * 3, "above", "b", FEW).holds


@pytest.mark.parametrize(
    ("test", "why"),
    [
        (welch("a", [1.0], "above", "b", FEW), "a above b: a test needs at least two runs a side, not 1"),
        (welch("a", [], "above", "b", FEW, share=0.1), "two runs a side, not 0"),
        (welch("a", FEW, "above", "b", [], share=0.1), "two runs a side, not 0"),
        (welch("a", [1.0, math.nan], "above", "b", FEW), "a above b: a value is not finite"),
        (paired("a", [1.0, math.inf], "above", "b", [1.0, math.inf]), "a value is not finite"),
        (equivalent("a", [1.0, math.nan], 1.0, margin=1), "a value is not finite"),
        (trend("it grows", [[1.0, math.nan, 2.0]] * 3), "it grows: a value is not a number"),  # SciPy raises
        (trend("it grows", [[1.0, 2.0]] * 3), "at least three conditions"),
        (trend("it grows", [[1.0, 2.0, math.inf]] * 3), "a value is not finite"),
    ],
)
def test_a_test_that_cannot_be_made_says_why_and_decides_nothing(test, why):
    assert test.missing.endswith(why) and math.isnan(test.p) and not test.holds
    others = with_p(0.001)
    assert holm(*others, test) == [*others, test]
    assert decide([*others, test]).word == UNTESTED
    assert decide([*others, test], bound("it", 2, most=1)).word == FAILS  # which speaks against it in any case


def test_pairs_are_pairs_of_a_seed():
    runs = pd.DataFrame({"seed": [1, 0, 0, 1, 2], "n": [4, 4, 8, 8, 8], "steps": [5.0, 6.0, 1.0, 2.0, 9.0]})
    by_seed = frames.by_seed(runs[runs["seed"] < 2], "n", "steps")
    assert paired("8", by_seed[8], "below", "4", by_seed[4]).difference == -4
    one_is_missing = frames.by_seed(runs, "n", "steps")
    assert paired("8", one_is_missing[8], "below", "4", one_is_missing[4]).missing


def test_a_trend_needs_an_order():
    rising = np.array([[1.0, 2.0, 3.0, 4.0], [1.1, 2.5, 2.0, 4.0], [0.5, 2.0, 3.5, 3.0]])
    assert trend("a", rising).holds and not trend("a", rising[:, ::-1]).holds
    assert trend("a", np.insert(rising, 2, np.inf, axis=1)).p < 1  # never reached, between the ends: it has a rank


# ---- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "options", "word"),
    [
        ((0.01, 0.04), {}, HOLDS),
        ((0.01, 0.05), {}, FAILS),  # 0.05 is not below it
        ((0.01, 0.9), {"refuted": False}, UNTESTED),
        ((0.01, 0.04), {"refuted": True}, FAILS),
        ((), {"built": True}, BUILT),
        ((), {"built": True, "refuted": True}, FAILS),
    ],
)
def test_words(p, options, word):
    assert decide(with_p(*p), **options).word == word


@pytest.mark.parametrize(
    ("p", "against", "word"), [(0.01, 0.9, HOLDS), (0.9, 0.9, UNTESTED), (0.9, 0.01, FAILS), (0.01, 0.01, FAILS)]
)
def test_tests_against_a_claim_refute_it_and_others_leave_it_open(p, against, word):
    found = decide(with_p(p), against=with_p(against, 0.9))
    assert (found.word, len(found.tests)) == (word, 3)


def test_a_test_may_be_in_the_family_and_not_judged():
    tests = with_p(0.01, 0.9)
    assert decide(tests, judged=tests[:1]).word == HOLDS
    assert decide(tests, judged=tests[:1]).tests == tests


@pytest.mark.parametrize(
    ("values", "options", "said", "holds", "refutes"),
    [
        ([1.0], {"beyond": 1.0}, "It is above 1: 1.00, fails.", 0, 1),
        ([0.5, 2.0], {"least": 1.0, "refutes": False}, "It is at least 1: 0.50 to 2.00, fails.", 0, 0),
        ([], {"least": 1.0}, "It is at least 1: none, fails.", 0, 1),
        ([math.nan], {"most": 1.0}, "It is at most 1: nan, fails.", 0, 1),
    ],
)
def test_bounds(values, options, said, holds, refutes):
    found = bound("it", *values, **options)
    assert found.said.endswith(said) and (found.holds, found.refutes) == (bool(holds), bool(refutes))


# ---- frames ---------------------------------------------------------------------------------------------------------


def test_nothing_that_is_no_number_is_left_out_of_a_mean():
    """pandas' mean of 1, NaN and 3 is 2, and its count of them too; its deviation of one value is NaN."""
    assert frames.text(pd.Series([1.0, math.nan, 3.0])) == "nan ± nan (n=3)"
    assert frames.text(pd.Series([1.0])) == "1.00 (n=1)"
    assert frames.text(pd.Series([1.0, math.inf, 3.0])) == "2 of 3 runs get there"
    assert frames.text(pd.Series([1.0, 1.5]), is_fixed=True) == "1.25 ± 0.35 (n=2)"  # it is not, after all


def test_a_summary_has_whole_numbers_where_a_label_is_missing_and_the_papers_lines_without_runs():
    rows = [{"n": 8, "end": 1.0}, {"n": 8, "end": 2.0}, {"other": 1, "end": 3.0}]
    df = frames.frame(rows)
    assert df["n"].dtype == float  # pandas has made them floats
    shown = frames.summary(df, ["n"], {"end": Value("end")}, {8: "2 [READ]", 16: "3 [MEM]"})
    assert shown.to_numpy().tolist() == [["8", "1.50 ± 0.71 (n=2)", "2 [READ]"], ["16", "", "3 [MEM]"]]


def test_a_frame_of_no_rows_has_its_columns():
    df = frames.frame([], "accuracy", "step")
    assert frames.accuracy(df).empty
    assert frames.until(df, 0.5).empty
    assert frames.groups(df, "step", "accuracy")[3].empty


def test_a_run_that_is_not_finite_ends_at_zero_and_one_without_evaluations_too():
    df = pd.DataFrame({"accuracy": [[0.5, 0.75], [0.5, math.nan], [], math.nan]})
    assert frames.accuracy(df).tolist() == [75.0, 0.0, 0.0, 0.0]


def test_the_way_to_a_target():
    df = pd.DataFrame({"step": [[1, 2, 3]] * 2, "loss": [[0.5, math.nan, 0.1], [0.9, 0.8, 0.7]]})
    assert frames.until(df, 0.2, of="loss", mode="min").tolist() == [3.0, math.inf]
    assert frames.until(df, pd.Series([0.5, 0.8]), of="loss", mode="min").tolist() == [1.0, 2.0]


# ---- prose ----------------------------------------------------------------------------------------------------------


HEAD = "# 1. T\n\nIt is.\n\nSource: a"


@pytest.mark.parametrize(
    ("rule", "found"),
    [("at most {MOST}.", "at most 1.05."), ("{SEEDS[laptop]} seeds.", "5 seeds."), ("to {MOST:%}.", "to 105 %.")],
)
def test_constants_stand_in_the_rule(rule, found, tmp_path):
    (tmp_path / prose.FILE).write_text(f"{HEAD}\n\nTopic: Adasum\n\nRule: Supported if {rule}\n\nA note, {{x}}.")
    made = prose.beside({"__file__": str(tmp_path / "claim.py"), "MOST": 1.05, "SEEDS": {"laptop": 5}})
    assert (made.rule, made.notes) == (f"Supported if {found}", ["A note, {x}."])
    with pytest.raises(ValueError, match=r"claim.md': the module has no '(MOST|SEEDS)'"):
        prose.beside({"__file__": str(tmp_path / "claim.py")})


@pytest.mark.parametrize("given", ["Topic: Cooking", "Rule: Supported if so.\n\nTopic: Adasum", ""])
def test_a_claim_has_one_of_the_topics_below_its_source(given, tmp_path):
    (tmp_path / prose.FILE).write_text(f"{HEAD}\n\n{given}\n")
    with pytest.raises(ValueError, match=r"claim.md': topic='(Cooking)?': .* one of .*; Adasum; ") as refused:
        prose.beside({"__file__": str(tmp_path / "claim.py")})
    assert "\n" not in str(refused.value)
