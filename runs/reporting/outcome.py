"""Whether a finished run has learnt anything."""

import math
from typing import Literal

Mode = Literal["max", "min"]

_STANDARD_ERRORS = 2.0  # a share of examples within so many of them counts as chance


def fault(
    value: float, *, mode: Mode, chance: float | None = None, num_examples: int = 0, first: float | None = None
) -> str | None:
    """Returns in words what is wrong with the final value of a run's metric; None if nothing is.

    Args:
      value: value of the last evaluation.
      mode: whether the metric should be maximal or minimal.
      chance: the metric's value without any knowledge; None if it is not known.
      num_examples: number of evaluated examples. A metric that should be maximal counts as a share of them, with a
        sampling error.
      first: the metric of the first evaluation, or at the first record of a run with one evaluation; None if not known.

    >>> fault(0.11, mode="max", chance=0.1, num_examples=360)
    'at chance'
    >>> fault(0.95, mode="max", chance=0.1, num_examples=360, first=0.4)
    >>> fault(9.0, mode="min", chance=65.0, first=8.0)
    'worse than at its first evaluation'
    """
    if not math.isfinite(value):
        return "not finite"
    sign = 1 if mode == "max" else -1

    def error(bound: float) -> float:
        share = min(max(bound, 0.0), 1.0) if mode == "max" and num_examples else 0.0
        return _STANDARD_ERRORS * math.sqrt(share * (1 - share) / max(num_examples, 1))

    if chance is not None and sign * value <= sign * chance + error(chance):
        return "at chance"
    if first is not None and math.isfinite(first) and sign * value < sign * first - error(first):
        return "worse than at its first evaluation"
    return None
