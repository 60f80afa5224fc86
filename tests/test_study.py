"""The kit of claims: tests, verdicts and frames, and where SciPy and pandas would pass over something."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest

from experiments.study import frames, inference, prose
from experiments.study.frames import Value
from experiments.study.inference import equivalent, holm, opposites, paired, trend, welch
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


def test_sentences_say_what_is_tested():
    said = [
        welch("a", MORE, "above", "b", FEW, by=-1, unit="points", at="8 workers"),
        welch("a", MORE, "below", "b", FEW, share=0.02),
        paired("a", MORE, "below", 1.1),
        equivalent("a", MORE, "b", FEW, share=0.05),
        equivalent("a", MORE, 1.0, margin=0.5, unit="s", at="N = 4"),
        opposites([welch("a", MORE, "above", "b", FEW, by=0.25)])[0],
    ]
    assert [test.compared for test in said] == [
        "a above b less 1 point, 8 workers",
        "a below b plus 2 %",
        "a below 1.1",
        "a as b to within 5 %",
        "a as 1 to within 0.5 s, N = 4",
        "a below b plus 0.25",
    ]
    assert said[1].method == "one-sided Welch's t-test against 0.04" and said[3].margin == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "p", "low", "high"),
    [(welch, 0.07939, -3.3654832, 0.2054832), (paired, 0.002833, -2.4598858, -0.7001142)],
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
        ([99.0, 60.0, 99.0], [10.0, 10.0, 10.0], "points", "+76.00 points [+20.07, +100.00]"),
        ([8.0, 105.0], [1.0, 2.0], "s", "+55.00 s [-560.97, +670.97]"),
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
@pytest.mark.parametrize(("by", "moved"), [(0.0, 0.0), (-0.5, -0.5), (0.75, 0.75)])
def test_a_shift_moves_what_is_compared_with_and_not_what_is_shown(make, by, moved):
    found, plain = make("a", MORE, "above", "b", FEW, by=by), make("a", MORE, "above", "b", FEW)
    shifted = make("a", MORE, "above", "b", [value + moved for value in FEW])
    assert found.p == pytest.approx(shifted.p, rel=1e-9)
    assert (found.difference, found.low, found.high) == (plain.difference, plain.low, plain.high)
    assert found.p + found.opposite().p == pytest.approx(1)


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
    assert frames.by_seed(runs, "n", "steps").reindex(columns=[4, 16])[16].isna().all()
    with pytest.raises(ValueError, match="shapes"):
        paired("a", [1.0, 2.0], "below", "b", [1.0, 2.0, 3.0])


def test_equivalence_needs_small_noise_and_a_small_difference():
    quiet, noisy = [0.0, 0.1, -0.1, 0.05, -0.05], [0.0, 2.0, -2.0, 1.0, -1.0]
    both = equivalent("a", quiet, "b", quiet, margin=0.5)
    assert both.holds and not equivalent("a", noisy, "b", noisy, margin=0.5).holds
    assert not equivalent("a", quiet, "b", [value + 0.6 for value in quiet], margin=0.5).holds
    assert both.low < 0 < both.high < welch("a", quiet, "against", "b", quiet).high  # 90 % and 95 %
    assert equivalent("a", quiet, 2.0, margin=0.5).is_beyond and not both.is_beyond


def test_a_trend_needs_an_order():
    rising = np.array([[1.0, 2.0, 3.0, 4.0], [1.1, 2.5, 2.0, 4.0], [0.5, 2.0, 3.5, 3.0]])
    assert trend("a", rising).holds and not trend("a", rising[:, ::-1]).holds
    assert trend("a", np.insert(rising, 2, np.inf, axis=1)).p < 1  # never reached, between the ends: it has a rank


def test_holm_steps_down():
    assert [test.p for test in holm(*with_p(0.04, 0.01, 0.03))] == pytest.approx([0.06, 0.03, 0.06])
    assert [test.p for test in holm(*with_p(0.9, 0.8))] == [1.0, 1.0]
    assert [test.p for test in holm(*with_p(0.01, 0.01, 0.5))] == pytest.approx([0.03, 0.03, 0.5])
    assert holm(*with_p(0.04))[0].corrected == "" and holm(*with_p(0.04, 0.04))[0].corrected == "Holm, 2 tests"


@pytest.mark.parametrize(("std", "tests"), [(1.0, 1), (0.5, 14)])
def test_runs_that_an_equivalence_needs_show_it_four_times_of_five(std, tests):
    n = inference.runs_needed(inference.Test(compared="", method="", n=(2, 2), spread=std, margin=0.6), tests=tests)
    rng = np.random.default_rng(0)
    made = [equivalent("a", ours, "b", theirs, margin=0.6) for ours, theirs in rng.normal(0, std, (300, 2, n))]
    assert 0.7 < np.mean([test.p < 0.05 / tests for test in made]) < 0.9


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
    assert decide(tests, judged=tests[:1]).word == HOLDS and decide(tests, judged=tests[:1]).tests == tests


@pytest.mark.parametrize(
    ("values", "options", "said", "holds", "refutes"),
    [
        ([0.95], {"least": 0.9, "most": 1.1, "unit": "s"}, "at least 0.9 s and at most 1.1 s: 0.95 s, holds.", 1, 0),
        ([1.0], {"beyond": 1.0}, "It is above 1: 1.00, fails.", 0, 1),
        ([0.5, 2.0], {"least": 1.0, "refutes": False}, "It is at least 1: 0.50 to 2.00, fails.", 0, 0),
        ([], {"least": 1.0}, "It is at least 1: none, fails.", 0, 1),
        ([math.nan], {"most": 1.0}, "It is at most 1: nan, fails.", 0, 1),
    ],
)
def test_bounds(values, options, said, holds, refutes):
    found = bound("it", *values, **options)
    assert found.said.endswith(said) and (found.holds, found.refutes) == (bool(holds), bool(refutes))


@pytest.mark.parametrize(("spread", "said"), [(1.0, "runs a side would show each"), (0.01, "With 3 runs a side each")])
def test_an_equivalence_that_is_not_shown_says_how_many_runs_would(spread, said):
    ours = [0.0, spread, -spread]
    test = equivalent("a", ours, "b", [value + 0.5 for value in ours], margin=0.4)
    assert said in decide([test], refuted=False).because


# ---- frames ---------------------------------------------------------------------------------------------------------


def test_nothing_that_is_no_number_is_left_out_of_a_mean():
    """pandas' mean of 1, NaN and 3 is 2, and its count of them too; its deviation of one value is NaN."""
    assert frames.text(pd.Series([1.0, math.nan, 3.0])) == "nan ± nan (n=3)"
    assert frames.text(pd.Series([1.0])) == "1.00 ± 0.00 (n=1)"
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
    assert frames.accuracy(df).empty and frames.until(df, 0.5).empty and frames.groups(df, "step", "accuracy")[3].empty


def test_a_run_that_is_not_finite_ends_at_zero_and_one_without_evaluations_too():
    df = pd.DataFrame({"accuracy": [[0.5, 0.75], [0.5, math.nan], [], math.nan]})
    assert frames.accuracy(df).tolist() == [75.0, 0.0, 0.0, 0.0]


def test_the_way_to_a_target():
    df = pd.DataFrame({"step": [[1, 2, 3]] * 2, "loss": [[0.5, math.nan, 0.1], [0.9, 0.8, 0.7]]})
    assert frames.until(df, 0.2, of="loss", mode="min").tolist() == [3.0, math.inf]
    assert frames.until(df, pd.Series([0.5, 0.8]), of="loss", mode="min").tolist() == [1.0, 2.0]


# ---- prose ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "found"),
    [("at most {MOST}.", "at most 1.05."), ("{SEEDS[laptop]} seeds.", "5 seeds."), ("to {MOST:%}.", "to 105 %.")],
)
def test_constants_stand_in_the_rule(rule, found, tmp_path):
    (tmp_path / prose.FILE).write_text(f"# 1. T\n\nIt is.\n\nSource: a\n\nRule: Supported if {rule}\n\nA note, {{x}}.")
    made = prose.beside(str(tmp_path / "claim.py"), {"MOST": 1.05, "SEEDS": {"laptop": 5}})
    assert (made.rule, made.notes) == (f"Supported if {found}", ["A note, {x}."])
    with pytest.raises(ValueError, match=r"claim.md': the module has no '(MOST|SEEDS)'"):
        prose.beside(str(tmp_path / "claim.py"), {})
