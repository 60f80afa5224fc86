"""A question to rows of sweeps."""

import math

from experiments.study.run import Row


def last(row: Row, key: str) -> float:
    """Returns a quantity at the last evaluation; NaN where the run has none.

    >>> last({"accuracy": [0.5, 0.9]}, "accuracy")
    0.9
    """
    return float(row[key][-1]) if row.get(key) else math.nan
