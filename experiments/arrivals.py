"""Prints and draws the distribution of the k-th arrival under an arrival model.

    python -m experiments.arrivals --model=lognormal --workers=100 --sigma=0.5
    python -m experiments.arrivals --model=paper_cluster --workers=100 --figure=arrivals.png

All flags but those that --help lists are options of the model.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import numpy as np

from planning import parsing
from planning.parsing import MOST_MACHINES, MOST_STEPS, ModelParser
from planning.step_times import sample
from reducers import arrivals
from runs.reporting.figures import COLOURS, Figure, add_size, new_figure, plain_numbers, save

QUANTILES = (0.1, 0.5, 0.9, 0.99)
_NUM_TIMES = 12  # rows of the table of shares
_MAX_POINTS = 2_000  # points of a curve


def table(seconds: np.ndarray, *, which: Sequence[int], expected: np.ndarray | None, period: int | None) -> str:
    """Returns two tables: statistics of each k-th arrival, a row per k; and percents of steps by time, a column per k.

    Args:
      seconds: [S, W], arrival times, sorted in each step.
      which: the values of k, from 1.
      expected: [W], mean times by formula, if there is a formula.
      period: the number of steps of the trace that the model replays, if it replays one.
    """
    mean, error = arrivals.batch_means(seconds, period=period)
    rows = []
    for k in which:
        column = seconds[:, k - 1]
        row = {"k": k, "mean s": mean[k - 1], "+-": error[k - 1]}
        if expected is not None:
            row["formula"] = expected[k - 1]
        for share in QUANTILES:
            row[f"{share:.0%}"] = float(np.quantile(column, share))
        rows.append(row | {"max": float(column.max())})
    chosen = seconds[:, [k - 1 for k in which]]
    low, high = float(chosen.min()), float(np.quantile(chosen[:, -1], 0.99))
    times = np.geomspace(low, high, _NUM_TIMES) if high > low else np.array([high])
    shares = []
    for time in times.tolist():
        arrived = 100 * (chosen <= time * (1 + 1e-6)).mean(axis=0)
        shares.append({"s": time, **dict(zip(map(str, which), arrived, strict=True))})
    title = "percent of steps in which the k-th arrived by then"
    return "\n".join([parsing.table(rows), "", title, parsing.table(shares)])


def draw(seconds: np.ndarray, *, name: str, columns: int | None = None) -> Figure:
    """Draws the mean and the median time to the k-th arrival, and the distributions of the last few arrivals.

    Args:
      seconds: [S, W], arrival times, sorted in each step.
      name: the model's name.
      columns: as of `new_figure`.

    Returns:
      The figure.
    """
    num_steps, num_workers = seconds.shape
    last = sorted({num_workers, *(max(1, k) for k in (num_workers - 2, num_workers - 10, num_workers // 2))})
    places = np.unique(np.linspace(0, num_steps - 1, _MAX_POINTS).astype(int))
    with new_figure(9, 3.6, columns=columns) as figure:
        left, right = figure.subplots(1, 2)
        every = np.arange(1, num_workers + 1)
        left.plot(every, seconds.mean(axis=0, dtype=np.float64), color=COLOURS[0], label="mean")
        left.plot(every, np.median(seconds, axis=0), "--", color=COLOURS[1], label="median")
        left.set(xlabel="k", ylabel="time to the k-th arrival (s)", yscale="log")
        plain_numbers(left.yaxis)
        for colour, k in zip(COLOURS, last, strict=False):
            ordered = np.sort(seconds[:, k - 1])
            right.plot(ordered[places], (places + 1) / num_steps, color=colour, label=f"k = {k}")
        right.set(xlabel="time (s)", ylabel="share of steps in which the k-th arrived", ylim=(0, 1.02))
        right.set_xlim(float(seconds.min()), float(np.quantile(seconds[:, -1], 0.9)) * 1.1)
        left.legend()
        right.legend()
        figure.suptitle(f"{name}, {num_workers} workers, {num_steps} steps")
    return figure


# ---- the command ---------------------------------------------------------------------------------------------------


def chosen_arrivals(text: str | None, *, num_workers: int) -> list[int]:
    """Parses the values of ``--k``, separated by commas; None gives a few in the middle and the last five.

    >>> chosen_arrivals("8,1", num_workers=8), chosen_arrivals(None, num_workers=100)
    ([1, 8], [1, 25, 50, 75, 90, 96, 97, 98, 99, 100])
    """
    if text is None:
        part = [math.ceil(num_workers * share) for share in (0.01, 0.25, 0.5, 0.75, 0.9)]
        return sorted({*part, *range(max(1, num_workers - 4), num_workers + 1)})
    try:
        which = sorted({int(k) for k in text.split(",")})
    except ValueError:
        which = []
    if not which or which[0] < 1 or which[-1] > num_workers:
        raise ValueError(f"k={text!r}: must be numbers from 1 to workers={num_workers}, separated by commas")
    return which


def report(arguments: argparse.Namespace, options: dict[str, Any]) -> str:
    """Returns the tables, and draws the figure if one is named.

    Raises:
      ValueError: one line, for an invalid argument or option.
      OSError: if the figure cannot be written.
    """
    num_workers, num_steps, seed = arguments.workers, arguments.steps, arguments.seed
    which = chosen_arrivals(arguments.k, num_workers=num_workers)
    seconds = sample(arguments.model, num_machines=num_workers, num_steps=num_steps, seed=seed, **options)
    seconds.sort(axis=1)
    expected = arrivals.expected_arrivals(arguments.model, num_workers=num_workers, **options)
    if arguments.figure:
        figure = draw(seconds, name=arguments.model, columns=arguments.columns)
        save(figure, Path(arguments.figure), dpi=arguments.dpi)
    title = f"{arguments.model}, {num_workers} workers, {num_steps} steps, seed {seed}"
    period = arrivals.num_recorded(arguments.model, **options)
    return f"{title}\n{table(seconds, which=which, expected=expected, period=period)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report, and returns the exit code."""
    description = "Prints the distribution of the k-th arrival."
    parser = ModelParser(prog="python -m experiments.arrivals", description=description, count="workers", default=100)
    parser.add_argument("--steps", type=int, default=100_000, help="number of steps to sample (default: 100000)")
    parser.add_argument("--k", help="values of k, such as 1,50,100 (default: a few)")
    parser.add_argument("--figure", help="path of a figure to draw: .png, .pdf or .svg")
    add_size(parser)
    return parser.run(report, argv, most={"workers": MOST_MACHINES, "steps": MOST_STEPS})


if __name__ == "__main__":
    sys.exit(main())
