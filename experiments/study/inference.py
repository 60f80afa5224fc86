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
from collections.abc import Callable, Iterable, Sequence
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
        low, high = max(self.low, -self.most), min(self.high, self.most)
        value, *ends = (f"{number:+.{self.digits}f}" for number in (self.difference, low, high))
        between = f" [{', '.join(ends)}]" if low < high else ""
        return f"{value}{self.unit and f' {self.unit}'}{between}"


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
    theirs = np.asarray(theirs, float)
    share_of_theirs = share * theirs.mean() if share and len(theirs) else math.nan
    return _test(
        welch,
        (name, ours, is_, other, theirs),
        [np.asarray(ours, float), theirs],
        by=share_of_theirs if share else by,
        kind="Welch's t-test",
        options={"by": by, "share": share, "unit": unit, "digits": digits, "at": at},
    )


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
    return _test(
        paired,
        (name, ours, is_, other, theirs),
        [_less(ours, other if theirs is None else theirs)],
        by=by,
        kind="paired t-test",
        options={"by": by, "unit": unit, "digits": digits, "at": at},
    )


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
    samples = [_less(ours, float(other))] if theirs is None else [np.asarray(ours, float), np.asarray(theirs, float)]
    within = margin if math.isnan(share) else share * (samples[1].mean() if len(samples[1]) else math.nan)
    amount = _amount(margin, unit) if math.isnan(share) else f"{100 * share:g} %"
    words = _compared(name, "as", other, f" to within {amount}", at)
    kind = "Welch tests" if theirs is not None else "t-tests"
    made: Any = functools.partial(
        _made, words, f"equivalence, two one-sided {kind}, margin {within:g}", samples, unit=unit, digits=digits
    )
    p = max(made("above", by=-within).p, made("below", by=within).p, key=lambda p: (math.isnan(p), p))
    return dataclasses.replace(made("against", level=2 * ALPHA), p=p, margin=within)


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

    values, words = np.asarray(by_seed, float), words + (at and f", {at}")
    if values.ndim < 2 or values.shape[1] < 3 or np.isnan(values).any():
        lack = "a value is not a number" if np.isnan(values).any() else "a trend needs at least three conditions"
        return Test(compared=words, method="Page's trend test", n=(len(values),), missing=f"{words}: {lack}")
    # An infinity between the ends, as of a target that was never reached, has a rank; at an end it has no difference.
    found = _made(words, "Page's trend test", [_less(values[:, -1], values[:, 0])], "above", unit=unit, digits=digits)
    return found if found.missing else dataclasses.replace(found, p=float(stats.page_trend_test(values).pvalue))


def holm(*tests: Test) -> list[Test]:
    """Returns the tests of one verdict with p-values corrected by Holm's step-down method.

    The smallest of m p-values is multiplied by m, the next by m - 1, and so on; none gets below an earlier one. If a
    test is missing, there is no verdict, and p-values stay.
    """
    if len(tests) < 2 or any(test.missing for test in tests):
        return list(tests)
    ordered = np.argsort([test.p for test in tests], kind="stable")
    steps = [(len(tests) - place) * tests[i].p for place, i in enumerate(ordered)]
    corrected = dict(zip(ordered, np.minimum(1.0, np.maximum.accumulate(steps)), strict=True))
    name = f"Holm, {len(tests)} tests"
    return [dataclasses.replace(test, p=float(corrected[i]), corrected=name) for i, test in enumerate(tests)]


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
    test: Callable[..., Test],
    sentence: tuple[Any, ...],
    samples: list[np.ndarray],
    *,
    by: float,
    kind: str,
    options: dict[str, Any],
) -> Test:
    """Returns a test; its opposite is the same sentence with the opposite relation."""
    name, ours, is_, other, theirs = sentence
    unit, digits, share = options["unit"], options["digits"], options.get("share", 0.0)
    amount = f"{100 * abs(share):g} %" if share else _amount(abs(by), unit)
    shift = f" {'plus' if by > 0 or share > 0 else 'less'} {amount}" if by or share else ""
    words = _compared(name, is_, other, shift, options["at"])
    method = f"{'two' if is_ == 'against' else 'one'}-sided {kind}"
    method += f" against {by:.4g}{unit and f' {unit}'}" if by else ""
    found = _made(words, method, samples, is_, by=by, unit=unit, digits=digits)
    if is_ not in _OPPOSITES:
        return found
    again = functools.partial(test, name, ours, _OPPOSITES[is_], other, theirs, **options)
    return dataclasses.replace(found, opposite=again)


def _made(
    words: str,
    method: str,
    samples: list[np.ndarray],
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
    if not all(np.isfinite(values).all() for values in samples):
        return dataclasses.replace(found, missing=f"{words}: a value is not finite")
    largest = max(float(abs(values).max()) for values in samples)
    size = largest if largest > LARGEST else 1.0
    samples, by = [values / size for values in samples], by / size
    difference = float(samples[0].mean() - (samples[1].mean() if len(n) > 1 else 0.0))
    if all(np.ptp(values) <= _ROUNDING * max(1.0, abs(values[0])) for values in samples):  # SciPy's p would be NaN
        rounding = _ROUNDING * max(1.0, abs(samples[0][0]))
        shifted, difference = (0.0 if abs(rest) <= rounding else rest for rest in (difference - by, difference))
        agrees = {"above": shifted > 0, "below": shifted < 0, "against": shifted != 0}
        p, low, high, spread = float(not agrees[is_]), difference, difference, 0.0
    else:

        def scipy(shift: float, side: str) -> Any:
            if len(n) == 1:
                return stats.ttest_1samp(samples[0], shift, alternative=side)
            return stats.ttest_ind(samples[0] - shift, samples[1], equal_var=False, alternative=side)

        spread = math.sqrt(np.mean([values.var(ddof=1) for values in samples]))
        with warnings.catch_warnings():  # one side may be constant, which is precise enough
            warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
            p, (low, high) = scipy(by, _SIDES[is_]).pvalue, scipy(0.0, "two-sided").confidence_interval(1 - level)
    effect = _hedges(difference, spread, freedom=sum(n) - len(n))
    difference, low, high, spread = (size * float(value) for value in (difference, low, high, spread))
    return dataclasses.replace(
        found, difference=difference, low=low, high=high, effect=effect, spread=spread, p=float(p)
    )


def _compared(name: str, is_: str, other: str | float, shift: str, at: str) -> str:
    theirs = other if isinstance(other, str) else f"{other:.3g}"
    return f"{name} {is_} {theirs}{shift}{at and f', {at}'}"


def _amount(by: float, unit: str) -> str:
    """Returns an amount with its unit, in the singular for 1."""
    unit = unit.removesuffix("s") if by == 1 else unit
    return f"{by:.3g}{unit and f' {unit}'}"


def _less(ours: Values, theirs: Any) -> np.ndarray:
    """Returns differences; those of two columns by their index, where a seed that one of them lacks gives NaN."""
    with np.errstate(invalid="ignore"):
        both_named = isinstance(ours, pd.Series) and isinstance(theirs, pd.Series)
        return np.asarray(ours - theirs if both_named else np.asarray(ours, float) - np.asarray(theirs, float), float)


def _hedges(difference: float, std: float, *, freedom: int) -> float:
    """Returns a difference in standard deviations, with Hedges' correction for small samples."""
    if std == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / std * (1 - 3 / (4 * freedom - 1)) if freedom > 1 else math.nan
