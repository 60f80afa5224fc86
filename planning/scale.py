r"""Fits a law to measured seconds of a step, and predicts them for other numbers of machines.

    python -m planning scale out/sweep --machines=32,64
    python -m planning scale times.csv --machines=64 --figure=scale.png
    python -m planning scale docs/step_of_lenet5.csv

A source is a folder of runs, rows of experiments (``rows.jsonl``), or a CSV file with the columns machines and seconds.
``--clock`` says whether the steps of runs are timed in real or in simulated seconds.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from scipy import optimize

from planning.parsing import Answer, PlanParser, counts, table
from planning.sources import Clock, by_method, fit_each, read, read_times
from runs.reporting.figures import COLOURS, Figure, plain_numbers, ticks

LEAST_SIZES, MOST_SIZES = 4, 1000  # leaving each number of machines out takes a fit for each
TERMS = ("1", "1 / m", "log m", "m")


class Scaling(NamedTuple):
    """A fitted law: the seconds of a step as a function of the number of machines.

    Attributes:
      theta: [4], non-negative coefficients.
      error: the mean relative error on a number of machines that was left out of the fit.
      sizes: the measured numbers of machines, ascending.
      points: the number of measurements.
    """

    theta: np.ndarray
    error: float
    sizes: tuple[int, ...]
    points: int

    def seconds(self, machines: Any) -> Any:
        """Returns the seconds of a step on m machines; m is a number or an array."""
        return features(machines) @ self.theta


def features(machines: Any) -> np.ndarray:
    """Returns 1, 1 / m, log m and m along a new last axis."""
    m = np.asarray(machines, np.float64)
    return np.stack([np.ones_like(m), 1 / m, np.log(m), m], axis=-1)


def fit(machines: npt.ArrayLike, seconds: npt.ArrayLike) -> Scaling:
    r"""Fits the seconds of a step on m machines by non-negative least squares of relative errors.

    .. math:: seconds(m) = \theta_0 + \theta_1 / m + \theta_2 \log m + \theta_3 m, \qquad \theta \ge 0

    Args:
      machines: m of each measurement, at least four different ones.
      seconds: the seconds of a step in each measurement, in the range ``sources.SECONDS``.

    Returns:
      The law; its error is from leaving out each number of machines in turn.

    Raises:
      ValueError: one line, for fewer than four or more than 1,000 different numbers of machines.

    >>> found = fit([1, 2, 4, 8, 16], [10.1, 5.2, 2.9, 2.05, 2.225])
    >>> found.theta.round(3).tolist(), round(float(found.seconds(32)), 3)
    ([0.0, 10.0, 0.0, 0.1], 3.512)

    Reference: Venkataraman et al., "Ernest", NSDI 2016 (features and non-negative least squares READ in its code).
    Differs from the paper in: errors are relative; the size of the data is fixed.
    """
    s = np.asarray(seconds, np.float64)
    sizes, place, counts = np.unique(np.asarray(machines), return_inverse=True, return_counts=True)
    if len(sizes) < LEAST_SIZES:
        raise ValueError(f"machines={_listed(sizes) or 'none'}: {LEAST_SIZES} different numbers are needed at least")
    if len(sizes) > MOST_SIZES:
        raise ValueError(f"machines: {len(sizes)} different numbers, must be at most {MOST_SIZES}")
    # The equations of one number of machines differ only by a factor, so one equation can stand for all of them.
    norms = np.sqrt(np.bincount(place, s**-2.0))
    rows = features(sizes) * norms[:, None]
    targets = np.bincount(place, 1 / s) / norms
    theta, _ = optimize.nnls(rows, targets)
    without = [optimize.nnls(np.delete(rows, i, 0), np.delete(targets, i))[0] for i in range(len(sizes))]
    predicted = np.sum(features(sizes) * without, axis=-1)[place]
    misses = np.abs(predicted / s - 1)
    error = float(np.mean(np.bincount(place, misses) / counts))
    return Scaling(theta, error, tuple(sizes.tolist()), len(s))


# ---- the command -----------------------------------------------------------------------------------------------------


def find(arguments: argparse.Namespace) -> Answer:
    """Returns the laws and their predictions.

    Raises:
      ValueError: one line, if an argument is not allowed.
    """
    measured = {source: read_times(source) for source in arguments.sources if source.endswith(".csv")}
    others = [source for source in arguments.sources if source not in measured]
    if others:
        measured |= by_method(read(others, clock=arguments.clock))

    laws = fit_each(measured, lambda own: fit([run.machines for run in own], [run.step_seconds for run in own]))
    asked = counts(arguments.machines, key="machines") if arguments.machines else []
    lines, numbers = [], {}
    for name, law in laws.items():
        terms = " + ".join(f"{theta:.4g} {term}" for theta, term in zip(law.theta, TERMS, strict=True) if theta)
        missed = f"left out one by one, these numbers are missed by {law.error:.1%} on average"
        of_one = float(law.seconds(1))
        rows = []
        for m in sorted({*law.sizes, *asked}):
            seconds = float(law.seconds(m))
            note = "" if law.sizes[0] <= m <= law.sizes[-1] else "extrapolated"
            rows.append({"machines": m, "s a step": seconds, "over 1": seconds / of_one, "note": note})
        lines += [
            f"{name}: s a step = {terms}",
            f"from {law.points} measurements on {_listed(law.sizes)} machines; {missed}",
            table(rows),
            "",
        ]
        numbers[name] = law._asdict() | {"theta": law.theta.tolist(), "steps": rows}
    return Answer("\n".join(lines).rstrip(), numbers, lambda figure: draw(figure, laws, asked))


def draw(figure: Figure, laws: Mapping[str, Scaling], asked: Sequence[int]) -> None:
    """Draws the laws, dotted where they extrapolate."""
    axes = figure.subplots()
    for i, (name, law) in enumerate(laws.items()):
        inside = np.geomspace(law.sizes[0], law.sizes[-1])
        axes.plot(inside, law.seconds(inside), color=COLOURS[i % 7], label=name)
        if asked and asked[-1] > law.sizes[-1]:
            beyond = np.geomspace(law.sizes[-1], asked[-1])
            axes.plot(beyond, law.seconds(beyond), ":", color=COLOURS[i % 7])
    axes.set(xscale="log", yscale="log", xlabel="machines", ylabel="seconds of a step")
    ticks(axes.xaxis, [*asked, *(size for law in laws.values() for size in law.sizes)])
    plain_numbers(axes.yaxis)
    axes.legend()


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the answer; returns the exit code."""
    parser = PlanParser(prog="python -m planning scale", description="Fits the seconds of a step to measured ones.")
    parser.add_argument("sources", nargs="+", help="folders of runs, rows (.jsonl), times (.csv)")
    parser.add_argument("--machines", help="other numbers of machines, such as 32,64")
    parser.add_argument("--clock", choices=get_args(Clock), default="real", help="of folders of runs (default: real)")
    return parser.run(find, argv)
