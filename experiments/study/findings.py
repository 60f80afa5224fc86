"""Values of our runs, the paper's values beside them, and tables, as reports show them."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from launch.output import printable

OLYMPIC = 5  # values of which the extremes may be left out, as MLPerf does


class Quoted(NamedTuple):
    """A value of a paper, and how it is known."""

    text: str
    mark: str  # READ in a source, DERIVED from facts, or MEM (recalled and unverified)

    def __str__(self) -> str:
        return f"{self.text} [{self.mark}]"


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
    olympic: float | None = None  # the mean without the lowest and the highest value, of five values or more

    @classmethod
    def of(cls, values: Sequence[float], *, digits: int = 4, unit: str = "") -> "Sample":
        values = [float(value) for value in values]
        finite = all(map(math.isfinite, values))
        std = (statistics.stdev(values) if finite else math.nan) if len(values) > 1 else 0.0
        olympic = statistics.fmean(sorted(values)[1:-1]) if len(values) >= OLYMPIC and finite else None
        return cls(statistics.fmean(values), std, len(values), digits, unit, olympic)

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        return f"{self.mean:,.{self.digits}f} ± {self.std:,.{self.digits}f}{unit} (n={self.n})"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One quantity: the paper's value beside ours.

    Attributes:
      quantity: the quantity in words.
      ours: the value that our runs gave, or a text where they gave no number.
      paper: the paper's value; None where it gives none.
      paper_number: the same as a number in the unit of ``ours``; None where the two do not compare.
    """

    quantity: str
    _: dataclasses.KW_ONLY
    ours: Sample | str
    paper: Quoted | None = None
    paper_number: float | None = None

    @property
    def olympic(self) -> str:
        """Our mean without the lowest and the highest run; "" for a text, and of fewer than five runs."""
        if not isinstance(self.ours, Sample) or self.ours.olympic is None:
            return ""
        return f"{self.ours.olympic:,.{self.ours.digits}f}"

    @property
    def difference(self) -> str:
        """Our value minus the paper's."""
        if self.paper_number is None or not isinstance(self.ours, Sample):
            return ""
        return f"{self.ours.mean - self.paper_number:+,.{self.ours.digits}f}"


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


class Basis(NamedTuple):
    """The data, the model and the number of runs that a verdict rests on.

    >>> str(Basis("MNIST", "LeNet-5", n=5))
    'MNIST, LeNet-5, n = 5'
    """

    data: str
    model: str
    n: int  # seeds of each case; of several numbers the least

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.data, self.model, f"n = {self.n}")))
