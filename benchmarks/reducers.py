"""The cost of each reducer: its time over the mean's, collectives and bytes.

    python -m benchmarks.reducers --layouts=plain,resnet50_like,lenet5,resnet50 --sizes=1e4,1e5,1e6,1e7
    python -m benchmarks.reducers --layouts=resnet50 --reducers=mean,adasum:granularity=model --json=out/costs.json
    python -m benchmarks.reducers --published --json=out/bench/reducers.json    # takes --repeats alone beside

Each reducer is called as in the train step, on W workers as D devices x L lanes, in turns with the mean. The sent bytes
are those of workers with a device each. Results are printed and written after each layout.

``--published`` measures Adasum and the rules on dot products or coordinates, for 8 workers on 8 devices of one process
and 10 million floats in ResNet-50's leaves, and the stages of their exchange: an all-to-all and an all-gather of slices
alone, then with an all-reduce of n x n numbers, then with dot products and a weighted sum.
"""

import argparse
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from benchmarks.kit import candidates, command, leaves, step_loop
from benchmarks.kit.candidates import Candidate
from benchmarks.kit.command import Found, Log
from benchmarks.kit.reducer_times import Row, measure
from benchmarks.kit.result import Measured, Target
from launch.parser import Parser
from parallel import Layout, configure_cpu_devices, default_cpu_devices, keep_freed_memory
from reducers import registry
from reducers.collectives import (
    Devices,
    axes_of,
    backend,
    devices_and_lanes,
    from_slices,
    gather_workers,
    in_buckets,
    to_slices,
)
from runs import environment, files

WORKERS, FLOATS, MAX_SECONDS = 8, 10_000_000, 300.0
ADASUM, HALVING, GATHER, MODEL = (
    "adasum",
    "adasum:algorithm=halving",
    "adasum:algorithm=gather",
    "adasum:granularity=model",
)
LAYERWISE = ("radial_directional",)
OF_MODEL = ("adacons", "agreement_scaled_mean", "geometric_median", "krum", "multi_krum", "mgda", "pcgrad", "upgrad")
COORDINATEWISE = ("coordinate_median", "trimmed_mean")
EXCHANGE = "all-to-all and all-gather alone"
EXCHANGE_AND_SUM = "the same with an all-reduce of n x n numbers"
EXCHANGE_AND_PRODUCTS = "the same with dot products and a weighted sum"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line.

    Raises:
      ValueError: one line, before anything is compiled or written.
    """
    parser = Parser(
        prog="python -m benchmarks.reducers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sized, fixed = ", ".join(leaves.SIZED), ", ".join(leaves.FIXED)
    parser.add_argument(
        "--layouts", default="plain,resnet50_like,lenet5,resnet50", help=f"{sized} of each size; {fixed}"
    )
    parser.add_argument("--sizes", default="1e4,1e5,1e6,1e7", help="numbers of floats of a gradient")
    parser.add_argument("--workers", type=int, default=8, help="number of workers (default: %(default)s)")
    parser.add_argument("--devices", type=int, help="default: the most that divide the workers (CPU: up to 8)")
    parser.add_argument("--reducers", help="name or name:key=value,...; default: all, with each of their algorithms")
    parser.add_argument("--repeats", type=int, default=15, help="counted rounds (default: %(default)s)")
    parser.add_argument("--max_seconds", type=float, default=30.0, help="for all rounds of a reducer on a layout")
    parser.add_argument("--json", help="file for all times and their environment")
    given = parser.parse_args(argv)
    for key in ("workers", "devices", "repeats"):
        if (value := getattr(given, key)) is not None and value < 1:
            raise ValueError(f"{key}={value}: must be 1 or more")
    keep_freed_memory()
    # Collectives between devices are what is measured, also where the devices are more than the cores.
    configure_cpu_devices(given.workers, num_devices=given.devices or default_cpu_devices(given.workers))
    given.layout = Layout.of(given.workers, num_devices=given.devices)
    given.sets = leaves.sets(given.layouts.split(","), sizes=[_size(text) for text in given.sizes.split(",")])
    labels = None if given.reducers is None else registry.split_blocks(given.reducers)
    given.candidates = candidates.defaults() if labels is None else [candidates.parse(label) for label in labels]
    given.json = command.writable("json", given.json)
    return given


def _size(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value >= 1 and value.is_integer()):
        raise ValueError(f"sizes={text!r}: must be whole numbers of floats, such as 1e6")
    return int(value)


def in_words(row: Row) -> str:
    """Returns a line with medians and quartiles over the rounds, and what a device sends.

    >>> from reducers.traffic import Traffic
    >>> traffic = Traffic(1_750_000.0, {"psum": 2})
    >>> print(in_words(Row("plain", 1000, 1, "sum", traffic, seconds=[0.003], baseline_seconds=[0.002])))
    plain, 1,000 floats, sum: 3.00 ms, 1.50 x the mean (quartiles 1.50 to 1.50), sends 1.750 MB in 2 psum
    """
    name = f"{row.leaves}, {row.num_floats:,} floats, {row.reducer}"
    if row.refused or row.traffic is None:
        return f"{name}: {row.refused}"
    low, median, high = np.quantile(row.ratios, [0.25, 0.5, 0.75])
    kinds = ", ".join(f"{count} {kind}" for kind, count in row.traffic.collectives.items()) or "no collective"
    over_mean = f"{median:.2f} x the mean (quartiles {low:.2f} to {high:.2f})"
    sent = f"sends {row.traffic.bytes_per_worker / 1e6:.3f} MB in {kinds}"
    return f"{name}: {1e3 * np.median(row.seconds):.2f} ms, {over_mean}, {sent}"


def results(rows: Sequence[Row], *, layout: Layout) -> dict[str, Any]:
    """Returns all results and their environment as JSON values."""
    device = layout.devices[0]
    return {
        "environment": environment.describe(devices=[f"{device.platform} {device.device_kind}"]),
        "cpu_count": os.cpu_count(),
        "device_kind": device.device_kind,
        "num_devices": layout.num_devices,
        "num_workers": layout.num_workers,
        "rows": [{**dataclasses.asdict(row), "traffic": row.traffic and row.traffic._asdict()} for row in rows],
    }


# ---- the published benchmark -----------------------------------------------------------------------------------------


def benchmark(*, repeats: int, log: Log, leaves_like: str = "resnet50_like", num_floats: int = FLOATS) -> Found:
    """Measures the published reducers and stages on one set of leaves.

    Args:
      repeats: the number of rounds.
      log: called with lines of progress.
      leaves_like: one of ``leaves.SIZED``.
      num_floats: the number of floats of a gradient.
    """
    keep_freed_memory()
    configure_cpu_devices(WORKERS, num_devices=WORKERS)
    layout = Layout.of(WORKERS, num_devices=WORKERS)
    ((name, shapes),) = leaves.sets([leaves_like], sizes=[num_floats])
    labels = (ADASUM, HALVING, GATHER, MODEL, *LAYERWISE, *OF_MODEL, *COORDINATEWISE)
    stages = {EXCHANGE: first_row, EXCHANGE_AND_SUM: first_row_after_a_sum, EXCHANGE_AND_PRODUCTS: weighted_sum}
    exchanges = [Candidate(label, functools.partial(exchange, make=make)) for label, make in stages.items()]
    measured = [*exchanges, *map(candidates.parse, labels)]
    rows = measure(name, shapes, measured, layout=layout, repeats=repeats, max_seconds=MAX_SECONDS, log=log)
    if refused := [row for row in rows if row.refused]:
        raise RuntimeError(f"{refused[0].reducer}: {refused[0].refused}")
    of = {row.reducer: row for row in rows}
    where = f"{WORKERS} devices, {num_floats / 1e6:g} M floats"
    targets = {ADASUM: Target("<=", 2.0), **dict.fromkeys(COORDINATEWISE, Target("<=", 3.0))}
    found = [
        Measured(f"{label} over mean, {where}", row.ratios.tolist(), target=targets.get(label))
        for label, row in of.items()
    ]
    for label in (*LAYERWISE, *OF_MODEL):
        base = ADASUM if label in LAYERWISE else MODEL
        ratios = [own / other for own, other in zip(of[label].seconds, of[base].seconds, strict=True)]
        found.append(Measured(f"{label} over {base}", ratios, target=Target("<=", 1.1)))
    for label, row in of.items():
        assert row.traffic is not None
        found.append(
            Measured(f"{label} sends", [row.traffic.bytes_per_worker / (4 * row.num_floats)], unit="gradients")
        )
    found.append(Measured(f"mean, {where}", of[ADASUM].baseline_seconds, unit="s"))
    return Found(found, step_loop.devices(layout.num_devices))


def exchange(
    *, axis_name: str | tuple[str, ...], make: Callable[[jax.Array, tuple[str, ...]], jax.Array]
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that exchanges slices of all gradients, and gathers what is made of them.

    Args:
      axis_name: the worker axis, or a tuple of axes, outer first.
      make: from the slices of a bucket, [n, m], to the one that is gathered, [m], on devices with these axes.
    """

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        devices, lanes = devices_and_lanes(axes_of(axis_name))
        flat, treedef = jax.tree.flatten(updates)

        def there_and_back(places, bucket):
            del places
            (slices,) = to_slices(bucket, Devices(devices))
            return from_slices(make(slices, devices), [x.shape[1] for x in bucket], Devices(devices)), None

        sent, _ = in_buckets(there_and_back, [gather_workers(x.ravel(), lanes) for x in flat], axis_name=devices)
        results = [x.reshape(leaf.shape) for x, leaf in zip(sent, flat, strict=True)]
        return jax.tree.unflatten(treedef, results), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def first_row(rows: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Returns the slice of the first worker: nothing is computed."""
    del axes
    return rows[0]


def first_row_after_a_sum(rows: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Returns the slice of the first worker, when n x n numbers have been added up over the devices."""
    some = rows[:, 0]
    return rows[0] + lax.psum(jnp.outer(some, some), axes)[0, 0]


def weighted_sum(rows: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Returns a sum of the slices, weighted by the norms of the gradients: all passes of a rule on dot products."""
    gram = lax.psum(backend.dot_products(rows[None])[0], axes)
    return jnp.einsum("n,nm->m", 1 / (1 + jnp.diagonal(gram)), rows, precision="highest")


# ---- the command ---------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C."""
    if "--published" in argv:
        given = [flag for flag in argv if flag != "--published"]
        return command.run(benchmark, name="reducers", doc=__doc__ or "", argv=given, repeats=15)
    try:
        asked = parse(argv)
    except ValueError as error:
        print(f"benchmarks.reducers: {error}", file=sys.stderr)
        return 2
    log = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    rounds: dict[str, Any] = {"layout": asked.layout, "repeats": asked.repeats, "max_seconds": asked.max_seconds}
    rows: list[Row] = []
    try:
        for name, shapes in asked.sets:
            measured = measure(name, shapes, asked.candidates, **rounds, log=log)
            print(*map(in_words, measured), sep="\n", flush=True)
            rows += measured
            if asked.json is not None:
                files.write_atomically(asked.json, files.to_json(results(rows, layout=asked.layout)))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
