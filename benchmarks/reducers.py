"""The cost of each reducer: its time over the mean's, collectives, bytes, and the used memory bandwidth.

    python -m benchmarks.reducers --layouts=plain,resnet50_like,lenet5,resnet50 --sizes=1e4,1e5,1e6,1e7
    python -m benchmarks.reducers --layouts=bert_large --reducers=mean,adasum:granularity=model --json=out/bert.json
    python -m benchmarks.reducers --published --json=out/bench/reducers.json    # takes --repeats alone beside

Each reducer is called as in the train step, on W workers as D devices x L lanes, in turns with the mean. The sent bytes
are read in the compiled program. Ctrl-C ends with the results so far.

``--published`` measures Adasum and the rules on dot products or coordinates, for 8 workers on 8 devices of one process
and 10 million floats in ResNet-50's leaves, and the stages of their exchange: an all-to-all and an all-gather of slices
alone, then with an all-reduce of n x n numbers, then with dot products and a weighted sum.
"""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np
import optax
from absl import flags
from jax import lax
from jax import numpy as jnp

from benchmarks.kit import candidates, command, leaves, step_loop
from benchmarks.kit.candidates import Candidate
from benchmarks.kit.command import Found, Log
from benchmarks.kit.reducer_times import Row, copy_bytes_per_second, measure
from benchmarks.kit.result import Measured, Target
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
from runs.reporting.progress import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


HEADER = ("reducer", "ms", "over mean", "quartiles", "MB sent", "bandwidth", "collectives")
FORMATS = (".png", ".pdf", ".svg")
_MARKERS = "osD^vP*Xhp"

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


def make_flags() -> flags.FlagValues:
    """Returns the flags of this command, without those of other programs."""
    values = flags.FlagValues()
    sized, fixed = ", ".join(leaves.SIZED), ", ".join(leaves.FIXED)
    layouts = ["plain", "resnet50_like", "lenet5", "resnet50"]
    devices = "Number of devices; default: the most that divide the workers (CPU: up to 8)."
    labels = "Reducers, as name or name:key=value,...; default: all, with each of their algorithms."
    limit = "Limit for all rounds of one reducer on one layout; a slower one is listed without a time."
    formats = ", ".join(FORMATS)
    flags.DEFINE_list("layouts", layouts, f"{sized} of each size; {fixed}.", flag_values=values)
    flags.DEFINE_list("sizes", ["1e4", "1e5", "1e6", "1e7"], "Numbers of floats of a gradient.", flag_values=values)
    flags.DEFINE_integer("workers", 8, "Number of workers.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("devices", None, devices, lower_bound=1, flag_values=values)
    flags.DEFINE_string("reducers", None, labels, flag_values=values)
    flags.DEFINE_integer("repeats", 15, "Number of counted rounds.", lower_bound=1, flag_values=values)
    flags.DEFINE_float("max_seconds", 30.0, limit, lower_bound=0.0, flag_values=values)
    flags.DEFINE_string("json", None, "File for all times and their environment.", flag_values=values)
    flags.DEFINE_string("figure", None, f"File for a figure of time against size: {formats}.", flag_values=values)
    return values


@dataclasses.dataclass(frozen=True)
class Plan:
    """The options of the command line.

    Attributes:
      sets: the name and leaves of each gradient.
      candidates: the reducers with their options.
      layout: W workers as D devices x L lanes.
      repeats: the number of counted rounds.
      max_seconds: the limit for all rounds of one reducer on one layout.
      json: the file for the results, or None.
      figure: the file for the figure, or None.
    """

    sets: list[tuple[str, leaves.Leaves]]
    candidates: list[candidates.Candidate]
    layout: Layout
    repeats: int
    max_seconds: float
    json: pathlib.Path | None
    figure: pathlib.Path | None


def plan(argv: Sequence[str]) -> Plan:
    """Parses a command line.

    Raises:
      ValueError: one line, before anything is compiled or written.
    """
    given = make_flags()
    command.parse(argv, values=given)
    sizes = [_size(text) for text in given.sizes]
    labels = None if given.reducers is None else registry.split_blocks(given.reducers)
    image = command.writable("figure", given.figure)
    if image is not None:
        if image.suffix not in FORMATS:
            raise ValueError(f"figure={given.figure!r}: must end in {', '.join(FORMATS)}")
        if len(set(sizes)) < 2 or not set(given.layouts) & set(leaves.SIZED):
            raise ValueError(f"figure={given.figure!r}: needs two sizes of {' or '.join(leaves.SIZED)}")
    keep_freed_memory()
    # Collectives between devices are what is measured, also where the devices are more than the cores.
    configure_cpu_devices(given.workers, num_devices=given.devices or default_cpu_devices(given.workers))
    return Plan(
        sets=leaves.sets(given.layouts, sizes=sizes),
        candidates=candidates.defaults() if labels is None else [candidates.parse(label) for label in labels],
        layout=Layout.of(given.workers, num_devices=given.devices),
        repeats=given.repeats,
        max_seconds=given.max_seconds,
        json=command.writable("json", given.json),
        figure=image,
    )


def _size(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value >= 1 and value.is_integer()):
        raise ValueError(f"sizes={text!r}: must be whole numbers of floats, such as 1e6")
    return int(value)


# ---- the report ------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], *, copy_bytes_per_second: float) -> str:
    """Returns a block of lines for each set of leaves.

    Milliseconds and the time over the mean's are medians, and megabytes are those that a device sends. Bandwidth is the
    fraction of the measured bandwidth that is used if each gradient and result is read or written only once.

    >>> row = Row("plain", 1000, 1, "sum", least_bytes=64_000, seconds=[0.003], baseline_seconds=[0.002])
    >>> print(table([row], copy_bytes_per_second=64e6))
    plain: 1,000 floats in 1 leaf, rounds: 1
      reducer    ms  over mean  quartiles  MB sent  bandwidth  collectives
      sum      3.00       1.50  1.50-1.50                33 %
    """
    blocks = []
    for key, block in itertools.groupby(rows, key=lambda row: (row.leaves, row.num_floats, row.num_leaves)):
        members = list(block)
        rounds = max(len(row.ratios) for row in members)
        name, num_floats, num_leaves = key
        cells = [_cells(row, copy_bytes_per_second) for row in members]
        leaves = "1 leaf" if num_leaves == 1 else f"{num_leaves} leaves"
        title = f"{name}: {num_floats:,} floats in {leaves}, rounds: {rounds}"
        blocks.append("\n".join([title, *_align([HEADER, *cells])]))
    return "\n\n".join(blocks)


def _cells(row: Row, copy_bytes_per_second: float) -> tuple[str, ...]:
    if not row.ratios.size:
        return (row.reducer, row.refused or "not measured")
    low, median, high = np.quantile(row.ratios, [0.25, 0.5, 0.75])
    seconds = float(np.median(row.seconds))
    share = row.least_bytes / seconds / copy_bytes_per_second
    sent = f"{row.traffic.bytes_per_worker / 1e6:.3f}" if row.traffic else ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in row.traffic.collectives.items()) if row.traffic else ""
    spread = f"{low:.2f}-{high:.2f}"
    return (
        row.reducer,
        f"{1e3 * seconds:.2f}",
        f"{median:.2f}",
        spread,
        sent,
        f"{share:.0%}".replace("%", " %"),
        kinds,
    )


def _align(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligns names and collectives left and numbers right; a line of two cells has a reason in place of numbers."""
    whole = [line for line in lines if len(line) == len(HEADER)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    widths[0] = max(len(line[0]) for line in lines)
    aligned = []
    for first, *rest in lines:
        numbers = [cell.rjust(width) for cell, width in zip(rest[:-1], widths[1:], strict=False)]
        aligned.append("  ".join(["", first.ljust(widths[0]), *numbers, rest[-1]]).rstrip())
    return aligned


def draw(rows: Sequence[Row]) -> "Figure":
    """Draws the median time of a call, with its quartiles, over the number of floats of a gradient, on log axes.

    There is a panel for each layout that was measured at more than one size.

    Raises:
      ValueError: if there is no such layout.
    """
    from matplotlib.figure import Figure

    measured = [row for row in rows if row.seconds and row.leaves in leaves.SIZED]
    panels = [name for name in leaves.SIZED if len({row.num_floats for row in measured if row.leaves == name}) > 1]
    if not panels:
        raise ValueError("figure: needs more than one size of a layout that has no size of its own")
    labels = list(dict.fromkeys(row.reducer for row in measured))
    figure = Figure(figsize=(4.6 * len(panels), 4.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True).flat, panels, strict=True):
        for number, label in enumerate(labels):
            line = [row for row in measured if (row.leaves, row.reducer) == (name, label)]
            line.sort(key=lambda row: row.num_floats)
            if line:
                low, median, high = np.transpose([1e3 * np.quantile(row.seconds, [0.25, 0.5, 0.75]) for row in line])
                axes.errorbar(
                    [row.num_floats for row in line],
                    median,
                    yerr=[median - low, high - median],
                    color=f"C{number % 10}",
                    marker=_MARKERS[number % len(_MARKERS)],
                    markersize=4,
                    label=label,
                )
        axes.set(xscale="log", yscale="log", title=name, xlabel="floats of a gradient")
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.axes[0].set_ylabel("time of a call (ms)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def results(plan: Plan, rows: Sequence[Row], *, bandwidth: float) -> dict[str, Any]:
    """Returns all results and their environment as JSON values."""
    device = plan.layout.devices[0]
    return {
        "environment": environment.describe(devices=[f"{device.platform} {device.device_kind}"]),
        "cpu_count": os.cpu_count(),
        "device_kind": device.device_kind,
        "num_devices": plan.layout.num_devices,
        "num_workers": plan.layout.num_workers,
        "lanes": plan.layout.lanes,
        "repeats": plan.repeats,
        "copy_bytes_per_second": None if math.isnan(bandwidth) else bandwidth,
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


# ---- the command ---------------------------------------------------------------------------------------------------


def run(plan: Plan) -> int:
    """Measures, prints the table, writes the files, after Ctrl-C, too; returns the exit code."""
    log = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    rows: list[Row] = []
    bandwidth, interrupted = math.nan, False
    try:
        log("measuring the memory bandwidth")
        bandwidth = copy_bytes_per_second(plan.layout)
        for name, shapes in plan.sets:
            measure(
                name,
                shapes,
                plan.candidates,
                layout=plan.layout,
                repeats=plan.repeats,
                max_seconds=plan.max_seconds,
                rows=rows,
                log=log,
            )
    except KeyboardInterrupt:
        interrupted = True
        log("interrupted: these are the results so far")
    device = plan.layout.devices[0]
    print(
        f"{counted(plan.layout.num_workers, 'worker')} = {counted(plan.layout.num_devices, 'device')} x "
        f"{counted(plan.layout.lanes, 'lane')}, "
        f"{device.platform} {device.device_kind}, {os.cpu_count()} cores, jax {jax.__version__}; "
        f"copies run at {bandwidth / 1e9:.1f} GB/s, all devices together\n"
    )
    print(table(rows, copy_bytes_per_second=bandwidth))
    if plan.json is not None:
        files.write_atomically(plan.json, files.to_json(results(plan, rows, bandwidth=bandwidth)))
    if plan.figure is not None:
        try:
            draw(rows).savefig(plan.figure, dpi=200)
        except ValueError as error:  # there are too few results, because of Ctrl-C or because all reducers were refused
            log(str(error))
    return 130 if interrupted else 0


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C."""
    if {"--help", "-help", "-h"} & set(argv):
        print(f"{__doc__}\n{make_flags().get_help()}")
        return 0
    if "--published" in argv:
        given = [flag for flag in argv[1:] if flag != "--published"]
        return command.run(benchmark, name="reducers", doc=__doc__ or "", argv=given, repeats=15)
    try:
        planned = plan(argv)
    except ValueError as error:
        print(f"benchmarks.reducers: {error}", file=sys.stderr)
        return 2
    return run(planned)


if __name__ == "__main__":
    launch.command.run(main, sys.argv)
