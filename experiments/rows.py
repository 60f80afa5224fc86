"""Questions to rows: which of them, their values, when one got somewhere, which one is best."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from experiments.experiment import Row, Rows, Sample

Mode = Literal["max", "min"]


def select(rows: Rows, **tells: Any) -> list[Row]:
    """Returns the rows that say this of themselves.

    >>> select([{"seed": 0, "reducer": "sum"}, {"seed": 1, "reducer": "mean"}], reducer="mean")
    [{'seed': 1, 'reducer': 'mean'}]
    """
    return [row for row in rows if all(key in row and row[key] == value for key, value in tells.items())]


def distinct(rows: Rows, key: str) -> list[Any]:
    """Returns the values of a key, sorted, each once.

    >>> distinct([{"n": 8}, {"n": 4}, {"n": 8}, {}], "n")
    [4, 8]
    """
    return sorted({row[key] for row in rows if key in row})


def last(row: Row, key: str) -> float:
    """Returns a quantity at the last evaluation; NaN where the run has none.

    >>> last({"accuracy": [0.5, 0.9]}, "accuracy")
    0.9
    """
    return float(row[key][-1]) if row.get(key) else math.nan


def final(rows: Rows, key: str, *, digits: int = 4, scale: float = 1.0, unit: str = "") -> Sample:
    """Returns a quantity at the last evaluation, over runs that differ in their seed alone.

    >>> str(final([{"accuracy": [0.5, 0.9]}, {"accuracy": [0.4, 0.7]}], "accuracy", digits=1, scale=100, unit="%"))
    '80.0 ± 14.1 % (n=2)'
    """
    return Sample.of([scale * last(row, key) for row in rows], digits=digits, unit=unit)


def first_at(row: Row, target: float, *, of: str, along: str = "step", mode: Mode = "max") -> float:
    """Returns where a run first evaluates at a target or better: as exactly as it is evaluated often.

    Args:
      row: of a run.
      target: the value to be reached.
      of: the quantity.
      along: what is returned: step, epoch, simulated_seconds.
      mode: which values are better.

    Returns:
      Infinity for a run that does not get there.

    >>> first_at({"step": [10, 20, 30], "accuracy": [0.5, 0.9, 0.8]}, 0.85, of="accuracy")
    20.0
    """
    better = (lambda value: value >= target) if mode == "max" else (lambda value: value <= target)
    return next((float(x) for x, value in zip(row[along], row[of], strict=True) if better(value)), math.inf)


def best(rows: Sequence[Row], *, by: str, mode: Mode = "max") -> Row:
    """Returns the row whose last evaluation is best; those that are not finite lose.

    >>> best([{"loss": [2.0], "rate": 0.1}, {"loss": [1.0], "rate": 0.2}], by="loss", mode="min")["rate"]
    0.2
    """
    sign = 1 if mode == "max" else -1

    def quality(row: Row) -> float:
        value = last(row, by)
        return sign * value if math.isfinite(value) else -math.inf

    return max(rows, key=quality)


def earliest(rows: Sequence[Row], target: float, *, of: str, along: str = "step") -> Row:
    """Returns the row that is first at a target; if none gets there, the one whose last evaluation is best.

    >>> slow, fast = {"step": [1, 2], "accuracy": [0.5, 0.8]}, {"step": [1, 2], "accuracy": [0.7, 0.6]}
    >>> earliest([slow, fast], 0.6, of="accuracy") is fast, earliest([slow, fast], 0.9, of="accuracy") is slow
    (True, True)
    """
    soonest = min(rows, key=lambda row: first_at(row, target, of=of, along=along))
    return soonest if math.isfinite(first_at(soonest, target, of=of, along=along)) else best(rows, by=of)
