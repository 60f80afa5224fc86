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


def _welch(ours: Sequence[float], theirs: Sequence[float], *, side: Side, level: float) -> tuple[float, float, float]:
    """Returns p-value and two-sided interval of Welch's test."""
    from scipy import stats

    with warnings.catch_warnings():  # one side may be constant, which is precise enough
        warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
        p = stats.ttest_ind(ours, theirs, equal_var=False, alternative=side).pvalue
        interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(level)
    return float(p), float(interval.low), float(interval.high)


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
