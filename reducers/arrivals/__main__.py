"""``python -m reducers.arrivals --model=NAME --workers=W [--option=value ...]``: the distribution of the k-th arrival.

Options are those of the model: ``--median_seconds=1.5``, ``--base="{'name': 'pareto', 'alpha': 1.5}"``.
"""

import math
import sys
from collections.abc import Sequence

import jax
import numpy as np

from reducers import arrivals
from reducers.arrivals import figure
from reducers.arrivals.command import Parser

QUANTILES = (0.1, 0.5, 0.9, 0.99)
_NUM_TIMES = 12  # of the table of shares


def tables(seconds: np.ndarray, *, which: Sequence[int], expected: np.ndarray | None = None) -> str:
    """Says in two tables how the k-th arrival is distributed.

    Args:
      seconds: [S, W], arrival times sorted in each step.
      which: the k to show, from 1.
      expected: [W], mean times by formula, if there is one.

    Returns:
      Means with standard errors and quantiles, a line per k; and the share of steps by time, a column per k.
    """
    mean, error = arrivals.batch_means(seconds)
    heads = ["k", "mean s", "+-", *(["formula"] if expected is not None else [])]
    lines = ["".join(f"{head:>10}" for head in [*heads, *(f"{q:.0%}" for q in QUANTILES), "max"])]
    for k in which:
        column = seconds[:, k - 1]
        numbers = [mean[k - 1], error[k - 1], *([expected[k - 1]] if expected is not None else [])]
        numbers += [*np.quantile(column, QUANTILES), column.max()]
        lines.append(f"{k:>10}" + "".join(f"{number:>10.4g}" for number in numbers))
    chosen = seconds[:, [k - 1 for k in which]]
    low, high = float(chosen.min()), float(np.quantile(chosen[:, -1], 0.99))
    lines += ["", "share of steps in which the k-th arrived by then", "".join(f"{h:>10}" for h in ["s", *which])]
    for time in np.geomspace(low, high, _NUM_TIMES) if high > low else [high]:
        shares = (chosen <= time * (1 + 1e-6)).mean(axis=0)
        lines.append(f"{time:>10.4g}" + "".join(f"{share:>10.1%}" for share in shares))
    return "\n".join(lines)


def chosen_arrivals(text: str | None, *, num_workers: int) -> list[int]:
    """Returns the k to show: those given, separated by commas, or a few of the middle and the last ones."""
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


def _parse(argv: Sequence[str] | None):
    parser = Parser(prog="python -m reducers.arrivals", description="Prints the distribution of the k-th arrival.")
    parser.add_argument("--workers", type=int, default=100, help="W (default: 100)")
    parser.add_argument("--steps", type=int, default=100_000, help="steps to draw (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--k", help="which arrivals, such as 1,50,100 (default: a few)")
    parser.add_argument("--figure", help="draw them too, into this file; needs matplotlib")
    return parser.read(argv, counts=("workers", "steps"))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints, and draws if asked to; returns the exit code."""
    try:
        arguments, options = _parse(argv)
        which = chosen_arrivals(arguments.k, num_workers=arguments.workers)
        model = arrivals.make(arguments.model, **options)
        draws = jax.random.key(arguments.seed)
        seconds = arrivals.sample(model, draws, num_workers=arguments.workers, num_steps=arguments.steps)
        seconds.sort(axis=1)
        expected = arrivals.expected_arrivals(arguments.model, num_workers=arguments.workers, **options)
        if arguments.figure:
            figure.draw(seconds, name=arguments.model, path=arguments.figure)
    except (ValueError, OSError, ImportError) as error:
        print(f"arrivals: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.model}, {arguments.workers} workers, {arguments.steps} steps, seed {arguments.seed}")
    print(tables(seconds, which=which, expected=expected))
    return 0


if __name__ == "__main__":
    sys.exit(main())
