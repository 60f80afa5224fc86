"""The number of steps to a target as a function of the gradients per step: a power law, or measured."""

from collections.abc import Callable, Mapping

import numpy as np

from planning.parsing import LARGEST, MOST_MACHINES, SMALLEST, read_csv

StepsToTarget = Callable[[np.ndarray], np.ndarray]


def power_law(exponent: float, *, steps: float = 1.0, at: int = 1) -> StepsToTarget:
    """Returns the power law with this exponent that takes ``steps`` steps at ``at`` gradients per step.

    >>> power_law(1.0, steps=100.0, at=10)(np.array([5, 10, 20]))
    array([200., 100.,  50.])
    """
    return lambda num_required: steps * (num_required / at) ** -exponent


def measured(rows: Mapping[int, float]) -> StepsToTarget:
    """Interpolates measured numbers of steps by a power law between the rows; NaN outside of them.

    >>> measured({10: 100.0, 40: 50.0})(np.array([5, 10, 20, 40]))
    array([         nan, 100.        ,  70.71067812,  50.        ])
    """
    known = np.array(sorted(rows))
    logs = np.log([rows[n] for n in known])
    return lambda n: np.exp(np.interp(np.log(n), np.log(known), logs, left=np.nan, right=np.nan))


def parse_steps(text: str, *, num_machines: int) -> StepsToTarget:
    """Parses ``power_law:EXPONENT[,STEPS]``, or else reads the text as the path of a CSV file."""
    kind, colon, rest = text.partition(":")
    allowed = "must be power_law:EXPONENT[,STEPS] or a CSV file with the columns num_required and steps"
    refused = f"steps_to_target={text!r}: {allowed}"
    if kind == "power_law" and colon:
        first, comma, second = rest.partition(",")
        try:
            exponent, steps = float(first), float(second) if comma else 1.0
        except ValueError as error:
            raise ValueError(f"{refused} ({error})") from None
        if not (0 <= exponent <= 10 and SMALLEST <= steps <= LARGEST):
            raise ValueError(f"{refused} (EXPONENT from 0 to 10, STEPS from {SMALLEST:g} to {LARGEST:g})")
        return power_law(exponent, steps=steps, at=num_machines)
    read = read_csv(text, {"num_required": int, "steps": float}, refused=refused)
    rows = dict(read)
    if len(rows) < len(read):
        raise ValueError(f"{refused} (a num_required has two rows)")
    if not rows or not 1 <= min(rows) <= max(rows) <= MOST_MACHINES:
        raise ValueError(f"{refused}, num_required from 1 to {MOST_MACHINES}")
    if not all(SMALLEST <= steps <= LARGEST for steps in rows.values()):
        raise ValueError(f"{refused}, steps from {SMALLEST:g} to {LARGEST:g}")
    return measured(rows)
