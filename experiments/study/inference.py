"""The tests behind verdicts: those of SciPy, Holm's correction, and samples that SciPy does not handle.

A test reads as a sentence, ``welch("krum", krum, "above", "the mean", mean, by=-1, unit="points")``, from which follow
its words ("krum above the mean less 1 point"), its side and the test of the opposite. A test of too few runs, or of
values that are not finite, cannot be made: ``missing`` says why, and p is NaN. Values may be columns of frames, lists
or arrays.
"""

import dataclasses
import functools
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

ALPHA, POWER = 0.05, 0.8
LARGEST = 1e100  # the squares of larger numbers overflow
_ROUNDING = 1e-12  # relative difference of numbers that are equal but for rounding
Relation = Literal["above", "below", "against"]  # "against" is two-sided
Values: TypeAlias = Sequence[float] | np.ndarray | pd.Series
_SIDES = {"above": "greater", "below": "less", "against": "two-sided"}
_OPPOSITES: dict[Relation, Relation] = {"above": "below", "below": "above"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Test:
    """A comparison of two groups of runs, or of one and a number.

    Attributes:
      compared: the comparison in words.
      method: name of the test.
      n: number of runs on either side.
      difference: estimate of the difference.
      low, high: 95 % confidence interval of the difference (90 % for an equivalence test, as is usual).
      effect: difference in units of the standard deviation (Hedges' g, which corrects Cohen's d for small samples).
      p: p-value; `holm` corrects it.
      unit: unit of the difference.
      digits: digits after the point in texts.
      corrected: name of the correction of p; "" for none.
      missing: why the test cannot be made; "" if it can.
      spread: standard deviation of a run, pooled over both sides.
      margin: the margin of an equivalence; NaN for other tests.
      most: the largest possible difference, at which the text of the interval ends; 100 for percentage points.
      opposite: makes the test of the opposite relation.
    """

    compared: str
    method: str
    n: tuple[int, ...]
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    effect: float = math.nan
    p: float = math.nan
    unit: str = ""
    digits: int = 2
    corrected: str = ""
    missing: str = ""
    spread: float = math.nan
    margin: float = math.nan
    most: float = math.inf
    opposite: Callable[[], "Test"] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def holds(self) -> bool:
        """Whether p is below ALPHA."""
        return self.p < ALPHA

    @property
    def is_beyond(self) -> bool:
        """Whether the interval of the difference lies beyond the margin of an equivalence."""
        return self.low > self.margin or self.high < -self.margin

    @property
    def interval(self) -> str:
        """The difference with its confidence interval, as text; an interval without any width shows nothing.

        >>> welch("a", [3.0, 4.0, 5.0], "above", "b", [1.0, 2.0, 3.0]).interval
        '+2.00 [-0.27, +4.27]'
        """
        said = f"{self.difference:+.{self.digits}f}"
        if self.unit:
            said += f" {self.unit}"
        low, high = max(self.low, -self.most), min(self.high, self.most)
        if low < high:
            said += f" [{low:+.{self.digits}f}, {high:+.{self.digits}f}]"
        return said


def welch(
    name: str,
    ours: Values,
    is_: Relation,
    other: str,
    theirs: Values,
    *,
    by: float = 0.0,
    share: float = 0.0,
    unit: str = "",
    digits: int = 2,
    at: str = "",
) -> Test:
    """Tests if our mean is above, below or different from theirs, by Welch's t-test, which allows unequal variances.

    Args:
      name: the name of ours.
      ours: one value for each run.
      is_: the relation that is tested.
      other: the name of theirs.
      theirs: one value for each of their runs.
      by: a number that is added to their mean first, such as a margin of non-inferiority.
      share: the same as a share of their mean.
      unit: unit of the values, in texts.
      digits: digits of the difference in texts.
      at: the setting of both, in texts.

    >>> test = welch("a", [3.0, 4.0, 5.0], "above", "b", [1.0, 2.0, 3.0], by=-1, unit="points")
    >>> test.compared, round(test.p, 4), test.opposite().compared
    ('a above b less 1 point', 0.0107, 'a below b less 1 point')
    """
    samples = [np.asarray(ours, float), np.asarray(theirs, float)]
    shift = _shift(by, unit)
    if share:
        by = share * _mean(samples[1])
        shift = f" {'plus' if share > 0 else 'less'} {100 * abs(share):g} %"
    return _test(name, is_, f"{other}{shift}", samples, kind="Welch's t-test", by=by, unit=unit, digits=digits, at=at)


def compare(ends: Mapping[str, Values], ours: str, is_: Relation, other: str, by: float = 0.0) -> Test:
    """Tests by `welch` the accuracies, in percent, of two groups of runs, which are called as in ``ends``."""
    return welch(ours, ends[ours], is_, other, ends[other], by=by, unit="points")


def paired(
    name: str,
    ours: Values,
    is_: Relation,
    other: str | float,
    theirs: Values | None = None,
    *,
    by: float = 0.0,
    unit: str = "",
    digits: int = 2,
    at: str = "",
) -> Test:
    """Tests like `welch`, but pairs of values, such as those of one seed, or values against a number.

    The arguments are those of `welch`; if ``other`` is a number, theirs have no values. Columns of frames are
    paired by their index, which must be that of the seeds: `experiments.study.frames.by_seed`.

    >>> test = paired("the ratio", [1.01, 1.02, 1.03], "below", 1.1)
    >>> test.compared, test.holds
    ('the ratio below 1.1', True)
    """
    differences = _less(ours, other if theirs is None else theirs)
    other = f"{_named(other)}{_shift(by, unit)}"
    return _test(name, is_, other, [differences], kind="paired t-test", by=by, unit=unit, digits=digits, at=at)


def equivalent(
    name: str,
    ours: Values,
    other: str | float,
    theirs: Values | None = None,
    *,
    margin: float = math.nan,
    share: float = math.nan,
    unit: str = "",
    digits: int = 2,
    at: str = "",
) -> Test:
    """Tests whether two means, or a mean and a number, differ by less than a margin that is stated before the runs.

    Two one-sided t-tests (TOST), those of Welch for two groups: p is the larger of theirs. If it is small, the means
    are equivalent; a difference that is not significant does not show this.

    Args:
      name: the name of ours.
      ours: one value for each run.
      other: the name of theirs, or the number.
      theirs: one value for each of their runs; None beside a number.
      margin: the least difference that matters, above 0.
      share: the same as a share of their mean.
      unit, digits, at: see `welch`.

    >>> equivalent("the ratio", [0.98, 1.01, 1.02, 0.99], 1.0, margin=0.1).compared
    'the ratio as 1 to within 0.1'
    """
    if theirs is None:
        kind, samples = "t-tests", [_less(ours, other)]
    else:
        kind, samples = "Welch tests", [np.asarray(ours, float), np.asarray(theirs, float)]
    amount = _amount(margin, unit)
    if not math.isnan(share):
        margin = share * _mean(samples[1])
        amount = f"{100 * share:g} %"
    words = _with_setting(f"{name} as {_named(other)} to within {amount}", at)
    method = f"equivalence, two one-sided {kind}, margin {margin:g}"
    made: Any = functools.partial(_made, words, method, samples, unit=unit, digits=digits)
    above, below = made("above", by=-margin), made("below", by=margin)
    interval = made("against", level=2 * ALPHA)
    return dataclasses.replace(interval, p=float(np.maximum(above.p, below.p)), margin=margin)


def trend(words: str, by_seed: Any, *, unit: str = "", digits: int = 2, at: str = "") -> Test:
    """Tests whether values grow along ordered conditions, by Page's trend test over the seeds.

    Args:
      words: what grows with what.
      by_seed: a line for each seed, with a value for each condition, in the order in which they should grow.
      unit, digits, at: see `welch`.

    Returns:
      The test; its difference is that of the last condition and the first, by seed.

    >>> trend("error grows with staleness", [[1.0, 2.0, 4.0], [1.5, 2.0, 3.0], [1.0, 3.0, 5.0]]).p < 0.05
    True
    """
    from scipy import stats

    values = np.asarray(by_seed, float)
    words, method = _with_setting(words, at), "Page's trend test"
    lack = ""
    if np.isnan(values).any():
        lack = "a value is not a number"
    elif values.ndim < 2 or values.shape[1] < 3:
        lack = "a trend needs at least three conditions"
    if lack:
        return Test(compared=words, method=method, n=(len(values),), missing=f"{words}: {lack}")
    # An infinity between the ends, as of a target that was never reached, has a rank; at an end it has no difference.
    rise = _less(values[:, -1], values[:, 0])
    found = _made(words, method, [rise], "above", unit=unit, digits=digits)
    if found.missing:
        return found
    return dataclasses.replace(found, p=float(stats.page_trend_test(values).pvalue))


def holm(*tests: Test) -> list[Test]:
    """Returns the tests of one verdict with p-values corrected by Holm's step-down method.

    The smallest of m p-values is multiplied by m, the next by m - 1, and so on; none gets below an earlier one. If a
    test is missing, there is no verdict, and p-values stay.
    """
    if len(tests) < 2 or any(test.missing for test in tests):
        return list(tests)
    p = np.array([test.p for test in tests])
    ordered = p.argsort(kind="stable")
    factors = np.arange(len(tests), 0, -1)
    p[ordered] = np.minimum(1.0, np.maximum.accumulate(factors * p[ordered]))
    name = f"Holm, {len(tests)} tests"
    return [dataclasses.replace(test, p=each, corrected=name) for test, each in zip(tests, p.tolist(), strict=True)]


def opposites(tests: Iterable[Test]) -> list[Test]:
    """Returns the tests of the opposite relations, such as below for above; they are a family of their own."""
    return holm(*(test.opposite() for test in tests if test.opposite))


def runs_needed(test: Test, *, tests: int) -> int:
    r"""Returns the number of runs on each side that shows an equivalence with 80 % power if the true difference is 0.

    By normal quantiles, :math:`n = k ((z_{1-\alpha/m} + z_{0.9}) s / \delta)^2`, as the first of m tests that Holm's
    method corrects, with k sides.
    """
    normal = statistics.NormalDist()
    quantiles = normal.inv_cdf(1 - ALPHA / tests) + normal.inv_cdf((1 + POWER) / 2)
    return max(2, math.ceil(len(test.n) * (quantiles * test.spread / test.margin) ** 2))


def _test(
    name: str, is_: Relation, other: str, samples: Sequence[np.ndarray], *, kind: str, by: float, unit: str, **how: Any
) -> Test:
    """Returns a test; its opposite is the same sentence with the opposite relation."""
    words = _with_setting(f"{name} {is_} {other}", how["at"])
    sides = "two" if is_ == "against" else "one"
    method = f"{sides}-sided {kind}"
    if by:
        method += f" against {_with_unit(f'{by:.4g}', unit)}"
    found = _made(words, method, samples, is_, by=by, unit=unit, digits=how["digits"])
    if is_ not in _OPPOSITES:
        return found
    opposite = functools.partial(_test, name, _OPPOSITES[is_], other, samples, kind=kind, by=by, unit=unit, **how)
    return dataclasses.replace(found, opposite=opposite)


def _made(
    words: str,
    method: str,
    samples: Sequence[np.ndarray],
    is_: Relation,
    *,
    by: float = 0.0,
    level: float = ALPHA,
    unit: str,
    digits: int,
) -> Test:
    """Returns Welch's test of two samples, or Student's of one."""
    from scipy import stats

    n = tuple(map(len, samples))
    most = 100.0 if unit == "points" else math.inf
    found = Test(compared=words, method=method, n=n, unit=unit, digits=digits, most=most)
    if min(n) < 2:
        lack = f"{words}: a test needs at least two runs a side, not {min(n)}"
        return dataclasses.replace(found, missing=lack)
    everything = np.concatenate(samples)
    if not np.isfinite(everything).all():
        return dataclasses.replace(found, missing=f"{words}: a value is not finite")
    largest = abs(everything).max()
    size = float(largest) if largest > LARGEST else 1.0
    samples, by = [values / size for values in samples], by / size
    means = [values.mean() for values in samples]
    difference: float = means[0] - means[1] if len(n) > 1 else means[0]
    if all(np.ptp(values) <= _rounding(values) for values in samples):  # SciPy's p would be NaN
        shifted: float = difference - by
        if abs(difference) <= _rounding(samples[0]):
            difference = 0.0
        if abs(shifted) <= _rounding(samples[0]):
            shifted = 0.0
        agrees = {"above": shifted > 0, "below": shifted < 0, "against": shifted != 0}
        p, low, high, spread = not agrees[is_], difference, difference, 0.0
    else:

        def scipy(shift: float, side: str) -> Any:
            if len(n) == 1:
                return stats.ttest_1samp(samples[0], shift, alternative=side)
            return stats.ttest_ind(samples[0] - shift, samples[1], equal_var=False, alternative=side)

        spread = math.sqrt(np.mean([values.var(ddof=1) for values in samples]))
        with warnings.catch_warnings():  # one side may be constant, which is precise enough
            warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
            p = scipy(by, _SIDES[is_]).pvalue
            low, high = scipy(0.0, "two-sided").confidence_interval(1 - level)
    return dataclasses.replace(
        found,
        difference=size * float(difference),
        low=size * float(low),
        high=size * float(high),
        effect=float(_hedges(difference, spread, freedom=sum(n) - len(n))),
        spread=size * spread,
        p=float(p),
    )


def _with_setting(words: str, at: str) -> str:
    return f"{words}, {at}" if at else words


def _with_unit(number: str, unit: str) -> str:
    return f"{number} {unit}" if unit else number


def _named(other: str | float) -> str:
    return other if isinstance(other, str) else f"{other:.3g}"


def _shift(by: float, unit: str) -> str:
    """Returns what is added to their mean, in words; "" for nothing."""
    if not by:
        return ""
    return f" {'plus' if by > 0 else 'less'} {_amount(abs(by), unit)}"


def _amount(by: float, unit: str) -> str:
    """Returns an amount with its unit, in the singular for 1."""
    if by == 1:
        unit = unit.removesuffix("s")
    return _with_unit(f"{by:.3g}", unit)


def _mean(values: np.ndarray) -> float:
    """Returns the mean; NaN, without a warning, if there are no values."""
    return values.mean() if len(values) else math.nan


def _rounding(values: np.ndarray) -> float:
    """Returns the difference up to which values of this size are equal."""
    return _ROUNDING * max(1.0, abs(values[0]))


def _less(ours: Values, theirs: Any) -> np.ndarray:
    """Returns differences; those of two columns by their index, where a seed that one of them lacks gives NaN."""
    if not (isinstance(ours, pd.Series) and isinstance(theirs, pd.Series)):
        ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    with np.errstate(invalid="ignore"):
        return np.asarray(ours - theirs, float)


def _hedges(difference: float, std: float, *, freedom: int) -> float:
    """Returns a difference in standard deviations, with Hedges' correction for small samples."""
    if std == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / std * (1 - 3 / (4 * freedom - 1)) if freedom > 1 else math.nan
