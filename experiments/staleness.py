"""Prints how stale the gradients of asynchronous SGD would be under an arrival model, without training.

    python -m experiments.staleness --model=paper_cluster --workers=40 --layers=18

All flags but those that --help lists are options of the model.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax

import asynchronous
from planning.parsing import MOST_MACHINES, MOST_STEPS, ModelParser
from planning.step_times import check_size
from reducers import arrivals


def report(arguments: argparse.Namespace, options: dict[str, Any]) -> str:
    """Describes the staleness of all gradients, and of each layer's gradients.

    Raises:
      ValueError: one line, for an invalid model or option.
    """
    check_size(gradients=arguments.gradients, layers=arguments.layers)
    model = arrivals.make(arguments.model, **options)
    key = jax.random.key(arguments.seed)
    durations = asynchronous.from_model(lambda step: model(key, step, arguments.workers))
    ((events, _),) = asynchronous.order(
        durations,
        num_workers=arguments.workers,
        num_events=arguments.gradients,
        staleness_bound=arguments.staleness_bound,
        events_per_piece=arguments.gradients,
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
    """Prints the report, and returns the exit code."""
    description = "Prints how stale the gradients of asynchronous SGD would be, in all and layer by layer."
    parser = ModelParser(  # as many workers as in the paper
        prog="python -m experiments.staleness", description=description, count="workers", default=40
    )
    parser.add_argument("--gradients", type=int, default=10_000, help="number of gradients (default: 10000)")
    parser.add_argument("--layers", type=int, default=18, help="number of layers, of equal cost (default: 18)")
    parser.add_argument("--staleness_bound", type=int, help="how many tasks a worker may be ahead (default: any)")
    return parser.run(report, argv, most={"workers": MOST_MACHINES, "gradients": MOST_STEPS, "layers": MOST_MACHINES})


if __name__ == "__main__":
    sys.exit(main())
