"""The cost of each reducer: its time over the mean's, and what a worker sends.

    python -m benchmarks.reducers --layouts=plain,resnet50_like,lenet5,resnet50 --sizes=1e4,1e5,1e6,1e7
    python -m benchmarks.reducers --layouts=resnet50 --reducers=mean,adasum:granularity=model --json=out/costs.json
    python -m benchmarks.reducers --published --json=out/bench/reducers.json

Each reducer is called as in the train step, for W workers as D devices x L lanes, in turns with the mean. The
traffic of a worker is over the size of a gradient, if each worker has a device. Results are printed and written after
each layout.

``--published`` measures Adasum and the rules on dot products or coordinates, for 8 workers on 8 devices of one process
and 10 million floats in ResNet-50's leaves.
"""

import argparse
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks.kit import candidates, command, leaves
from benchmarks.kit.candidates import Candidate
from benchmarks.kit.leaves import Leaves
from benchmarks.kit.reducer_times import make_layout, measure
from benchmarks.kit.result import Measured, Target
from parallel import Layout
from reducers import registry

# The published reducers, with the bounds for their time over the mean's.
PUBLISHED: dict[str, Target | None] = {
    "adasum": Target("<=", 2.0),
    **dict.fromkeys(("adasum:algorithm=halving", "adasum:algorithm=gather", "adasum:granularity=model")),
    **dict.fromkeys(("radial_directional", "adacons", "agreement_scaled_mean", "geometric_median", "krum")),
    **dict.fromkeys(("multi_krum", "mgda", "pcgrad", "upgrad")),
    **dict.fromkeys(("coordinate_median", "trimmed_mean"), Target("<=", 3.0)),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose reducers, layouts and workers."""
    sized, fixed = ", ".join(leaves.SIZED), ", ".join(leaves.FIXED)
    parser.add_argument(
        "--layouts", default="plain,resnet50_like,lenet5,resnet50", help=f"{sized} of each size; {fixed}"
    )
    parser.add_argument("--sizes", default="1e4,1e5,1e6,1e7", help="numbers of floats of a gradient")
    parser.add_argument("--workers", type=int, default=8, help="number of workers (default: %(default)s)")
    parser.add_argument("--devices", type=int, help="default: the most that divide the workers (CPU: up to 8)")
    parser.add_argument("--reducers", help="name or name:key=value,...; default: all, with each of their algorithms")
    parser.add_argument("--max_seconds", type=float, default=30.0, help="for all rounds of a reducer on a layout")
    parser.add_argument("--published", action="store_true", help="what is published, in the place of the flags above")


def read_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of ``benchmark``.

    Raises:
      ValueError: one line, before anything is compiled or written.
    """
    if arguments.published:
        chosen = [candidates.parse(label)._replace(target=target) for label, target in PUBLISHED.items()]
        sets = leaves.sets(["resnet50_like"], sizes=[10_000_000])
        return {"layout": make_layout(8), "sets": sets, "chosen": chosen, "max_seconds": math.inf}
    for key in ("workers", "devices"):
        if (value := getattr(arguments, key)) is not None and value < 1:
            raise ValueError(f"{key}={value}: must be 1 or more")
    labels = None if arguments.reducers is None else registry.split_blocks(arguments.reducers)
    sizes = [_size(text) for text in arguments.sizes.split(",")]
    return {
        "layout": make_layout(arguments.workers, num_devices=arguments.devices),
        "sets": leaves.sets(arguments.layouts.split(","), sizes=sizes),
        "chosen": candidates.defaults() if labels is None else [candidates.parse(label) for label in labels],
        "max_seconds": arguments.max_seconds,
    }


def _size(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value >= 1 and value.is_integer()):
        raise ValueError(f"sizes={text!r}: must be whole numbers of floats, such as 1e6")
    return int(value)


def benchmark(
    *,
    repeats: int,
    log: command.Log,
    layout: Layout,
    sets: Sequence[tuple[str, Leaves]],
    chosen: Sequence[Candidate],
    max_seconds: float,
) -> Iterator[Measured]:
    """Measures reducers on one set of leaves after another.

    Args:
      repeats: the number of rounds.
      log: called with lines of progress.
      layout: the layout of the workers on the devices.
      sets: (description, leaves) of each set.
      chosen: the reducers.
      max_seconds: the limit for all rounds of one reducer on one set.
    """
    for what, shapes in sets:
        yield from measure(what, shapes, chosen, layout=layout, repeats=repeats, max_seconds=max_seconds, log=log)


main = functools.partial(
    command.run, benchmark, name="reducers", doc=__doc__, repeats=15, add_flags=add_flags, read_flags=read_flags
)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
