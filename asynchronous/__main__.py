"""``python -m asynchronous --model=NAME --workers=n [--option=value ...]``: how stale gradients would be, no training.

Options are those of the arrival model, as in ``python -m reducers.arrivals``.
"""

import argparse
import sys
from collections.abc import Sequence

import jax

import asynchronous
from reducers import arrivals
from reducers.arrivals.command import Parser


def _parse(argv: Sequence[str] | None):
    description = "Prints how stale the gradients of asynchronous SGD would be, in all and layer by layer."
    parser = Parser(prog="python -m asynchronous", description=description)
    parser.add_argument("--workers", type=int, default=40, help="n (default: 40, as in the paper's study)")
    parser.add_argument("--gradients", type=int, default=10_000, help="that arrive (default: 10000)")
    parser.add_argument("--layers", type=int, default=18, help="of equal cost (default: 18)")
    parser.add_argument("--staleness_bound", type=int, help="how many tasks one may be ahead (default: any)")
    parser.add_argument("--seed", type=int, default=0, help="of the model (default: 0)")
    return parser.read(argv, counts=("workers", "gradients", "layers"))


def report(arguments: argparse.Namespace, options: dict) -> str:
    """Says how stale the gradients of all and of each layer are.

    Raises:
      ValueError: one line, for a model or an option that makes no sense.
    """
    model = arrivals.make(arguments.model, **options)
    draws = jax.random.key(arguments.seed)
    durations = asynchronous.from_model(lambda step: model(draws, step, arguments.workers))
    begin = asynchronous.start(durations, num_workers=arguments.workers)
    events, _, _ = asynchronous.advance(
        durations, begin, num_events=arguments.gradients, staleness_bound=arguments.staleness_bound
    )
    counts = asynchronous.histogram(events.worker, events.staleness, num_workers=arguments.workers)
    s = asynchronous.summary(counts)
    times = asynchronous.layer_times([1.0] * arguments.layers)
    layers = asynchronous.layer_staleness(events, times, num_workers=arguments.workers)
    lines = [
        f"{arguments.model}, {arguments.workers} workers, {arguments.gradients} gradients, seed {arguments.seed}",
        f"staleness: min {s.min}, mean {s.mean:.2f}, median {s.median}, max {s.max}, std {s.std:.2f}",
        f"simulated seconds: {events.seconds[-1]:.1f}",
        "",
        asynchronous.layer_table(layers),
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report; returns the exit code."""
    try:
        print(report(*_parse(argv)))
    except (ValueError, OSError) as error:
        print(f"asynchronous: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
