"""Tests of differences: against textbook values, and where there is no noise or too little data."""

import dataclasses
import math
import random

import numpy as np
import pytest
from scipy import stats

from experiments.study import significance
from experiments.study.significance import (
    Contrast,
    equivalence_runs_needed,
    equivalent,
    holm,
    paired,
    runs_needed,
    shifted,
    trend,
    welch,
)

# Student's sleep data (Biometrika 6, 1908): extra hours of ten patients with two drugs. R's t.test gives, unpaired
# (Welch), t = -1.8608, df = 17.776, p = 0.07939, interval [-3.3654832, 0.2054832]; paired, t = -4.0621, p = 0.002833,
# interval [-2.4598858, -0.7001142].
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_sleep_data_give_the_values_of_r():
    found = welch(FIRST, SECOND, compared="sleep", side="two-sided")
    assert (found.p, found.low, found.high) == pytest.approx((0.07939, -3.3654832, 0.2054832), rel=1e-3)
    pairs = paired(FIRST, SECOND, compared="sleep", side="two-sided")
    assert (pairs.p, pairs.low, pairs.high) == pytest.approx((0.002833, -2.4598858, -0.7001142), rel=1e-3)
    assert found.difference == pairs.difference == pytest.approx(-1.58) and pairs.n == (10,)
    assert paired(FIRST, SECOND, compared="sleep", side="less").p == pytest.approx(0.002833 / 2, rel=1e-3)


def test_against_a_shift_p_is_of_the_distance_from_it_and_the_rest_of_the_whole_difference():
    found = shifted(welch, FIRST, SECOND, by=-1.0, compared="sleep", side="less", unit="h")
    error = 1.58 / 1.8608  # by the t of R above
    assert found.p == pytest.approx(stats.t.cdf((-1.58 + 1.0) / error, 17.776), rel=1e-3)
    whole = welch(FIRST, SECOND, compared="sleep", side="two-sided")
    assert (found.difference, found.low, found.high, found.effect) == (
        whole.difference,
        whole.low,
        whole.high,
        whole.effect,
    )
    assert found.method == "one-sided Welch's t-test against -1 h"
    other = shifted(welch, FIRST, SECOND, by=-1.0, compared="sleep", side="greater")
    assert found.p + other.p == pytest.approx(1)


def test_false_alarms_are_as_rare_as_alpha_says():
    draw = random.Random(0)
    values = [[draw.gauss(0, 1) for _ in range(12)] for _ in range(800)]
    alarms = [welch(a, b, compared="", side="greater").holds for a, b in zip(values[::2], values[1::2], strict=True)]
    assert 0.02 < sum(alarms) / len(alarms) < 0.09
    families = [
        holm([welch(values[i + k], values[i + k + 4], compared="", side="two-sided") for k in range(4)])
        for i in range(0, 792, 8)
    ]
    assert sum(any(contrast.holds for contrast in family) for family in families) / len(families) < 0.12


@pytest.mark.parametrize("side", ["greater", "less", "two-sided"])
def test_values_without_noise_decide_by_their_difference(side):
    for ours, theirs in (([2.0] * 3, [1.0] * 3), ([1.0] * 3, [2.0] * 3), ([1.0] * 3, [1.0] * 3)):
        sign = (ours > theirs) - (ours < theirs)
        held = {"greater": sign > 0, "less": sign < 0, "two-sided": sign != 0}[side]
        assert welch(ours, theirs, compared="", side=side).holds is held
        assert paired(ours, theirs, compared="", side=side).holds is held


def test_rounding_is_no_difference():
    for found in (
        welch([1 - 0.9] * 3, [0.1] * 3, compared="", side="less"),
        paired([0.1 + 0.2, 1.1], [0.3, 1.1], compared="", side="greater"),
    ):
        assert (found.holds, found.difference, found.effect) == (False, 0.0, 0.0)


def test_a_trend_of_what_is_no_number_has_too_few_runs():
    with pytest.raises(significance.TooFewRuns, match="steps with staleness: a value is not a number"):
        trend([[1.0, math.nan, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], compared="steps with staleness")


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [([1.0], [1.0, 2.0], "at least two"), ([1.0, math.nan], [1.0, 2.0], "finite"), ([], [], "at least two")],
)
def test_too_few_runs_are_an_error_that_names_the_comparison(ours, theirs, said):
    with pytest.raises(ValueError, match=f"a above b: .*{said}"):
        welch(ours, theirs, compared="a above b", side="greater")


def test_pairs_are_pairs():
    with pytest.raises(ValueError, match="3 and 2 runs are not pairs"):
        paired([1.0, 2.0, 3.0], [1.0, 2.0], compared="a", side="less")


def test_equivalence_needs_small_noise_and_a_small_difference():
    quiet, noisy = [0.0, 0.1, -0.1, 0.05, -0.05], [0.0, 2.0, -2.0, 1.0, -1.0]
    assert equivalent(quiet, quiet, margin=0.5, compared="").holds
    assert not equivalent(noisy, noisy, margin=0.5, compared="").holds  # no difference is seen, and none is excluded
    assert not equivalent(quiet, [value + 0.6 for value in quiet], margin=0.5, compared="").holds
    both = equivalent(quiet, quiet, margin=0.5, compared="")
    assert both.low < 0 < both.high and both.high < welch(quiet, quiet, compared="", side="two-sided").high


def test_effects_have_no_size_where_the_spread_is_rounding_or_two_pairs_are_all():
    tiny = [0.3, 0.3, 0.1 + 0.2]
    assert welch(tiny, [0.2] * 3, compared="", side="greater").effect == math.inf
    assert paired(tiny, [0.2] * 3, compared="", side="greater").effect == math.inf
    assert math.isnan(paired([1.0, 2.1], [0.0, 1.0], compared="", side="greater").effect)


def test_a_trend_of_two_conditions_is_refused():
    with pytest.raises(significance.TooFewRuns, match="a trend needs at least three conditions, not 2"):
        trend([[1.0, 2.0], [1.0, 3.0]], compared="error")


def test_a_trend_needs_an_order():
    rising = [[1.0, 2.0, 3.0, 4.0], [1.1, 2.5, 2.0, 4.0], [0.5, 2.0, 3.5, 3.0]]
    assert trend(rising, compared="").holds and not trend([row[::-1] for row in rising], compared="").holds


def test_holm_steps_down():
    def contrast(p):
        return Contrast(compared="", method="", difference=0, low=0, high=0, effect=0, p=p, n=(2,))

    found = [each.p for each in holm([contrast(0.04), contrast(0.01), contrast(0.03)])]
    assert found == pytest.approx([0.06, 0.03, 0.06])  # 0.01 x 3; 0.03 x 2; 0.04 x 1, no less than the one before
    assert holm([contrast(0.04)])[0].corrected == ""
    assert [each.p for each in holm([contrast(0.9), contrast(0.8)])] == [1.0, 1.0]


def test_runs_that_are_needed_show_the_difference_four_times_of_five():
    n, draw = runs_needed(std=1.0, difference=1.0), random.Random(1)
    shown = [
        welch([draw.gauss(1, 1) for _ in range(n)], [draw.gauss(0, 1) for _ in range(n)], compared="", side="two-sided")
        for _ in range(400)
    ]
    assert 0.7 < sum(contrast.holds for contrast in shown) / len(shown) < 0.88


@pytest.mark.parametrize(("std", "tests"), [(1.0, 1), (0.5, 14)])
def test_runs_that_an_equivalence_needs_show_it_four_times_of_five(std, tests):
    n, rng = equivalence_runs_needed(std=std, margin=0.6, tests=tests), np.random.default_rng(0)
    shown = [
        equivalent(*rng.normal(0, std, (2, n)).tolist(), margin=0.6, compared="").p < 0.05 / tests for _ in range(300)
    ]
    assert 0.7 < np.mean(shown) < 0.9


@pytest.mark.parametrize(
    ("ours", "theirs", "most", "shown"),
    [
        ([100.0, 50.0], [0.0, 0.0], 100, "+75.00 [-100.00, +100.00]"),
        ([99.0, 60.0, 99.0], [10.0, 10.0, 10.0], 100, "+76.00 [+20.07, +100.00]"),
        ([0.1, 0.2, 0.9], [0.9, 0.9, 1.0], 1, "-0.53 [-1.00, +0.52]"),
        ([8.0, 5.0], [1.0, 2.0], math.inf, "+5.00 [-8.27, +18.27]"),
        ([2.0, 2.0], [1.0, 1.0], math.inf, "+1.00"),
        ([1.0, 1.0], [1.0, 1.0], 1, "+0.00"),
    ],
)
def test_an_interval_is_shown_no_further_than_differences_go(ours, theirs, most, shown):
    found = welch(ours, theirs, compared="", side="two-sided")
    assert dataclasses.replace(found, most=most).interval == shown and 0 <= found.p <= 1


@pytest.mark.parametrize("size", [1e308, 2.0**900, 1e-9])
def test_a_test_is_the_same_in_any_unit(size):
    found, large = (
        welch(
            [u * value for value in (0.5, 1, 0.75)], [u * value for value in (0.25, 0.5, 0.3)], compared="", side="less"
        )
        for u in (1.0, size)
    )
    assert (large.p, large.effect) == pytest.approx((found.p, found.effect))
    assert large.high == pytest.approx(size * found.high)
