"""How long steps take that do not wait for all machines, and how many they count: for many choices at once, in NumPy.

A rule ends a step when enough machines have arrived; a choice is its number, N of the first N or D of a deadline. Who
is late either finishes what it began, as ``config.late_workers`` says, or all begin each step together.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from training.steps.late_workers import LateWorkers, still_busy

_AT_ONCE = 2**22  # arrival times that are looked at together


class Steps(NamedTuple):
    """The seconds of steps and the gradients that they count, for each choice of a rule.

    Attributes:
      seconds: [..., C], from the start of the step to its end.
      counted: [..., C], how many gradients it counts.
    """

    seconds: np.ndarray
    counted: np.ndarray


class Rule(NamedTuple):
    """When a step ends.

    Attributes:
      choices: [C].
      ends: the arrivals in order, [..., C or 1, M] -> Steps [..., C].
    """

    choices: np.ndarray
    ends: Callable[[np.ndarray], Steps]


def first(num_machines: int, *, choices: Sequence[int] | None = None, grace_seconds: float = 0.0) -> Rule:
    """The first N of M arrivals, and whoever else comes within a time of grace after the N-th.

    Args:
      num_machines: M.
      choices: the N; None for 1 to M.
      grace_seconds: the time of grace; without one exactly N are counted.

    >>> first(3).ends(np.array([[1.0, 2.0, 4.0]])).seconds
    array([1., 2., 4.])
    >>> first(3, grace_seconds=1.0).ends(np.array([[1.0, 2.0, 4.0]]))
    Steps(seconds=array([2., 3., 4.]), counted=array([2, 2, 3]))
    """
    n = np.arange(1, num_machines + 1) if choices is None else np.array(choices)
    own = np.arange(len(n))

    def ends(order: np.ndarray) -> Steps:
        of_each = np.broadcast_to(order, (*order.shape[:-2], len(n), num_machines))
        seconds = of_each[..., own, n - 1]
        if not grace_seconds:  # of equal arrivals the first are counted
            return Steps(seconds, np.broadcast_to(n, seconds.shape))
        seconds = np.minimum(seconds + grace_seconds, order[..., -1])
        return Steps(seconds, (order <= seconds[..., None]).sum(axis=-1))

    return Rule(n, ends)


def by_deadline(deadlines: np.ndarray) -> Rule:
    """Whoever arrives by D, for each D [C] in seconds, and at least the first.

    >>> by_deadline(np.array([0.5, 2.5, 9.0])).ends(np.array([[1.0, 2.0, 4.0]]))
    Steps(seconds=array([1. , 2.5, 4. ]), counted=array([1, 2, 3]))
    """

    def ends(order: np.ndarray) -> Steps:
        seconds = np.clip(deadlines, order[..., 0], order[..., -1])
        return Steps(seconds, (order <= seconds[..., None]).sum(axis=-1))

    return Rule(deadlines, ends)


def simulate(durations: np.ndarray, rule: Rule, *, late_workers: LateWorkers) -> Steps:
    r"""Returns what each step takes, [S, C], if all machines begin the first one together.

    .. math:: T_m = b_m + d_m, \quad b_m \leftarrow \begin{cases} b_m - S & \text{if } b_m \ge S \\
        \max(b_m + d_m - S, 0) & \text{else} \end{cases}

    where S is the time of the step, and :math:`b_m = 0` of late workers that are interrupted.

    Args:
      durations: [S, M], how long each machine takes for its gradient of each step.
      rule: when a step ends, for C choices.
      late_workers: "finish" or "interrupt".

    >>> simulate(np.array([[1.0, 2.5], [1.0, 1.0]]), first(2), late_workers="finish").seconds
    array([[1. , 2.5],
           [1. , 1. ]])
    """
    num_steps, num_machines = durations.shape
    shape = (num_steps, len(rule.choices))
    took = Steps(np.empty(shape, durations.dtype), np.empty(shape, np.int64))
    if late_workers == "interrupt":
        size = max(1, _AT_ONCE // (len(rule.choices) * num_machines))
        for begin in range(0, num_steps, size):
            block = slice(begin, begin + size)
            took.seconds[block], took.counted[block] = rule.ends(np.sort(durations[block], axis=1)[:, None])
        return took
    busy = np.zeros((len(rule.choices), num_machines), durations.dtype)
    for step, own in enumerate(durations):
        took.seconds[step], took.counted[step] = rule.ends(np.sort(busy + own, axis=1))
        busy = still_busy(busy, own, took.seconds[step][:, None])
    return took
