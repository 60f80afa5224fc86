r"""Chooses a method and a number of machines from finished runs: least time to a target, or lowest loss in a time.

    python -m planning choose out/sweep --target=0.3 --machines=8,16,32
    python -m planning choose experiments/claims/sync_async/rows.jsonl --loss=error --seconds=60 --clock=simulated

For each method the command fits two laws: the seconds of a step (`planning.scale`), and the loss as a function of steps
and machines. Runs belong to one method if they differ only in machines, seeds, batches and learning rates.
"""

import argparse
import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LassoCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from launch.output import clipped
from planning import scale, sources
from planning.parsing import LARGEST, Answer, PlanParser, counts, number, parse_options, table
from planning.sources import Run
from runs.reporting.figures import COLOURS, MARKERS, Figure, plain_numbers, ticks

_POINTS = 40  # evaluations of a run that are fitted, spaced evenly in the logarithm of the step
_GRID = 200  # steps at which a law is evaluated
_BEYOND = 4.0  # how far laws are extrapolated, in lengths of the longest run
_FOLDS = 5
_INTERVAL = (0.05, 0.95)
_MOST_SHOWN = 120  # characters of a method's name
_SOLVER: dict[str, Any] = {"max_iter": 20_000, "tol": 1e-3, "precompute": True}


class Laws(NamedTuple):
    """The fitted laws of a method.

    Attributes:
      products: ``features`` -> features and their products, standardised.
      weights: [R, F], the weights of R laws for log(loss - best): the first fits all runs, the others resampled runs.
      offsets: [R], the intercepts of these laws.
      times: R laws for the seconds of a step; or, for fewer than four numbers of machines, the mean for each.
      sizes: the numbers of machines that have runs, ascending.
      first: the first step at which a run was evaluated.
      steps: the length of the longest run.
      highest: the highest log(loss - best) in the runs.
      runs: the number of runs.
    """

    products: Pipeline
    weights: np.ndarray
    offsets: np.ndarray
    times: list[scale.Scaling] | dict[int, float]
    sizes: tuple[int, ...]
    first: int
    steps: int
    highest: float
    runs: int

    def seconds(self, machines: Sequence[int]) -> np.ndarray:
        """Returns the seconds of a step by each law, [R, M]; NaN where they are unknown."""
        if isinstance(self.times, dict):
            return np.array([[self.times.get(m, math.nan) for m in machines]] * len(self.offsets))
        return np.stack([law.seconds(np.array(machines)) for law in self.times])

    def curves(self, machines: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns steps [S], and the lowest loss - best reached by each step, [R, M, S], for R laws and M machines."""
        steps = np.geomspace(self.first, _BEYOND * self.steps, _GRID)
        i, m = np.meshgrid(steps, np.array(machines, float))
        products = self.products.transform(features(i.ravel(), m.ravel()))
        logs = self.weights @ products.T + self.offsets[:, None]
        least = np.minimum.accumulate(logs.reshape(-1, *i.shape), axis=-1)
        return steps, np.exp(np.clip(least, -60, self.highest))


class Choice(NamedTuple):
    """A method on a number of machines.

    Attributes:
      method: the name of the method.
      machines: m.
      steps: the steps to the target, or in the allowed time.
      seconds: the seconds to the target, or the allowed time.
      loss: the target, or the loss at the end of the allowed time.
      low, high: the central 90 % of the minimised quantity, seconds or loss, over laws of resampled runs.
      beyond: the extrapolated quantities: "machines", "steps", "machines and steps" or "".
    """

    method: str
    machines: int
    steps: float
    seconds: float
    loss: float
    low: float
    high: float
    beyond: str


def features(steps: np.ndarray, machines: np.ndarray) -> np.ndarray:
    """Returns i, i / m, i / m^2, log i, sqrt i, 1 / m and log m, [P, 7]."""
    i, m = steps, machines
    return np.stack([i, i / m, i / m**2, np.log(i), np.sqrt(i), 1 / m, np.log(m)], axis=-1)


def _samples(run: Run, best: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features of a run's steps nearest to a logarithmic grid, and log(loss - best) at each."""
    with np.errstate(over="ignore"):  # a gap that overflows is dropped like an infinite one
        gaps = run.losses - best
    counted = run.finite & (gaps > 0) & np.isfinite(gaps)
    steps, gaps = run.steps[counted], gaps[counted]
    if not len(steps):
        raise ValueError(f"run={run.name!r}: all its losses are at or below the best loss, {best:g}")
    grid = np.geomspace(steps[0], steps[-1], _POINTS)
    near = np.unique(np.abs(np.log(steps)[:, None] - np.log(grid)).argmin(axis=0))
    return features(steps[near], np.full(len(near), run.machines)), np.log(gaps[near])


def fit(runs: Sequence[Run], *, best: float, num_refits: int = 40) -> Laws:
    r"""Fits the laws of one method.

    .. math:: \log(loss(i, m) - best) = \beta \cdot (i, i/m, i/m^2, \log i, \sqrt i, 1/m, \log m, \text{products})

    The lasso fits the weights. Cross-validation that holds out whole runs picks its penalty; the laws of resampled runs
    keep it.

    Args:
      runs: the runs of the method, at least two.
      best: the lowest attainable loss.
      num_refits: the number of resampled fits, for intervals.

    Returns:
      The laws.

    Raises:
      ValueError: one line, if there are fewer than two runs, or no loss of a run is above the best loss.

    Reference: Pan, Venkataraman, Tai, Gonzalez, "Hemingway", arXiv 1702.05865 (two models, for the system and for
    convergence: READ, abstract; features and lasso MEM). Differs from the paper in: whole runs are held out, and steps
    are on a logarithmic grid (both DERIVED).
    """
    if len(runs) < 2:
        raise ValueError(f"runs={len(runs)}: at least 2 are needed, so that one can be held out")
    count = len(runs)
    samples = [_samples(run, best) for run in runs]
    x, y = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    groups = np.repeat(np.arange(count), [len(gaps) for _, gaps in samples])
    products = make_pipeline(PolynomialFeatures(2, interaction_only=True, include_bias=False), StandardScaler())
    x = products.fit_transform(x)
    random = np.random.default_rng(0)
    drawn = [np.arange(count), *(random.integers(count, size=count) for _ in range(num_refits))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # they concern penalties that are not picked
        folds = list(GroupKFold(min(_FOLDS, count)).split(x, y, groups))
        laws = [LassoCV(cv=folds, alphas=60, eps=1e-5, **_SOLVER).fit(x, y)]
        penalty = float(laws[0].alpha_)
        for resampled in drawn[1:]:
            rows = np.concatenate([np.flatnonzero(groups == i) for i in resampled])
            laws.append(Lasso(penalty, **_SOLVER).fit(x[rows], y[rows]))
    machines = np.array([run.machines for run in runs])
    seconds = np.array([run.step_seconds for run in runs])
    sizes = np.unique(machines).tolist()
    times: Any = {m: float(seconds[machines == m].mean()) for m in sizes}
    if len(sizes) >= scale.LEAST_SIZES and np.isfinite(seconds).all():
        times = []
        for i in drawn:
            is_enough = len(np.unique(machines[i])) >= scale.LEAST_SIZES
            times.append(scale.fit(machines[i], seconds[i]) if is_enough else times[0])
    return Laws(
        products=products,
        weights=np.stack([law.coef_ for law in laws]),
        offsets=np.array([law.intercept_ for law in laws]),
        times=times,
        sizes=tuple(sizes),
        first=min(int(run.steps[run.finite][0]) for run in runs),
        steps=max(int(run.steps[-1]) for run in runs),
        highest=float(y.max()),
        runs=count,
    )


def to_target(methods: Mapping[str, Laws], machines: Sequence[int], *, gap: float, best: float) -> list[Choice]:
    """Returns each method on each number of machines, sorted by time to a gap; unknown times are left out."""
    found = []
    for name, laws in methods.items():
        grid, curves = laws.curves(machines)
        steps = _first_steps(grid, curves, gap)
        seconds = steps * laws.seconds(machines)
        for m, i, by_law in zip(machines, steps[0].tolist(), seconds.T, strict=True):
            if math.isfinite(by_law[0]) and i > laws.first:
                low, high = _interval(by_law)
                found.append(Choice(name, m, i, float(by_law[0]), gap + best, low, high, _beyond(laws, m, i)))
    return sorted(found, key=lambda one: one.seconds)


def _first_steps(grid: np.ndarray, curves: np.ndarray, gap: float) -> np.ndarray:
    """Returns the first steps at which curves [..., S] reach a gap, interpolated by power laws; infinity if none do."""
    reached = curves <= gap
    after = np.maximum(reached.argmax(axis=-1), 1)
    before = after - 1
    high, low = (np.log(np.take_along_axis(curves, i[..., None], axis=-1)[..., 0]) for i in (before, after))
    share = np.clip((high - math.log(gap)) / np.maximum(high - low, 1e-12), 0, 1)
    steps = grid[before] * (grid[after] / grid[before]) ** share
    return np.where(reached.any(axis=-1), steps, math.inf)


def in_time(methods: Mapping[str, Laws], machines: Sequence[int], *, seconds: float, best: float) -> list[Choice]:
    """Returns each method on each number of machines, sorted by loss after a time; unknown losses are left out."""
    found = []
    for name, laws in methods.items():
        grid, curves = laws.curves(machines)
        steps = seconds / laws.seconds(machines)  # [R, M]
        for place, m in enumerate(machines):
            if laws.first <= steps[0, place] <= _BEYOND * laws.steps:
                by_law = zip(steps[:, place], curves[:, place], strict=True)
                gaps = [np.interp(np.log(i), np.log(grid), gap) for i, gap in by_law]
                losses = best + np.array(gaps)
                i = float(steps[0, place])
                low, high = _interval(losses)
                found.append(Choice(name, m, i, seconds, float(losses[0]), low, high, _beyond(laws, m, i)))
    return sorted(found, key=lambda one: one.loss)


def _interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, _INTERVAL, method="nearest").tolist()
    return low, high


def _beyond(laws: Laws, machines: int, steps: float) -> str:
    beyond = []
    if not laws.sizes[0] <= machines <= laws.sizes[-1]:
        beyond.append("machines")
    if steps > laws.steps:
        beyond.append("steps")
    return " and ".join(beyond)


def _fault(
    laws: Laws, machines: int, *, best: float, target: float = math.nan, seconds: float = math.nan
) -> tuple[str, bool]:
    """Returns why a choice is unknown, and whether it may be better than all known choices."""
    of_a_step = float(laws.seconds([machines])[0, 0])
    if math.isnan(of_a_step):
        words = f"no runs on so many, nor on {scale.LEAST_SIZES} other numbers of machines, tell the seconds of a step"
        return words, False
    longest = f"{_BEYOND:g} times the {laws.steps} steps of its longest run"
    if math.isnan(seconds):
        _, curves = laws.curves([machines])
        if curves[0, 0, 0] <= target - best:
            return f"it is there by its first evaluation, at step {laws.first}, and how soon is not known", True
        return f"it is not there within {longest}", False
    steps = seconds / of_a_step
    if steps < laws.first:
        return f"it takes {steps:.4g} steps in that time, and its first evaluation is at step {laws.first}", False
    return f"it takes {steps:.4g} steps in that time, more than {longest}", True


def best_of(runs: Sequence[Run]) -> float:
    """Returns the lowest finite loss of the longest run, or of all runs of that length."""
    most = max(run.steps[-1] for run in runs)
    longest = [run for run in runs if run.steps[-1] == most]
    return float(min(run.losses[run.finite].min() for run in longest))


# ---- the command -----------------------------------------------------------------------------------------------------


def draw(figure: Figure, found: Sequence[Choice], *, quantity: str) -> None:
    """Draws the minimised quantity of each method against the number of machines, with intervals."""
    axes = figure.subplots()
    for i, name in enumerate(dict.fromkeys(one.method for one in found)):
        own = sorted((one for one in found if one.method == name), key=lambda one: one.machines)
        at = np.array([getattr(one, quantity) for one in own])
        below = at - [one.low for one in own]
        above = np.minimum([one.high for one in own], 1e3 * at) - at
        axes.errorbar(
            [one.machines for one in own],
            at,
            np.maximum([below, above], 0),
            color=COLOURS[i % 7],
            marker=MARKERS[i % 7],
            capsize=2,
            label=clipped(name, _MOST_SHOWN),
        )
    words = "seconds to the target" if quantity == "seconds" else "loss"
    axes.set(xscale="log", yscale="log", xlabel="machines", ylabel=words)
    ticks(axes.xaxis, [one.machines for one in found])
    plain_numbers(axes.yaxis)
    axes.legend()


def find(arguments: argparse.Namespace) -> Answer:
    """Returns all choices, the best one first.

    Raises:
      ValueError: one line, if an argument is not allowed, or runs do not compare.
    """
    if (arguments.target is None) == (arguments.seconds is None):
        raise ValueError("target, seconds: give one of the two")
    only = parse_options([f"--{part}" for part in arguments.only])
    read = sources.read(arguments.sources, clock=arguments.clock, loss=arguments.loss, only=only)
    runs = [run for run in read if run.finite.any()]
    if not runs:
        raise ValueError(f"loss={arguments.loss!r}: no run has a finite one after a step")
    if arguments.best is None:
        best, said = best_of(runs), "of the longest run"
    else:
        best, said = number(arguments.best, key="best", least=-LARGEST), "as given"
    seen = sorted({run.machines for run in runs})
    machines = counts(arguments.machines, key="machines") if arguments.machines else seen
    methods = sources.by_method(runs, keys=arguments.method.split(",") if arguments.method else None)
    single = [name for name, own in methods.items() if len(own) < 2]
    fitted = {name: own for name, own in methods.items() if len(own) > 1} or methods
    if arguments.target is not None:
        aimed, minimised = "target", "seconds"
        limit = number(arguments.target, key=aimed, least=best, is_open=True)
        aim, choose = f"a loss of {limit:g}", functools.partial(to_target, gap=limit - best)
    else:
        aimed, minimised = "seconds", "loss"
        limit = number(arguments.seconds, key=aimed)
        aim, choose = f"{limit:g} s", functools.partial(in_time, seconds=limit)
    laws = sources.fit_each(fitted, lambda own: fit(own, best=best))
    found = choose(laws, machines, best=best)
    known = {(one.method, one.machines) for one in found}
    faults = {
        f"{name}, {m} machines": _fault(law, m, **{aimed: limit}, best=best)
        for name, law in laws.items()
        for m in machines
        if (name, m) not in known
    }
    if decisive := [f"{name}: {words}" for name, (words, may_be_best) in faults.items() if may_be_best or not found]:
        raise ValueError(f"{aimed}={limit:g}: {decisive[0]}")
    top = found[0]
    reached = f"{top.seconds:.4g} s to" if aimed == "target" else f"a loss of {top.loss:.4g} in"
    interval = f"90 % of refits from {top.low:.4g} to {top.high:.4g}"
    beyond = f"; extrapolated in {top.beyond}" if top.beyond else ""
    lines = [
        f"use {top.machines} machines, {top.method}: {reached} {aim}, {interval}{beyond}",
        f"from {len(runs)} runs on {', '.join(map(str, seen))} machines; best loss {best:g}, {said}",
    ]
    for name, own in laws.items():
        clock = "seconds of a step as measured"
        if isinstance(own.times, list):
            clock = f"those of a step, left out one by one, are missed by {own.times[0].error:.1%}"
        lines.append(f"  {name}: {own.runs} runs of up to {own.steps} steps; {clock}")
    left_out = {name: words for name, (words, _) in faults.items()}
    reasons = dict.fromkeys(single, "it has a single run") | left_out
    reasons |= {run.name: f"it has no finite {arguments.loss}" for run in read if not run.finite.any()}
    lines += [f"  {name}: left out, as {reason}" for name, reason in reasons.items()]
    choices = [{**one._asdict(), "method": clipped(one.method, _MOST_SHOWN)} for one in found]
    text = "\n".join([*lines, "", table(choices)])
    numbers = {"best": best, "aim": aim, "choices": choices, "left_out": left_out}
    return Answer(text, numbers, lambda figure: draw(figure, found, quantity=minimised), inches=(5.0, 3.4))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the answer; returns the exit code."""
    description = "Chooses a method and a number of machines from finished runs."
    parser = PlanParser(prog="python -m planning choose", description=description)
    parser.add_argument("sources", nargs="+", help="folders of runs, and files of rows (.jsonl)")
    parser.add_argument("--target", help="the loss to be reached in the least time")
    parser.add_argument("--seconds", help="or the time in which the loss is to be lowest")
    parser.add_argument("--machines", help="numbers of machines to choose from (default: those of the runs)")
    parser.add_argument("--only", action="append", default=[], help="key=value of the runs that count; may be repeated")
    parser.add_argument("--method", help="keys in which methods differ (default: all in which the runs do)")
    parser.add_argument("--best", help="the lowest attainable loss (default: that of the longest run)")
    parser.add_argument("--loss", default="loss", help="the name of the minimised quantity in records (default: loss)")
    parser.add_argument("--clock", choices=get_args(sources.Clock), default="real", help="(default: real)")
    return parser.run(find, argv)
