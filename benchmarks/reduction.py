"""Reducers against the mean, for 8 workers on 8 devices of one process and 10 million floats in ResNet-50's leaves.

    python -m benchmarks.reduction

Adasum and each rule on dot products, all in turns with the mean; what they send; and the stages of their exchange: an
all-to-all and an all-gather of slices alone, then with an all-reduce of n x n numbers, then with dot products and a
weighted sum. ``benchmarks.reducers`` measures every reducer at any size.
"""

import functools
import sys
from collections.abc import Callable

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import optax
from jax import lax
from jax import numpy as jnp

from benchmarks.kit import candidates, command, leaves, step_loop
from benchmarks.kit.candidates import Candidate
from benchmarks.kit.command import Found, Log
from benchmarks.kit.reducer_times import Row, measure
from benchmarks.kit.result import Measured, Target
from parallel import Layout, configure_cpu_devices, keep_freed_memory
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


def benchmark(*, repeats: int, log: Log, leaves_like: str = "resnet50_like", num_floats: int = FLOATS) -> Found:
    """Measures reducers on one set of leaves, as ``benchmarks.reducers`` does.

    Args:
      repeats: the number of rounds.
      log: called with lines of progress.
      leaves_like: one of ``leaves.SIZED``.
      num_floats: the number of floats of a gradient.
    """
    keep_freed_memory()
    configure_cpu_devices(WORKERS, num_devices=WORKERS)
    layout = Layout.of(WORKERS, num_devices=WORKERS)
    rows: list[Row] = []
    ((name, shapes),) = leaves.sets([leaves_like], sizes=[num_floats])
    labels = (ADASUM, HALVING, GATHER, MODEL, *LAYERWISE, *OF_MODEL, *COORDINATEWISE)
    stages = {EXCHANGE: first_row, EXCHANGE_AND_SUM: first_row_after_a_sum, EXCHANGE_AND_PRODUCTS: weighted_sum}
    exchanges = [Candidate(label, functools.partial(exchange, make=make)) for label, make in stages.items()]
    measured = [*exchanges, *map(candidates.parse, labels)]
    measure(name, shapes, measured, layout=layout, repeats=repeats, max_seconds=MAX_SECONDS, rows=rows, log=log)
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


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="reduction", doc=__doc__, argv=sys.argv[1:], repeats=15)
