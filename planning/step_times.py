"""Simulates steps that do not wait for all machines: their seconds and counted gradients, for many choices at once.

A rule says when a step ends, and a choice is its parameter: N for the N-th arrival, or D for a deadline of D seconds.
With ``config.late_workers`` "finish", a late machine finishes its gradient and begins the next step late; with
"interrupt", all machines begin each step together.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from reducers import arrivals
from training.steps.late_workers import LateWorkers, free_after

_AT_ONCE = 2**22  # arrival times in one block of steps
_MOST = 2**27  # most numbers in an array


class Steps(NamedTuple):
    """The seconds and the counted gradients of steps, for each choice of a rule.

    Attributes:
      seconds: [..., C], the duration of each step.
      counted: [..., C], the number of gradients that it counts.
    """

    seconds: np.ndarray
    counted: np.ndarray


class Rule(NamedTuple):
    """When a step ends.

    Attributes:
      choices: [C], the parameters of the rule.
      ends: arrival times [..., C or 1, M], sorted -> Steps [..., C].
    """

    choices: np.ndarray
    ends: Callable[[np.ndarray], Steps]


def sample(model: str, *, num_machines: int, num_steps: int, seed: int, **options: Any) -> np.ndarray:
    """Samples the arrival times of M machines in consecutive steps, [S, M].

    Raises:
      ValueError: one line, if an option is not allowed, the array is too large, or a machine does not arrive.
    """
    made = arrivals.make(model, **options)
    check_size(steps=num_steps, machines=num_machines)
    return arrivals.sample(made, jax.random.key(seed), num_workers=num_machines, num_steps=num_steps)


def check_size(**sizes: int) -> None:
    """Raises ValueError, with the names of the sizes, if an array of these sizes is too large for memory.

    >>> check_size(steps=10**6, machines=10**4)
    Traceback (most recent call last):
    ValueError: steps=1000000, machines=10000: their product must be at most 134217728
    """
    if math.prod(sizes.values()) > _MOST:
        named = ", ".join(f"{key}={size}" for key, size in sizes.items())
        raise ValueError(f"{named}: their product must be at most {_MOST}")


def first(num_machines: int, *, choices: Sequence[int] | None = None, grace_seconds: float = 0.0) -> Rule:
    """Returns the rule that ends a step at the N-th of M arrivals, or a grace later.

    Args:
      num_machines: M.
      choices: values of N; None for 1 to M.
      grace_seconds: the grace; with 0, exactly N gradients are counted.

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
    """Returns the rule that ends a step after D seconds, for each D [C], but not before the first arrival.

    >>> by_deadline(np.array([0.5, 2.5, 9.0])).ends(np.array([[1.0, 2.0, 4.0]]))
    Steps(seconds=array([1. , 2.5, 4. ]), counted=array([1, 2, 3]))
    """

    def ends(order: np.ndarray) -> Steps:
        seconds = np.clip(deadlines, order[..., 0], order[..., -1])
        return Steps(seconds, (order <= seconds[..., None]).sum(axis=-1))

    return Rule(deadlines, ends)


def simulate(durations: np.ndarray, rule: Rule, *, late_workers: LateWorkers) -> Steps:
    r"""Returns the steps, [S, C], of machines that begin the first one together.

    .. math:: T_m = b_m + d_m, \quad b_m \leftarrow \begin{cases} b_m - S & \text{if } b_m \ge S \\
        \max(b_m + d_m - S, 0) & \text{else} \end{cases}

    T are the arrival times, d the durations, b the times at which machines begin, and S the time of the step. If late
    workers are interrupted, :math:`b_m = 0`.

    Args:
      durations: [S, M], the seconds that each machine takes for its gradient in each step.
      rule: when a step ends, for C choices.
      late_workers: "finish" or "interrupt".

    >>> simulate(np.array([[1.0, 2.5], [1.0, 1.0]]), first(2), late_workers="finish").seconds
    array([[1. , 2.5],
           [1. , 1. ]])
    """
    num_steps, num_machines = durations.shape
    num_choices = len(rule.choices)
    check_size(steps=num_steps, choices=num_choices)
    check_size(machines=num_machines, choices=num_choices)
    shape = (num_steps, num_choices)
    took = Steps(np.empty(shape, durations.dtype), np.empty(shape, np.int64))
    if late_workers == "interrupt":
        size = max(1, _AT_ONCE // (num_choices * num_machines))
        for begin in range(0, num_steps, size):
            block = slice(begin, begin + size)
            order = np.sort(durations[block], axis=1)
            took.seconds[block], took.counted[block] = rule.ends(order[:, None])
        return took
    free_at = np.zeros((num_choices, num_machines), durations.dtype)
    for step, own in enumerate(durations):
        took.seconds[step], took.counted[step] = rule.ends(np.sort(free_at + own, axis=1))
        free_at = free_after(free_at, own, took.seconds[step][:, None])
    return took
