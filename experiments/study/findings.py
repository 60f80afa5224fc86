"""Values of runs that differ in their seed alone, and tables, as sweeps show them."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launch.output import printable

LONGEST = 1e15  # numbers from here on are written with an exponent
MOST_DIGITS = 15  # after the point
Range = tuple[float, float]  # the least and the greatest value


def number(value: float, digits: int, *, style: str = ",") -> str:
    """Returns a number with these digits after the point, or with an exponent where it is very large.

    >>> number(1234.5, 1), number(8e19, 4), number(0.5, 2, style="+")
    ('1,234.5', '8e+19', '+0.50')
    """
    return f"{value:{style}.{digits}f}" if abs(value) < LONGEST else f"{value:{style}.4g}"


def digits_of(spread: float, *, least: int) -> int:
    """Returns how many digits after the point show a spread, at least some and at most ``MOST_DIGITS``.

    >>> digits_of(0.02, least=4), digits_of(3e-6, least=4)
    (4, 6)
    """
    return min(MOST_DIGITS, max(least, -math.floor(math.log10(spread)))) if 0 < spread < math.inf else least


def range_of(quantity: str, values: Iterable[float]) -> Range:
    """Returns between which numbers a quantity lies: an accuracy from 0 to 1, and what is never negative from 0 on.

    An interval or a band of the quantity ends there.

    Args:
      quantity: its name in the records.
      values: all values of it that were measured.

    >>> range_of("top_5_accuracy", [0.9]), range_of("loss", [0.01]), range_of("loss", [0.01, -2.0])
    ((0.0, 1.0), (0.0, inf), (-inf, inf))
    """
    found = list(values)
    least = 0.0 if found and min(found) >= 0 else -math.inf
    return least, 1.0 if least == 0 and quantity.endswith("accuracy") and max(found) <= 1 else math.inf


def cut(low: float, high: float, within: Range) -> Range:
    """Returns the part of an interval that lies within a range."""
    return max(low, within[0]), min(high, within[1])


class Sample(NamedTuple):
    """Values of runs that differ in their seed alone.

    >>> str(Sample.of([0.98, 0.99, 1.0], digits=3))
    '0.990 ± 0.010 (n=3)'
    """

    mean: float
    std: float  # of the sample, with n - 1; 0 for a single one
    n: int
    digits: int = 4
    unit: str = ""

    @classmethod
    def of(cls, values: Sequence[float], *, digits: int = 4, unit: str = "") -> "Sample":
        values = [float(value) for value in values]
        finite = all(map(math.isfinite, values))
        std = (_deviation(values) if finite else math.nan) if len(values) > 1 else 0.0
        return cls(_mean(values), std, len(values), digits, unit)

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        return f"{number(self.mean, self.digits)} ± {number(self.std, self.digits)}{unit} (n={self.n})"


def _mean(values: Sequence[float]) -> float:
    try:
        return statistics.fmean(values)
    except OverflowError:  # the sum is too large, the mean is not
        return statistics.mean(values)


def _deviation(values: Sequence[float]) -> float:
    try:
        return statistics.stdev(values)
    except OverflowError:
        return math.inf


class Table(NamedTuple):
    """Cells under a header, as text."""

    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        r"""Returns the table as Markdown, without its note.

        >>> print(Table(["a", "b"], [["1", "2|3"]]).markdown())
        | a | b |
        | --- | --- |
        | 1 | 2\|3 |
        """
        lines = [self.header, ["---"] * len(self.header), *self.cells]
        return "\n".join(
            "| " + " | ".join(printable(cell).replace("|", r"\|") for cell in line) + " |" for line in lines
        )
