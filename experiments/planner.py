"""Plans how many of M machines should be backups: expected times per step and to a target for each split into N + b.

    python -m experiments.planner --model=paper_cluster --machines=100 --steps_to_target=power_law:0.85,76209
    python -m experiments.planner --model=trace --path=measured.csv --steps_to_target=steps.csv --figure=plan.png

The time of a step is the mean time to the N-th of M arrivals. Of late workers that finish what they began, and so begin
the next step late, it is simulated step by step; of late workers that are interrupted it has a formula for some models,
and comes from sampled steps for others. Where all are waited for the two are the same.

The number of steps to the target is either a power law, ``power_law:EXPONENT`` or ``power_law:EXPONENT,STEPS``, where
STEPS is the number for all M machines (default: power_law:1, half the steps with twice the gradients); or it is
measured, in a CSV file with the columns num_required and steps. Between the rows of the file a power law interpolates;
splits outside of them are not planned. All other --key=value are options of the model.

Standard errors come from the means of batches of consecutive steps; of a trace, from its own steps, however often they
are drawn. The interval of the best N is that of a bootstrap of these batches.
"""

import argparse
import csv
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np

from experiments.parsing import ModelParser
from experiments.plots.drawing import COLOURS, Figure, new_figure
from reducers import arrivals

# (arrival model, machines) -> the paper's best N, and where it was read.
PAPER_BEST: dict[tuple[str, int], tuple[int, str]] = {
    ("paper_cluster", 100): (96, "arXiv 1604.00981, read in a secondary source"),
}

_NUM_RESAMPLES = 2_000

LateWorkers = Literal["finish", "interrupt"]
# Steps that are sampled: those of late workers that finish are simulated one after another, each for every N.
_NUM_STEPS: Mapping[LateWorkers, int] = {"finish": 10_000, "interrupt": 100_000}
_WORDS: Mapping[LateWorkers, str] = {"finish": "late workers finish", "interrupt": "late workers are interrupted"}

StepsToTarget = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Times of each split of M machines into N + b; all arrays are [M], for N = 1 to M.

    Attributes:
      step_seconds: the mean time of a step, to the N-th of M arrivals.
      step_error: its standard error; 0 for a formula.
      steps: the number of steps to the target with N gradients per step; NaN where it is not known.
      best_interval: the least and the largest N that would be best in 95 % of samples like this one, by a bootstrap of
        batches of steps; None for a formula, or if there are too few steps.
      score: the time of a step on N machines without backups over the time with them, times N / M. It is above 1 where
        the backups save more time than they cost. Where machines differ, those without backups are the first N.
    """

    step_seconds: np.ndarray
    step_error: np.ndarray
    steps: np.ndarray
    score: np.ndarray
    best_interval: tuple[int, int] | None = None

    @property
    def num_required(self) -> np.ndarray:
        return np.arange(1, len(self.steps) + 1)

    @property
    def target_seconds(self) -> np.ndarray:
        """The mean time to the target."""
        return self.step_seconds * self.steps

    @property
    def target_error(self) -> np.ndarray:
        """The standard error of ``target_seconds``, with the number of steps taken as exact."""
        return self.step_error * self.steps

    @property
    def best(self) -> int:
        """The N with the shortest mean time to the target."""
        return int(np.nanargmin(self.target_seconds)) + 1


def plan(
    model: str,
    *,
    num_machines: int,
    steps_to_target: StepsToTarget,
    late_workers: LateWorkers = "interrupt",
    num_steps: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Plan:
    r"""Plans every split of M machines into N + b.

    .. math:: time(N) = steps(N) \, E[T_{(N:M)}]

    Args:
      model: the name of an arrival model.
      num_machines: M.
      steps_to_target: numbers of gradients per step [M] -> numbers of steps [M].
      late_workers: whether a late worker finishes its gradient, which is dropped, and begins the next step late; or is
        interrupted where the step ends, so that all begin each step together. As ``config.late_workers``.
      num_steps: the number of steps to sample, where there is no formula; None for 10,000 that depend on each other, or
        100,000.
      seed: the seed of the samples.
      **options: options of the model.

    Returns:
      The plan.

    Raises:
      ValueError: for an invalid model or option, or if the number of steps is not known for any split.

    >>> plan("constant", num_machines=10, steps_to_target=power_law(0.85)).best  # nothing to wait for: no backups
    10
    >>> plan("shifted_exponential", num_machines=10, steps_to_target=power_law(0.85)).best
    8
    >>> late = {"late_workers": "finish", "num_steps": 2000}
    >>> plan("shifted_exponential", num_machines=10, steps_to_target=power_law(0.85), **late).best
    9
    """
    if model == "none":
        raise ValueError("name='none': no time passes, so there is nothing to plan")
    sizes = np.arange(1, num_machines + 1)
    steps = steps_to_target(sizes)
    if not np.isfinite(steps).any():
        raise ValueError(f"steps_to_target: says nothing of 1 to machines={num_machines} gradients a step")
    built = arrivals.make(model, **options)
    mean = None
    if late_workers == "interrupt":
        mean = arrivals.expected_arrivals(model, num_workers=num_machines, **options)
    if mean is not None:
        formulas = [arrivals.expected_arrivals(model, num_workers=int(n), **options) for n in sizes]
        alone = np.array([formula[-1] for formula in formulas if formula is not None])
        return Plan(mean, np.zeros(num_machines), steps, alone / mean * sizes / num_machines)
    key, num_steps = jax.random.key(seed), num_steps or _NUM_STEPS[late_workers]
    seconds = arrivals.sample(built, key, num_workers=num_machines, num_steps=num_steps)
    period = arrivals.num_recorded(model, **options)
    alone_mean, _ = arrivals.batch_means(np.maximum.accumulate(seconds, axis=1), period=period)
    seconds = finishing(seconds) if late_workers == "finish" else np.sort(seconds, axis=1)
    mean, error = arrivals.batch_means(seconds, period=period)
    interval = best_interval(arrivals.batches(seconds, period=period), steps, seed=seed)
    return Plan(mean, error, steps, alone_mean / mean * sizes / num_machines, interval)


def finishing(durations: np.ndarray) -> np.ndarray:
    """Returns how long each step takes that waits for the first N, for every N, where late workers finish.

    A worker whose gradient comes after the N-th finishes it, and then begins the gradient of the step that is open.

    Args:
      durations: [S, M], how long each machine takes for its gradient of each step.

    Returns:
      [S, M], for N = 1 to M; all begin the first step together.

    >>> finishing(np.array([[1.0, 2.5], [1.0, 1.0]]))  # with N = 1 the second is busy for 1.5 s more
    array([[1. , 2.5],
           [1. , 1. ]])
    """
    num_machines = durations.shape[1]
    n = np.arange(num_machines)
    busy = np.zeros((num_machines, num_machines), durations.dtype)  # of each N, each machine
    took = np.empty_like(durations)
    for step, own in enumerate(durations):
        took[step] = np.sort(busy + own, axis=1)[n, n]
        left = busy - took[step][:, None]
        busy = np.where(left >= 0, left, np.maximum(left + own, 0))
    return took


def best_interval(batches: np.ndarray, steps: np.ndarray, *, seed: int) -> tuple[int, int] | None:
    """Returns the central 95 % of the best N of resampled batches of steps.

    Args:
      batches: [B, M], the mean times to the k-th arrival in each batch.
      steps: [M], the numbers of steps to the target.
      seed: the seed of the resampling.

    Returns:
      The least and the largest N; None for a single batch.
    """
    count = len(batches)
    if count < 2:
        return None
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_NUM_RESAMPLES)
    best = np.nanargmin(drawn @ batches / count * steps, axis=1) + 1
    low, high = np.quantile(best, (0.025, 0.975), method="nearest")
    return int(low), int(high)


# ---- steps to the target -------------------------------------------------------------------------------------------


def power_law(exponent: float, *, steps: float = 1.0, at: int = 1) -> StepsToTarget:
    """Returns a power law of the number of gradients per step: ``steps`` steps with ``at`` gradients.

    >>> power_law(1.0, steps=100.0, at=10)(np.array([5, 10, 20]))
    array([200., 100.,  50.])
    """
    return lambda num_required: steps * (num_required / at) ** -exponent


def measured(rows: Mapping[int, float]) -> StepsToTarget:
    """Returns measured numbers of steps, interpolated by a power law between the rows; NaN outside of them.

    >>> measured({10: 100.0, 40: 50.0})(np.array([5, 10, 20, 40]))
    array([         nan, 100.        ,  70.71067812,  50.        ])
    """
    known = np.array(sorted(rows))
    logs = np.log([rows[n] for n in known])
    return lambda n: np.exp(np.interp(np.log(n), np.log(known), logs, left=np.nan, right=np.nan))


def parse_steps(text: str, *, num_machines: int) -> StepsToTarget:
    """Parses ``power_law:EXPONENT[,STEPS]``, or reads the CSV file of that path."""
    kind, colon, rest = text.partition(":")
    allowed = "must be power_law:EXPONENT[,STEPS] or a CSV file with the columns num_required and steps"
    try:
        if kind == "power_law" and colon:
            exponent, steps = ([float(number) for number in rest.split(",")] + [1.0])[:2]
            if not (0 <= exponent < np.inf and 0 < steps < np.inf) or rest.count(",") > 1:
                raise ValueError("out of range")
            return power_law(exponent, steps=steps, at=num_machines)
        path = Path(text).expanduser()
        if path.exists() and not path.is_file():  # opening a pipe would wait
            raise ValueError("not a regular file")
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = {int(row["num_required"]): float(row["steps"]) for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"steps_to_target={text!r}: {allowed} ({error})") from None
    if not rows or min(rows) < 1 or not all(0 < steps < np.inf for steps in rows.values()):
        raise ValueError(f"steps_to_target={text!r}: {allowed}, numbers above 0")
    return measured(rows)


# ---- tables and figures ----------------------------------------------------------------------------------------------


def table(plan: Plan) -> str:
    """Returns a line per split whose number of steps is known, with the most backups last and the best split marked.

    The columns are N, b, the mean time of a step with its standard error, the number of steps to the target, the time
    to the target with its standard error, the speed-up over no backups, and the score per machine.
    """
    heads = ("N", "b", "step s", "+-", "steps", "target s", "+-", "speed-up", "score")
    lines = ["  " + "".join(f"{head:>11}" for head in heads)]
    for i in range(len(plan.steps) - 1, -1, -1):
        if not np.isfinite(plan.steps[i]):
            continue
        n = i + 1
        numbers = [plan.step_seconds[i], plan.step_error[i], plan.steps[i], plan.target_seconds[i]]
        numbers += [plan.target_error[i], plan.target_seconds[-1] / plan.target_seconds[i], plan.score[i]]
        mark = "* " if n == plan.best else "  "
        lines.append(mark + f"{n:>11}{len(plan.steps) - n:>11}" + "".join(f"{number:>11.5g}" for number in numbers))
    return "\n".join(lines)


def findings(plan: Plan, *, model: str) -> list[str]:
    """Says which split is best, how sure that is, which others are equal within the error, and the paper's best."""
    machines, best = len(plan.steps), plan.best
    margin = 2 * np.hypot(plan.target_error, plan.target_error[best - 1])
    close = plan.num_required[plan.target_seconds <= plan.target_seconds[best - 1] + margin]
    lines = [f"best: {best} + {machines - best}"]
    if plan.best_interval is not None:
        low, high = plan.best_interval
        lines[0] += f" (95 % interval of N: {low} to {high})"
    if len(close) > 1:
        lines[0] += f"; within two standard errors of it: N = {', '.join(map(str, close))}"
    if np.isnan(plan.step_error).any():
        lines.append("+-: unknown, as the trace has fewer than 4 steps")
    if (model, machines) in PAPER_BEST:
        theirs, source = PAPER_BEST[model, machines]
        verdict = "the same" if theirs == best else f"this plan misses it by {abs(best - theirs)}"
        lost = plan.target_seconds[theirs - 1] / plan.target_seconds[best - 1] - 1
        longer = f"it takes {lost:.1%} longer here" if np.isfinite(lost) else "its steps are not known here"
        lines.append(f"paper: {theirs} + {machines - theirs} ({source}): {verdict}; {longer}")
    return lines


def draw(plan: Plan, *, title: str) -> Figure:
    """Draws steps, time per step, and time to the target against N, as the paper does, and marks the best N.

    Error bars are two standard errors.

    Args:
      plan: the plan of all splits.
      title: the title of the figure.

    Returns:
      The figure.
    """
    with new_figure(11, 3.4, dpi=160) as figure:
        panels = figure.subplots(1, 3)
        series = (
            ("steps to the target", plan.steps, np.zeros_like(plan.steps)),
            ("mean time of a step (s)", plan.step_seconds, plan.step_error),
            ("mean time to the target (s)", plan.target_seconds, plan.target_error),
        )
        for axes, (label, values, error) in zip(panels, series, strict=True):
            bars = 2 * error if np.any(error) else None  # a formula has no error
            axes.errorbar(plan.num_required, values, bars, color=COLOURS[0], linewidth=1.4)
            axes.axvline(plan.best, color=COLOURS[1], linestyle="--", linewidth=1)
            axes.set(xlabel="gradients per step, N", ylabel=label, yscale="log")
        panels[2].annotate(
            f"{plan.best} + {len(plan.steps) - plan.best}",
            (plan.best, plan.target_seconds[plan.best - 1]),
            textcoords="offset points",
            xytext=(-8, 14),
            ha="right",
            color=COLOURS[1],
        )
        figure.suptitle(title, fontsize=10)
    return figure


# ---- the command ---------------------------------------------------------------------------------------------------


def report(arguments: argparse.Namespace, options: dict[str, Any]) -> str:
    """Returns the plan and its findings, and draws the plan if a figure is named.

    Raises:
      ValueError: one line, for an invalid argument or option.
      OSError: if the figure cannot be written.
    """
    steps_to_target = parse_steps(arguments.steps_to_target, num_machines=arguments.machines)
    plans = {
        late_workers: plan(
            arguments.model,
            num_machines=arguments.machines,
            steps_to_target=steps_to_target,
            late_workers=late_workers,
            num_steps=arguments.steps,
            seed=arguments.seed,
            **options,
        )
        for late_workers in get_args(LateWorkers)
    }
    about = f"{arguments.model}, {arguments.machines} machines"
    if arguments.figure:
        draw(plans["finish"], title=f"{about}, {_WORDS['finish']}").savefig(arguments.figure)
    lines = []
    for late_workers, made in plans.items():
        best, *others = findings(made, model=arguments.model)
        lines += [f"{best}; {_WORDS[late_workers]}", *others]
    lines.append(f"{about}, steps to the target: {arguments.steps_to_target}")
    for late_workers, made in plans.items():
        lines += [f"{_WORDS[late_workers]}:", table(made)]
    return "\n".join(
        [*lines, "score: seconds of a step on N machines without backups, over those with backups, times N / M"]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report, and returns the exit code."""
    description = "Plans how many of M machines should be backups."
    parser = ModelParser(prog="python -m experiments.planner", description=description)
    parser.add_argument("--machines", type=int, default=100, help="number of machines, M (default: 100)")
    parser.add_argument(
        "--steps_to_target",
        default="power_law:1",
        help="power_law:EXPONENT[,STEPS] or a CSV file (default: power_law:1)",
    )
    parser.add_argument(
        "--steps", type=int, help="number of steps to sample (default: 10000 that depend on each other, or 100000)"
    )
    parser.add_argument("--figure", help="path of a figure to draw")
    return parser.run(report, argv, counts=("machines", "steps"))


if __name__ == "__main__":
    sys.exit(main())
