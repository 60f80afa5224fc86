"""Finds the number of backups among M machines, or the grace or deadline, that reaches a target soonest.

    python -m planning backups --model=paper_cluster --machines=100 --steps_to_target=power_law:0.85,76209
    python -m planning backups --model=paper_cluster --reducer=quorum --grace_seconds=0.1
    python -m planning backups --model=paper_cluster --reducer=deadline --deadlines=1.5,1.6,1.8
    python -m planning backups --model=trace --path=measured.csv --steps_to_target=steps.csv --figure=plan.png

With ``backup_workers`` the command plans every split into N + b; with ``quorum`` every N, all with the same grace; with
``deadline`` the given deadlines, or else the mean times of the first, second, ... arrival. It plans each choice twice,
for late workers that finish and for late workers that are interrupted. Late workers that finish their gradient begin
the next step late, so their steps are simulated one after another. If late workers are interrupted, the models
``constant`` and ``shifted_exponential`` have a formula for the mean time to the N-th arrival; everything else is
computed from sampled steps. If a step waits for all machines, the two kinds of late workers are the same.

The number of steps to the target is either a power law, ``power_law:EXPONENT`` or ``power_law:EXPONENT,STEPS``, where
STEPS is the number for all M machines (default: power_law:1, half the steps with twice the gradients); or it is
measured, in a CSV file with the columns num_required and steps. A power law interpolates between the rows of the file;
choices that count fewer or more gradients than its rows are left out. A step that counts c gradients covers
1 / steps(c) of the way to the target. All other --key=value are options of the model.

Standard errors are computed from the means of batches of consecutive steps; for a trace, from its own steps, however
often they are drawn. The interval of the best choice is a bootstrap over these batches.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from planning.parsing import MOST_MACHINES, MOST_STEPS, Answer, ModelParser, add_outputs, number, table, write_files
from planning.step_times import LateWorkers, by_deadline, first, sample, simulate
from planning.steps_to_target import StepsToTarget, parse_steps
from reducers import arrivals
from runs.reporting.figures import COLOURS, Figure, plain_numbers

_NUM_RESAMPLES = 2_000

Reducer = Literal["backup_workers", "quorum", "deadline"]
# Number of sampled steps: if late workers finish, steps are simulated one after another, each for every choice.
_NUM_STEPS: Mapping[LateWorkers, int] = {"finish": 10_000, "interrupt": 100_000}
_WORDS: Mapping[LateWorkers, str] = {"finish": "late workers finish", "interrupt": "late workers are interrupted"}


class Waiting(NamedTuple):
    """When a step ends.

    Attributes:
      reducer: the reducer that decides it.
      grace_seconds: how long ``quorum`` waits after the N-th arrival.
      deadlines: seconds for ``deadline`` to try; empty for the mean times of the first, second, ... arrival.
    """

    reducer: Reducer = "backup_workers"
    grace_seconds: float = 0.0
    deadlines: Sequence[float] = ()


FIRST = Waiting()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The times of C choices for M machines; all arrays are [C].

    Attributes:
      reducer: the reducer that decides when a step ends.
      num_machines: M.
      choices: N, the number of gradients to wait for; with ``deadline``, its seconds.
      counted: the mean number of gradients that a step counts; N with ``backup_workers``.
      step_seconds: the mean time of a step.
      step_error: its standard error; 0 if it comes from a formula.
      steps: the number of steps to the target; NaN if it is unknown.
      target_error: the standard error of the time to the target, if the numbers of steps are exact.
      best_interval: the least and the greatest choice that are best in 95 % of bootstrap samples of batches of steps;
        None for a formula, or for too few steps.
    """

    reducer: Reducer
    num_machines: int
    choices: np.ndarray
    counted: np.ndarray
    step_seconds: np.ndarray
    step_error: np.ndarray
    steps: np.ndarray
    target_error: np.ndarray
    best_interval: tuple[Any, Any] | None = None

    @property
    def target_seconds(self) -> np.ndarray:
        """The mean time to the target."""
        return self.step_seconds * self.steps

    @property
    def best_index(self) -> int:
        """The index of the choice with the shortest mean time to the target."""
        return int(np.nanargmin(self.target_seconds))

    @property
    def best(self) -> Any:
        """The choice with the shortest mean time to the target."""
        return self.choices[self.best_index].item()


def plan(
    model: str,
    *,
    num_machines: int,
    steps_to_target: StepsToTarget,
    waiting: Waiting = FIRST,
    late_workers: LateWorkers = "interrupt",
    num_steps: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Plan:
    r"""Computes the time to the target for every choice of when M machines end a step.

    .. math:: time = \frac{E[S]}{E[1 / steps(c)]}

    S is the time of a step, and c the number of gradients that it counts. With ``backup_workers``, c is N, so that the
    time is :math:`steps(N) \, E[S]`.

    Args:
      model: the name of an arrival model.
      num_machines: M.
      steps_to_target: numbers of gradients per step -> numbers of steps, for arrays.
      waiting: when a step ends.
      late_workers: "finish" if a late worker finishes its gradient, which is dropped, and begins the next step late;
        "interrupt" if it is interrupted when the step ends, so that all begin each step together. As
        ``config.late_workers``.
      num_steps: the number of steps to sample if there is no formula; None for 10,000 with "finish", else 100,000.
      seed: the seed of the samples.
      **options: options of the model.

    Returns:
      The plan.

    Raises:
      ValueError: for an invalid model or option, or if the number of steps is unknown for all choices.

    >>> from planning.steps_to_target import power_law
    >>> plan("constant", num_machines=10, steps_to_target=power_law(0.85)).best  # nothing to wait for: no backups
    10
    >>> plan("shifted_exponential", num_machines=10, steps_to_target=power_law(0.85)).best
    8
    >>> late = {"late_workers": "finish", "num_steps": 2000}
    >>> plan("shifted_exponential", num_machines=10, steps_to_target=power_law(0.85), **late).best
    9
    >>> late["waiting"] = Waiting("deadline", deadlines=(1.5, 2.0, 3.0))
    >>> plan("shifted_exponential", num_machines=10, steps_to_target=power_law(0.85), **late).best
    2.0
    """
    if model == "none":
        raise ValueError("name='none': no time passes, so there is nothing to plan")
    reducer = waiting.reducer
    sizes = np.arange(1, num_machines + 1)
    known = steps_to_target(sizes)
    if not np.isfinite(known).any():
        raise ValueError(f"steps_to_target: says nothing of 1 to machines={num_machines} gradients a step")
    formula = None
    if late_workers == "interrupt" and reducer == "backup_workers":
        formula = arrivals.expected_arrivals(model, num_workers=num_machines, **options)
    if formula is not None:
        none = np.zeros(num_machines)
        return Plan(reducer, num_machines, sizes, sizes, formula, none, known, none)
    num_steps = num_steps or _NUM_STEPS[late_workers]
    durations = sample(model, num_machines=num_machines, num_steps=num_steps, seed=seed, **options)
    period = arrivals.num_recorded(model, **options)
    if reducer == "deadline":
        mean_arrivals = np.sort(durations, axis=1).mean(axis=0, dtype=np.float64)
        rule = by_deadline(np.array(waiting.deadlines or mean_arrivals))
    else:
        rule = first(num_machines, grace_seconds=waiting.grace_seconds)
    took = simulate(durations, rule, late_workers=late_workers)
    progress = (1 / known)[took.counted - 1]  # the fraction of the way to the target that each step covers
    mean, error = arrivals.batch_means(took.seconds, period=period)
    counted, _ = arrivals.batch_means(took.counted, period=period)
    pace, _ = arrivals.batch_means(progress, period=period)
    if not np.isfinite(pace).any():
        raise ValueError(f"steps_to_target: covers only some numbers of gradients that a step of {reducer} may count")
    # The standard error of the ratio of two means.
    _, spread = arrivals.batch_means(took.seconds - progress * (mean / pace), period=period)
    times, ways = (arrivals.batches(values, period=period) for values in (took.seconds, progress))
    return Plan(
        reducer,
        num_machines,
        rule.choices,
        counted,
        step_seconds=mean,
        step_error=error,
        steps=1 / pace,
        target_error=spread / pace,
        best_interval=best_interval(times, ways, rule.choices, seed=seed),
    )


def best_interval(seconds: np.ndarray, progress: np.ndarray, choices: np.ndarray, *, seed: int) -> tuple | None:
    """Returns the 95 % bootstrap interval of the best choice; batches of steps are resampled.

    Args:
      seconds: [B, C], the mean time of a step in each batch.
      progress: [B, C], the mean fraction of the way to the target that a step of each batch covers.
      choices: [C], ascending.
      seed: the seed of the resampling.

    Returns:
      The least and the greatest choice; None for a single batch.
    """
    count = len(seconds)
    if count < 2:
        return None
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_NUM_RESAMPLES)
    best = np.nanargmin((drawn @ seconds) / (drawn @ progress), axis=1)
    low, high = np.quantile(best, (0.025, 0.975), method="nearest")
    return choices[low].item(), choices[high].item()


# ---- tables and figures ----------------------------------------------------------------------------------------------


def table_of(plan: Plan) -> str:
    """Returns a line for each choice whose number of steps is known, the largest choice first and the best marked.

    The columns are N and b, or N or the deadline and the mean number of counted gradients; the mean time of a step with
    its standard error, the number of steps to the target, the time to the target with its standard error, and the
    speed-up over the first line.
    """
    order = [i for i in np.argsort(-plan.choices, kind="stable") if np.isfinite(plan.steps[i])]
    rows = []
    for i in order:
        choice = plan.choices[i].item()
        if plan.reducer == "backup_workers":
            waits = {"N": choice, "b": plan.num_machines - choice}
        else:
            waits = {"D s" if plan.reducer == "deadline" else "N": choice, "counted": plan.counted[i]}
        rows.append(
            {
                "": "*" if i == plan.best_index else "",
                **waits,
                "step s": plan.step_seconds[i],
                "+- s": plan.step_error[i],
                "steps": plan.steps[i],
                "target s": plan.target_seconds[i],
                "+- target s": plan.target_error[i],
                "speed-up": plan.target_seconds[order[0]] / plan.target_seconds[i],
            }
        )
    return table(rows, digits=5)


def findings(plan: Plan) -> list[str]:
    """Returns sentences: the best choice, its interval, and the choices that are as good within the error."""
    best = plan.best_index
    symbol = "D" if plan.reducer == "deadline" else "N"
    margin = 2 * np.hypot(plan.target_error, plan.target_error[best])
    close = plan.choices[plan.target_seconds <= plan.target_seconds[best] + margin]
    of_best = f"best: {_in_words(plan, best)}"
    if plan.best_interval is not None:
        low, high = plan.best_interval
        of_best += f" (95 % interval of {symbol}: {low:.5g} to {high:.5g})"
    if len(close) > 1:
        listed = ", ".join(f"{one:.5g}" for one in close)
        of_best += f"; within two standard errors of it: {symbol} = {listed}"
    lines = [of_best]
    if np.isnan(plan.step_error).any():
        lines.append("+-: unknown, as the trace has fewer than 4 steps")
    if unknown := int(np.isnan(plan.steps).sum()):
        lines.append(
            f"left out: {unknown} of {len(plan.steps)} choices, as steps_to_target does not cover what they count"
        )
    return lines


def _in_words(plan: Plan, i: int) -> str:
    choice = plan.choices[i]
    if plan.reducer == "backup_workers":
        return f"{choice} + {plan.num_machines - choice}"
    waited = f"a deadline of {choice:.4g} s" if plan.reducer == "deadline" else f"N = {choice}"
    return f"{waited}, {plan.counted[i]:.4g} of {plan.num_machines} counted"


def draw(plan: Plan, figure: Figure, *, title: str) -> None:
    """Draws steps, time per step, and time to the target against the choice, as the paper does, and marks the best.

    Error bars are two standard errors.

    Args:
      plan: the plan of all choices.
      figure: an empty figure.
      title: the title of the figure.
    """
    label_of_choice = "deadline (s)" if plan.reducer == "deadline" else "gradients waited for, N"
    panels = figure.subplots(1, 3)
    series = (
        ("steps to the target", plan.steps, np.zeros_like(plan.steps)),
        ("mean time of a step (s)", plan.step_seconds, plan.step_error),
        ("mean time to the target (s)", plan.target_seconds, plan.target_error),
    )
    for axes, (label, values, error) in zip(panels, series, strict=True):
        bars = 2 * error if np.any(error) else None  # a formula has no error
        axes.errorbar(plan.choices, values, bars, color=COLOURS[0], linewidth=1.4)
        axes.axvline(plan.best, color=COLOURS[1], linestyle="--", linewidth=1)
        axes.set(xlabel=label_of_choice, ylabel=label, yscale="log")
        plain_numbers(axes.yaxis)
    figure.suptitle(f"{title}; best: {_in_words(plan, plan.best_index)}")


# ---- the command ---------------------------------------------------------------------------------------------------


def parse_waiting(arguments: argparse.Namespace) -> Waiting:
    """Returns when a step ends, from the flags of the command line.

    Raises:
      ValueError: one line, if an option belongs to another reducer, or a value is not allowed.
    """
    reducer = arguments.reducer
    if (arguments.grace_seconds is not None) != (reducer == "quorum"):
        raise ValueError("grace_seconds: is needed by --reducer=quorum, and no option of another")
    if arguments.deadlines is not None and reducer != "deadline":
        raise ValueError("deadlines: is an option of --reducer=deadline alone")
    grace_seconds = number(arguments.grace_seconds or "0", key="grace_seconds", least=0.0)
    deadlines = [number(one, key="deadlines") for one in (arguments.deadlines or "").split(",") if one]
    return Waiting(reducer, grace_seconds, sorted(deadlines))


def report(arguments: argparse.Namespace, options: dict[str, Any]) -> str:
    """Returns the plan and its findings, and writes them into the files that the flags name.

    Raises:
      ValueError: one line, for an invalid argument or option.
      OSError: if a file cannot be written.
    """
    shared: dict[str, Any] = {
        "num_machines": arguments.machines,
        "steps_to_target": parse_steps(arguments.steps_to_target, num_machines=arguments.machines),
        "waiting": parse_waiting(arguments),
        "num_steps": arguments.steps,
        "seed": arguments.seed,
    }
    plans = {how: plan(arguments.model, late_workers=how, **shared, **options) for how in get_args(LateWorkers)}
    about = f"{arguments.model}, {arguments.machines} machines"
    if arguments.reducer != "backup_workers":
        about += f", {arguments.reducer}"
    lines, tables = [], []
    for how, made in plans.items():
        best, *others = findings(made)
        lines += [f"{best}; {_WORDS[how]}", *others]
        tables += [f"{_WORDS[how]}:", table_of(made)]
    answer = Answer(
        "\n".join([*lines, f"{about}, steps to the target: {arguments.steps_to_target}", *tables]),
        {how: numbers(made) for how, made in plans.items()},
        lambda figure: draw(plans["finish"], figure, title=f"{about}, {_WORDS['finish']}"),
        inches=(11, 3.4),
    )
    return write_files(answer, arguments)


def numbers(plan: Plan) -> dict[str, Any]:
    """Returns the fields of a plan and its best choice for a JSON file."""
    found = {**dataclasses.asdict(plan), "target_seconds": plan.target_seconds, "best": plan.best}
    for key, value in found.items():
        if isinstance(value, np.ndarray):
            found[key] = value.tolist()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report; returns the exit code."""
    description = "Plans how many of M machines are backups, or how long a grace or a deadline is."
    parser = ModelParser(prog="python -m planning backups", description=description, count="machines", default=100)
    parser.add_argument(
        "--reducer", choices=get_args(Reducer), default="backup_workers", help="what waits (default: backup_workers)"
    )
    parser.add_argument("--grace_seconds", help="the time of grace of --reducer=quorum")
    parser.add_argument("--deadlines", help="of --reducer=deadline, in seconds: 1.5,1.6 (default: mean arrival times)")
    parser.add_argument(
        "--steps_to_target",
        default="power_law:1",
        help="power_law:EXPONENT[,STEPS] or a CSV file (default: power_law:1)",
    )
    parser.add_argument(
        "--steps", type=int, help="number of steps to sample (default: 10000 that depend on each other, or 100000)"
    )
    add_outputs(parser)
    return parser.run(report, argv, most={"machines": MOST_MACHINES, "steps": MOST_STEPS})
