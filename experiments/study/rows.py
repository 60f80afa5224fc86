"""Questions to rows: select some, summarise their values, find when a run reached a target."""

import math
from typing import Any

from experiments.study.findings import Basis, Sample
from experiments.study.run import Mode, Row, Rows


def select(rows: Rows, **labels: Any) -> list[Row]:
    """Returns the rows with these labels.

    >>> select([{"seed": 0, "reducer": "sum"}, {"seed": 1, "reducer": "mean"}], reducer="mean")
    [{'seed': 1, 'reducer': 'mean'}]
    """
    return [row for row in rows if all(key in row and row[key] == value for key, value in labels.items())]


def distinct(rows: Rows, key: str) -> list[Any]:
    """Returns the values of a key, sorted, each once.

    >>> distinct([{"n": 8}, {"n": 4}, {"n": 8}, {}], "n")
    [4, 8]
    """
    return sorted({row[key] for row in rows if key in row})


def basis(rows: Rows, *, model: str, data: str = "") -> Basis:
    """Returns what a verdict on rows of measurements rests on; their label "data" names the data unless it is given.

    >>> str(basis([{"data": "digits", "seed": 0}, {"data": "digits", "seed": 1}], model="MLP"))
    'digits, MLP, n = 2'
    """
    return Basis(data or ", ".join(distinct(rows, "data")), model, n=len(distinct(rows, "seed")))


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


def accuracy(rows: Rows) -> Sample:
    """Returns the accuracy at the last evaluation, in percent.

    >>> str(accuracy([{"accuracy": [0.5, 0.9]}, {"accuracy": [0.4, 0.7]}]))
    '80.00 ± 14.14 % (n=2)'
    """
    return final(rows, "accuracy", digits=2, scale=100, unit="%")


def accuracies(rows: Rows) -> list[float]:
    """Returns the accuracy of each run at the last evaluation, in percent; 0 for a run that is not finite.

    >>> accuracies([{"accuracy": [0.25, 0.5]}, {"accuracy": [0.25, math.nan]}])
    [50.0, 0.0]
    """
    ends = [100 * last(row, "accuracy") for row in rows]
    return [end if math.isfinite(end) else 0.0 for end in ends]


def curve(rows: Rows, key: str, *, digits: int = 4, scale: float = 1.0) -> list[Sample]:
    """Returns a quantity at each place of its list, over runs whose lists are equally long.

    >>> [sample.mean for sample in curve([{"accuracy": [0.5, 0.9]}, {"accuracy": [0.4, 0.7]}], "accuracy", scale=100)]
    [45.0, 80.0]
    """
    values = zip(*(row[key] for row in rows), strict=True)
    return [Sample.of([scale * value for value in at], digits=digits) for at in values]


def first_at(row: Row, target: float, *, of: str, along: str = "step", mode: Mode = "max") -> float:
    """Returns where a run first evaluates at a target or better, which is as exact as evaluations are frequent.

    Args:
      row: row of a run.
      target: the value to be reached.
      of: the quantity that reaches it.
      along: the quantity that is returned, such as step, epoch or simulated_seconds.
      mode: which values are better.

    Returns:
      Infinity for a run that does not get there.

    >>> first_at({"step": [10, 20, 30], "accuracy": [0.5, 0.9, 0.8]}, 0.85, of="accuracy")
    20.0
    """
    better = (lambda value: value >= target) if mode == "max" else (lambda value: value <= target)
    return next((float(x) for x, value in zip(row[along], row[of], strict=True) if better(value)), math.inf)


def until(
    rows: Rows, target: float, *, of: str, along: str, mode: Mode = "max", digits: int = 4, unit: str = ""
) -> Sample:
    """Returns `first_at` over runs that differ in their seed alone."""
    return Sample.of([first_at(row, target, of=of, along=along, mode=mode) for row in rows], digits=digits, unit=unit)


def errors(rows: Rows) -> list[Row]:
    """Returns the rows with the error in percent, 100 (1 - accuracy), at each evaluation.

    >>> errors([{"accuracy": [0.5, 0.75]}])
    [{'accuracy': [0.5, 0.75], 'error': [50.0, 25.0]}]
    """
    return [{**row, "error": [100 * (1 - accuracy) for accuracy in row["accuracy"]]} for row in rows]
