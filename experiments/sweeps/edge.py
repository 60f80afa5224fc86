"""The value to try beyond the edge of a grid."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

LARGEST = 1e100  # a larger number is not continued or drawn
HALVINGS = 6  # how often a step to a value that the key does not allow is halved


def next_value(values: Sequence[float], *, allowed: Callable[[float], bool] = lambda value: True) -> float | None:
    """Returns the value that continues a grid beyond its last one, or None if no such value is allowed.

    The grid goes on by its last ratio if all values are positive and not equally far apart, and else by its last
    difference. If this is not allowed, the step is halved a few times.

    Args:
      values: at least two, in the order in which they go on.
      allowed: whether the key may have a value.

    >>> next_value([0.1, 0.2]), next_value([4, 2]), next_value([0, 10, 20])
    (0.4, 1, 30)
    >>> next_value([0.0, 0.9], allowed=lambda x: 0 <= x < 1)
    0.956
    >>> next_value([2, 1], allowed=lambda x: x >= 1) is None
    True
    """
    before, edge = values[-2:]
    differences = [b - a for a, b in itertools.pairwise(values)]
    is_even = len(values) > 2 and all(math.isclose(d, differences[0], rel_tol=1e-6) for d in differences)
    beyond = edge * edge / before if min(values) > 0 and not is_even else 2 * edge - before
    whole = all(isinstance(value, int) for value in values)
    for halving in range(HALVINGS):
        value = edge + (beyond - edge) / 2**halving
        value = round(value) if whole else float(f"{value:.3g}")
        if (value - edge) * (beyond - edge) > 0 and allowed(value):
            return value
    return None


def is_number(value: Any) -> bool:
    """Returns whether a value of a config is a number that a grid can go on from, and an axis can show.

    >>> [is_number(value) for value in (3, True, "3", 1e308, 10**400)]
    [True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
