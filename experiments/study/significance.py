"""The tests that verdicts rest on: each gives a difference with its interval, an effect size and a p-value.

A claim states before its runs which test decides it, and the margin where equivalence is tested. Where several tests
make one verdict, `holm` corrects their p-values.
"""

import dataclasses
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

ALPHA = 0.05
POWER = 0.8
LARGEST = 1e100  # the squares of larger numbers overflow
_ROUNDING = 1e-12  # relative, of numbers that are equal but for rounding
Side = Literal["greater", "less", "two-sided"]


class TooFewRuns(ValueError):
    """A test cannot be made of these values: there are too few, or some are not finite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast:
    """A comparison of two groups of runs, as a test sees it.

    Attributes:
      compared: what is compared, such as "adasum above mean".
      method: name of the test.
      difference: estimate of the difference.
      low, high: 95 % confidence interval of the difference (90 % for an equivalence test, as is usual).
      effect: difference in units of the standard deviation (Hedges' g, which corrects Cohen's d for small samples).
      p: p-value, corrected if the test is of a family.
      n: number of runs on either side.
      unit: unit of the difference.
      digits: digits after the point in texts.
      corrected: "" or the name of the correction of p.
      most: the largest difference that there can be, at which texts cut the interval.
    """

    compared: str
    method: str
    difference: float
    low: float
    high: float
    effect: float
    p: float
    n: tuple[int, ...]
    unit: str = ""
    digits: int = 2
    corrected: str = ""
    most: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether p is below ALPHA."""
        return self.p < ALPHA

    @property
    def interval(self) -> str:
        """The difference with its confidence interval, as text; an interval without any width shows nothing.

        >>> welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0], compared="a above b", side="greater").interval
        '+2.00 [-0.27, +4.27]'
        """
        low, high = max(self.low, -self.most), min(self.high, self.most)
        values = [f"{value:+.{self.digits}f}" for value in (self.difference, low, high)]
        between = f" [{values[1]}, {values[2]}]" if low < high else ""
        return f"{values[0]}{self.unit and f' {self.unit}'}{between}"

    def __str__(self) -> str:
        corrected = f" ({self.corrected})" if self.corrected else ""
        n = " and ".join(map(str, self.n))
        return f"{self.compared}: {self.interval}, g = {self.effect:.2f}, p = {self.p:.2g}{corrected}, n = {n}"


def welch(
    ours: Sequence[float], theirs: Sequence[float], *, compared: str, side: Side, unit: str = "", digits: int = 2
) -> Contrast:
    """Compares two means by Welch's t-test, which allows different variances.

    Args:
      ours: one value per run.
      theirs: the same of the others, at least two each.
      compared: what is compared, in words.
      side: the alternative: that our mean is greater, is less, or differs.
      unit: unit of the values, for texts.
      digits: digits of the difference in texts.

    Raises:
      TooFewRuns: one line, if a side has fewer than two runs or a value that is not finite.

    >>> print(welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0], compared="a above b", side="greater"))
    a above b: +2.00 [-0.27, +4.27], g = 1.60, p = 0.035, n = 3 and 3
    """
    _check(ours, theirs, compared=compared)
    largest = max(map(abs, [*ours, *theirs]))
    unit_size = largest if largest > LARGEST else 1.0
    ours, theirs = ([value / unit_size for value in values] for values in (ours, theirs))
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if _is_constant(ours, theirs):
        difference, spread = _without_rounding(difference, scale=ours[0]), 0.0
        found = _without_spread(difference, side)
    else:
        spread = math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / 2)
        found = _welch(ours, theirs, side=side, level=1 - ALPHA)
    p, low, high = found
    effect = _hedges(difference, spread, freedom=len(ours) + len(theirs) - 2)
    shown: dict[str, Any] = {"unit": unit, "digits": digits, "n": (len(ours), len(theirs)), "compared": compared}
    difference, low, high = (unit_size * value for value in (difference, low, high))
    return Contrast(method="Welch's t-test", difference=difference, low=low, high=high, effect=effect, p=p, **shown)


def paired(
    ours: Sequence[float], theirs: Sequence[float], *, compared: str, side: Side, unit: str = "", digits: int = 2
) -> Contrast:
    """Compares values that belong together, such as those of the same seed, by a paired t-test.

    The arguments are those of `welch`; both sides are equally long.

    >>> print(paired([3.0, 4.0, 5.0], [1.0, 2.5, 3.0], compared="a above b", side="greater"))
    a above b: +1.83 [+1.12, +2.55], g = 3.63, p = 0.0041, n = 3
    """
    from scipy import stats

    if len(ours) != len(theirs):
        raise ValueError(f"{compared}: {len(ours)} and {len(theirs)} runs are not pairs")
    _check(ours, theirs, compared=compared)
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    difference = statistics.fmean(differences)
    if _is_constant(differences):
        difference, spread = _without_rounding(difference, scale=ours[0]), 0.0
        found = _without_spread(difference, side)
    else:
        spread = statistics.stdev(differences)
        result = stats.ttest_1samp(differences, 0.0, alternative=side)
        interval = stats.ttest_1samp(differences, 0.0).confidence_interval(1 - ALPHA)
        found = float(result.pvalue), float(interval.low), float(interval.high)
    p, low, high = found
    effect = _hedges(difference, spread, freedom=len(differences) - 1)
    shown: dict[str, Any] = {"unit": unit, "digits": digits, "n": (len(ours),), "compared": compared}
    return Contrast(method="paired t-test", difference=difference, low=low, high=high, effect=effect, p=p, **shown)


def shifted(
    test: Callable[..., Contrast],
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    by: float,
    compared: str,
    side: Side,
    unit: str = "",
    digits: int = 2,
) -> Contrast:
    """Compares values with others plus a shift, such as a margin of non-inferiority; shows the whole difference.

    Args:
      test: `welch`, or `paired`.
      ours: one value per run.
      theirs: the same of the others.
      by: the shift: the alternative is that the difference is above it, is below it, or is another.
      compared: what is compared, in words.
      side: the alternative, as of the test.
      unit: unit of the values, for texts.
      digits: digits of the difference in texts.

    Raises:
      TooFewRuns: as of the test.

    >>> shown = {"by": -0.5, "compared": "a not below b by 0.5", "side": "greater"}
    >>> print(shifted(welch, [3.0, 3.1, 2.9], [3.1, 3.2, 3.0], **shown))
    a not below b by 0.5: -0.10 [-0.33, +0.13], g = -0.80, p = 0.004, n = 3 and 3
    >>> print(shifted(paired, [3.0, 3.1, 2.8], [3.1, 3.2, 3.0], **shown))
    a not below b by 0.5: -0.13 [-0.28, +0.01], g = -1.32, p = 0.0041, n = 3
    """
    shown: dict[str, Any] = {"compared": compared, "unit": unit, "digits": digits}
    found = test([value - by for value in ours], theirs, side=side, **shown)
    sides = f"{'two' if side == 'two-sided' else 'one'}-sided " if test is welch else ""
    method = f"{sides}{found.method} against {by:.4g}{unit and f' {unit}'}"
    return dataclasses.replace(test(ours, theirs, side="two-sided", **shown), p=found.p, method=method)


def equivalent(
    ours: Sequence[float], theirs: Sequence[float], *, margin: float, compared: str, unit: str = "", digits: int = 2
) -> Contrast:
    """Tests that two means differ by less than a margin, which is stated before the runs.

    Two one-sided Welch tests (TOST): p is the larger of theirs. Where it is small, the means are equivalent; that a
    difference is not significant shows nothing of the kind.

    Args:
      ours: one value per run.
      theirs: the same of the others.
      margin: the least difference that matters, above 0.
      compared: what is compared, in words.
      unit: unit of the values, for texts.
      digits: digits of the difference in texts.

    >>> equivalent([3.0, 3.1, 2.9], [3.0, 3.1, 2.9], margin=0.5, compared="a as b").holds
    True
    """
    shown: dict[str, Any] = {"compared": compared, "unit": unit, "digits": digits}
    above = welch([value + margin for value in ours], theirs, side="greater", **shown)
    below = welch([value - margin for value in ours], theirs, side="less", **shown)
    both = welch(ours, theirs, side="two-sided", **shown)
    low, high = both.low, both.high
    if not _is_constant(ours, theirs):
        _, low, high = _welch(ours, theirs, side="two-sided", level=1 - 2 * ALPHA)
    method = f"equivalence, two one-sided Welch tests, margin {margin:g}"
    return dataclasses.replace(both, method=method, p=max(above.p, below.p), low=low, high=high)


def equivalent_to(
    values: Sequence[float], target: float, *, margin: float, compared: str, unit: str = "", digits: int = 2
) -> Contrast:
    """Tests that a mean differs from a number by less than a margin, which is stated before the runs.

    Two one-sided t-tests; the difference is that of the mean and the number.

    Args:
      values: one value per run.
      target: the number.
      margin: the least difference that matters, above 0.
      compared: what is compared, in words.
      unit: unit of the values, for texts.
      digits: digits of the difference in texts.

    >>> print(equivalent_to([0.98, 1.01, 1.02, 0.99], 1.0, margin=0.1, compared="a as 1"))
    a as 1: +0.00 [-0.02, +0.02], g = 0.00, p = 0.00081, n = 4
    """
    shown: dict[str, Any] = {"compared": compared, "unit": unit, "digits": digits}
    numbers = [target] * len(values)
    above = paired([value + margin for value in values], numbers, side="greater", **shown)
    below = paired([value - margin for value in values], numbers, side="less", **shown)
    both = paired(values, numbers, side="two-sided", **shown)
    shrunk = _t(len(values) - 1, 2 * ALPHA) / _t(len(values) - 1, ALPHA)
    low, high = (both.difference + shrunk * (end - both.difference) for end in (both.low, both.high))
    method = f"equivalence, two one-sided t-tests, margin {margin:g}"
    return dataclasses.replace(both, method=method, p=max(above.p, below.p), low=low, high=high)


def trend(rows: Sequence[Sequence[float]], *, compared: str, unit: str = "", digits: int = 2) -> Contrast:
    """Tests that values grow along ordered conditions, by Page's trend test over the rows.

    Args:
      rows: one row per seed, one value per condition, in the order in which they should grow.
      compared: what grows with what, in words.
      unit: unit of the values, for texts.
      digits: digits of the difference in texts.

    Returns:
      The test; its difference is that of the last condition and the first, by seed.

    >>> trend([[1.0, 2.0, 4.0], [1.5, 2.0, 3.0], [1.0, 3.0, 5.0]], compared="error with staleness").p < 0.05
    True
    """
    from scipy import stats

    if any(math.isnan(value) for row in rows for value in row):
        raise TooFewRuns(f"{compared}: a value is not a number")
    if len(rows[0]) < 3:
        raise TooFewRuns(f"{compared}: a trend needs at least three conditions, not {len(rows[0])}")
    # An infinity between the ends, as of a target that was never reached, has a rank; at an end it has no difference.
    ends = paired([row[-1] for row in rows], [row[0] for row in rows], compared=compared, side="greater")
    p = float(stats.page_trend_test(rows).pvalue)
    return dataclasses.replace(ends, method="Page's trend test", p=p, unit=unit, digits=digits)


def holm(tests: Sequence[Contrast]) -> list[Contrast]:
    """Returns the tests of one verdict with p-values corrected by Holm's step-down method.

    The smallest of m p-values is multiplied by m, the next by m - 1, and so on; none gets below one before it.

    >>> test = welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0], compared="a above b", side="greater")
    >>> [round(each.p, 3) for each in holm([test, dataclasses.replace(test, p=0.01)])]
    [0.035, 0.02]
    """
    if len(tests) < 2:
        return list(tests)
    corrected, floor = {}, 0.0
    for position, i in enumerate(sorted(range(len(tests)), key=lambda i: tests[i].p)):
        floor = max(floor, min(1.0, (len(tests) - position) * tests[i].p))
        corrected[i] = dataclasses.replace(tests[i], p=floor, corrected=f"Holm, {len(tests)} tests")
    return [corrected[i] for i in range(len(tests))]


def runs_needed(*, std: float, difference: float) -> int:
    r"""Returns how many runs a side show a difference with a power of 80 %, by a two-sided test at ALPHA.

    The usual approximation by normal quantiles, :math:`n = 2 ((z_{1-\alpha/2} + z_{0.8}) s / d)^2`.

    >>> runs_needed(std=1.0, difference=1.0)
    16
    """
    normal = statistics.NormalDist()
    quantiles = normal.inv_cdf(1 - ALPHA / 2) + normal.inv_cdf(POWER)
    return max(2, math.ceil(2 * (quantiles * std / difference) ** 2))


def equivalence_runs_needed(*, std: float, margin: float, sides: int = 2, tests: int = 1) -> int:
    r"""Returns how many runs a side show an equivalence with a power of 80 % if there is no difference.

    By normal quantiles, :math:`n = k ((z_{1-\alpha/m} + z_{0.9}) s / \delta)^2`, as the first of m tests that Holm's
    method corrects.

    Args:
      std: s, the standard deviation of a run.
      margin: :math:`\delta`, of the equivalence.
      sides: k, 2 for two groups of runs, and 1 for a group and a number.
      tests: m.

    >>> equivalence_runs_needed(std=1.0, margin=1.0)
    18
    """
    normal = statistics.NormalDist()
    quantiles = normal.inv_cdf(1 - ALPHA / tests) + normal.inv_cdf((1 + POWER) / 2)
    return max(2, math.ceil(sides * (quantiles * std / margin) ** 2))


def _welch(ours: Sequence[float], theirs: Sequence[float], *, side: Side, level: float) -> tuple[float, float, float]:
    """Returns p-value and two-sided interval of Welch's test."""
    from scipy import stats

    with warnings.catch_warnings():  # one side may be constant, which is precise enough
        warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
        p = stats.ttest_ind(ours, theirs, equal_var=False, alternative=side).pvalue
        interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(level)
    return float(p), float(interval.low), float(interval.high)


def _t(freedom: int, level: float) -> float:
    """Returns the two-sided quantile of Student's t."""
    from scipy import stats

    return float(stats.t.ppf(1 - level / 2, freedom))


def _check(*sides: Sequence[float], compared: str) -> None:
    for values in sides:
        if len(values) < 2:
            raise TooFewRuns(f"{compared}: a test needs at least two runs a side, not {len(values)}")
        if not all(map(math.isfinite, values)):
            raise TooFewRuns(f"{compared}: a value is not finite")


def _is_constant(*sides: Sequence[float]) -> bool:
    """Returns whether the values of each side are equal, so that a t statistic does not exist."""
    return all(max(values) - min(values) <= _ROUNDING * max(1.0, abs(values[0])) for values in sides)


def _without_rounding(difference: float, *, scale: float) -> float:
    """Returns 0 in place of a difference that is rounding alone, in numbers of this size."""
    return difference if abs(difference) > _ROUNDING * max(1.0, abs(scale)) else 0.0


def _without_spread(difference: float, side: Side) -> tuple[float, float, float]:
    """Returns p-value and interval of a difference without any noise."""
    agrees: dict[Side, Callable[[float], bool]] = {
        "greater": lambda d: d > 0,
        "less": lambda d: d < 0,
        "two-sided": lambda d: d != 0,
    }
    return (0.0 if agrees[side](difference) else 1.0), difference, difference


def _hedges(difference: float, std: float, *, freedom: int) -> float:
    """Returns a difference in standard deviations, with Hedges' correction for small samples."""
    if std == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    if freedom < 2:  # the correction is for two degrees of freedom and more
        return math.nan
    return difference / std * (1 - 3 / (4 * freedom - 1))
