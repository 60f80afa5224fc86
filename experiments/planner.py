"""How many of M machines should be backups? Expected time per step and to a target, for every split into N + b.

    python -m experiments.planner --model=paper_cluster --machines=100 --steps_to_target=power_law:0.85,76209
    python -m experiments.planner --model=trace --path=measured.csv --steps_to_target=steps.csv --figure=plan.png

The time of a step is the mean time to the N-th of M arrivals: by formula where there is one, measured in many drawn
steps otherwise. Steps to the target are a power law, ``power_law:EXPONENT`` or ``power_law:EXPONENT,STEPS`` with the
steps that all M machines would need; or rows that were measured, in a CSV file with the columns num_required and steps,
between which a power law is drawn and outside of which nothing is planned. All other --key=value are options of the
model.
"""

import csv
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import plan_report
from reducers import arrivals
from reducers.arrivals.command import Parser

StepsToTarget = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What each split of M machines into N + b costs; arrays are [M], for N = 1 to M.

    Attributes:
      step_seconds: mean time of a step, to the N-th of M arrivals.
      step_error: its standard error; 0 for a formula.
      steps: to the target with N gradients a step; NaN where it is not known.
      score: time of a step on N machines without backups over that with them, times N / M: above 1 where the backups
        bring more than they take.
    """

    step_seconds: np.ndarray
    step_error: np.ndarray
    steps: np.ndarray
    score: np.ndarray

    @property
    def num_required(self) -> np.ndarray:
        return np.arange(1, len(self.steps) + 1)

    @property
    def target_seconds(self) -> np.ndarray:
        """Mean time to the target."""
        return self.step_seconds * self.steps

    @property
    def target_error(self) -> np.ndarray:
        """Its standard error, the steps being taken as exact."""
        return self.step_error * self.steps

    @property
    def best(self) -> int:
        """N of the shortest time to the target."""
        return int(np.nanargmin(self.target_seconds)) + 1


def plan(
    model: str,
    *,
    num_machines: int,
    steps_to_target: StepsToTarget,
    num_steps: int = 100_000,
    seed: int = 0,
    **options: Any,
) -> Plan:
    r"""Plans every split of M machines into N + b.

    .. math:: time(N) = steps(N) \, E[T_{(N:M)}]

    Args:
      model: name of an arrival model.
      num_machines: M.
      steps_to_target: [M] numbers of gradients a step -> [M] steps.
      num_steps: to draw, for a model without a formula.
      seed: of the draws.
      **options: of the model.

    Returns:
      A ``Plan``.

    Raises:
      ValueError: for a model or an option that makes no sense, or if no split has its steps known.

    >>> plan("constant", num_machines=10, steps_to_target=power_law(0.85)).best  # nothing to wait for: no backups
    10
    >>> plan("shifted_exponential", num_machines=10, steps_to_target=power_law(0.85)).best
    8
    """
    if model == "none":
        raise ValueError("name='none': no time passes, so there is nothing to plan")
    sizes = np.arange(1, num_machines + 1)
    steps = steps_to_target(sizes)
    if not np.isfinite(steps).any():
        raise ValueError(f"steps_to_target: says nothing of 1 to machines={num_machines} gradients a step")
    built = arrivals.make(model, **options)
    mean = arrivals.expected_arrivals(model, num_workers=num_machines, **options)
    if mean is not None:
        formulas = [arrivals.expected_arrivals(model, num_workers=int(n), **options) for n in sizes]
        alone = np.array([formula[-1] for formula in formulas if formula is not None])
        return Plan(mean, np.zeros(num_machines), steps, alone / mean * sizes / num_machines)
    key = jax.random.key(seed)
    seconds = arrivals.sample(built, key, num_workers=num_machines, num_steps=num_steps)
    alone_mean, _ = arrivals.batch_means(np.maximum.accumulate(seconds, axis=1))
    mean, error = arrivals.batch_means(np.sort(seconds, axis=1))
    return Plan(mean, error, steps, alone_mean / mean * sizes / num_machines)


# ---- steps to the target -------------------------------------------------------------------------------------------


def power_law(exponent: float, *, steps: float = 1.0, at: int = 1) -> StepsToTarget:
    """Steps fall as a power of the gradients a step: ``steps`` with ``at`` of them.

    >>> power_law(1.0, steps=100.0, at=10)(np.array([5, 10, 20]))
    array([200., 100.,  50.])
    """
    return lambda num_required: steps * (num_required / at) ** -exponent


def measured(rows: Mapping[int, float]) -> StepsToTarget:
    """Steps as measured, a power law between the rows; NaN outside of them.

    >>> measured({10: 100.0, 40: 50.0})(np.array([5, 10, 20, 40]))
    array([         nan, 100.        ,  70.71067812,  50.        ])
    """
    known = np.array(sorted(rows))
    logs = np.log([rows[n] for n in known])
    return lambda n: np.exp(np.interp(np.log(n), np.log(known), logs, left=np.nan, right=np.nan))


def parse_steps(text: str, *, num_machines: int) -> StepsToTarget:
    """Reads ``power_law:EXPONENT[,STEPS]`` or the path of a CSV file."""
    kind, colon, rest = text.partition(":")
    allowed = "must be power_law:EXPONENT[,STEPS] or a CSV file with the columns num_required and steps"
    try:
        if kind == "power_law" and colon:
            exponent, steps = ([float(number) for number in rest.split(",")] + [1.0])[:2]
            if not (0 <= exponent < np.inf and 0 < steps < np.inf) or rest.count(",") > 1:
                raise ValueError("out of range")
            return power_law(exponent, steps=steps, at=num_machines)
        with open(Path(text).expanduser(), newline="") as file:
            rows = {int(row["num_required"]): float(row["steps"]) for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"steps_to_target={text!r}: {allowed} ({error})") from None
    if not rows or min(rows) < 1 or not all(0 < steps < np.inf for steps in rows.values()):
        raise ValueError(f"steps_to_target={text!r}: {allowed}, numbers above 0")
    return measured(rows)


# ---- the command ---------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the plan that the command line asks for, and draws it; returns the exit code."""
    parser = Parser(prog="python -m experiments.planner", description="Plans N + b machines.")
    parser.add_argument("--machines", type=int, default=100, help="M (default: 100)")
    parser.add_argument("--steps_to_target", default="power_law:1", help="power_law:EXPONENT[,STEPS] or a CSV file")
    parser.add_argument("--steps", type=int, default=100_000, help="steps to draw (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--figure", help="draw the plan, into this file")
    try:
        arguments, options = parser.read(argv, counts=("machines", "steps"))
        for key in {"steps_to_target", "num_machines", "num_steps"} & set(options):
            raise ValueError(f"{key}: unknown option")
        made = plan(
            arguments.model,
            num_machines=arguments.machines,
            steps_to_target=parse_steps(arguments.steps_to_target, num_machines=arguments.machines),
            num_steps=arguments.steps,
            seed=arguments.seed,
            **options,
        )
        if arguments.figure:
            plan_report.draw(made, title=f"{arguments.model}, {arguments.machines} machines").savefig(arguments.figure)
    except (ValueError, OSError) as error:
        print(f"planner: {error}", file=sys.stderr)
        return 2
    print(plan_report.table(made))
    for line in plan_report.findings(made, model=arguments.model):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
