"""What reducers cost: time over the mean, collectives, bytes, share of the memory bandwidth.

    python -m benchmarks.reducers --layouts=plain,resnet50_like,lenet5,resnet50 --sizes=1e4,1e5,1e6,1e7
    python -m benchmarks.reducers --layouts=bert_large --reducers=mean,adasum:granularity=model --json=out/bert.json

Each reducer is called as in the train step, on W workers as D devices x L lanes, in turns with the mean. What is sent
is read in the compiled program. Ctrl-C ends with what was measured so far.
"""

import dataclasses
import math
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from benchmarks import candidates, figure, leaves
from benchmarks.measure import Row, copy_bytes_per_second, measure
from benchmarks.table import table
from parallel import Layout, configure_cpu_devices, keep_freed_memory
from runs import environment, files


def make_flags() -> flags.FlagValues:
    """Returns the flags of this command, its own: those of another program are unknown here."""
    values = flags.FlagValues()
    sized, fixed = ", ".join(leaves.SIZED), ", ".join(leaves.FIXED)
    layouts = ["plain", "resnet50_like", "lenet5", "resnet50"]
    devices = "Devices to use; by default the most that divide the workers (CPU: up to 8)."
    labels = "What to measure, name or name:key=value,...; by default every reducer, and every algorithm of each."
    limit = "Of all rounds of one reducer on one layout; one that needs more is listed without a measurement."
    formats = ", ".join(figure.FORMATS)
    flags.DEFINE_list("layouts", layouts, f"Leaves: {sized} of each size; {fixed} of their own.", flag_values=values)
    flags.DEFINE_list("sizes", ["1e4", "1e5", "1e6", "1e7"], "Floats of a gradient.", flag_values=values)
    flags.DEFINE_integer("workers", 8, "Number of workers.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("devices", None, devices, lower_bound=1, flag_values=values)
    flags.DEFINE_string("reducers", None, labels, flag_values=values)
    flags.DEFINE_integer("repeats", 15, "Rounds that are counted.", lower_bound=1, flag_values=values)
    flags.DEFINE_float("max_seconds", 30.0, limit, lower_bound=0.0, flag_values=values)
    flags.DEFINE_string("json", None, "File for all times, and what they were measured on.", flag_values=values)
    flags.DEFINE_string("figure", None, f"File for time against size: {formats}.", flag_values=values)
    return values


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the command line asks for.

    Attributes:
      sets: name and leaves of each gradient.
      candidates: reducers with their options.
      layout: W workers as D devices x L lanes.
      repeats: rounds that are counted.
      max_seconds: of all rounds of one reducer on one layout.
      json: file for the results, or None.
      figure: file for the figure, or None.
    """

    sets: list[tuple[str, leaves.Leaves]]
    candidates: list[candidates.Candidate]
    layout: Layout
    repeats: int
    max_seconds: float
    json: pathlib.Path | None
    figure: pathlib.Path | None


def plan(argv: Sequence[str]) -> Plan:
    """Reads a command line.

    Raises:
      ValueError: one line, with nothing compiled and nothing written.
    """
    given = make_flags()
    try:
        rest = given(argv)[1:]
    except flags.Error as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    if rest:
        raise ValueError(f"{rest[0]!r}: not a flag")
    sizes = [_size(text) for text in given.sizes]
    labels = None if given.reducers is None else candidates.split(given.reducers)
    image = _file("figure", given.figure)
    if image is not None:
        if image.suffix not in figure.FORMATS:
            raise ValueError(f"figure={given.figure!r}: must end in {', '.join(figure.FORMATS)}")
        if len(set(sizes)) < 2 or not set(given.layouts) & set(leaves.SIZED):
            raise ValueError(f"figure={given.figure!r}: needs two sizes of {' or '.join(leaves.SIZED)}")
    keep_freed_memory()
    configure_cpu_devices(given.workers, num_devices=given.devices)
    return Plan(
        sets=leaves.sets(given.layouts, sizes=sizes),
        candidates=candidates.defaults() if labels is None else [candidates.parse(label) for label in labels],
        layout=Layout.of(given.workers, num_devices=given.devices),
        repeats=given.repeats,
        max_seconds=given.max_seconds,
        json=_file("json", given.json),
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


def _file(flag: str, text: str | None) -> pathlib.Path | None:
    if text is None:
        return None
    path = pathlib.Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{flag}={text!r}: must be a file in a folder that exists")
    return path


def results(plan: Plan, rows: Sequence[Row], *, bandwidth: float) -> dict[str, Any]:
    """Returns all that was measured, and what it was measured on, as JSON can hold it."""
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


def run(plan: Plan) -> int:
    """Measures, prints the table, and writes what was asked for, after Ctrl-C too; returns the exit code."""
    tell = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    rows: list[Row] = []
    bandwidth, interrupted = math.nan, False
    try:
        tell("measuring the memory bandwidth")
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
                tell=tell,
            )
    except KeyboardInterrupt:
        interrupted = True
        tell("interrupted: what follows was measured before")
    device = plan.layout.devices[0]
    print(
        f"{plan.layout.num_workers} workers = {plan.layout.num_devices} devices x {plan.layout.lanes} lanes, "
        f"{device.platform} {device.device_kind}, {os.cpu_count()} cores, jax {jax.__version__}; "
        f"copies run at {bandwidth / 1e9:.1f} GB/s, all devices together\n"
    )
    print(table(rows, copy_bytes_per_second=bandwidth))
    if plan.json is not None:
        files.write_atomically(plan.json, files.to_json(results(plan, rows, bandwidth=bandwidth)))
    if plan.figure is not None:
        try:
            figure.draw(rows).savefig(plan.figure, dpi=200)
        except ValueError as error:  # too little was measured before Ctrl-C, or all was refused
            tell(str(error))
    return 130 if interrupted else 0


def main(argv: Sequence[str]) -> int:
    """Does what a command line says; returns its exit code: 0, 2 for bad input, 130 after Ctrl-C."""
    if {"--help", "-help", "-h"} & set(argv):
        print(f"{__doc__}\n{make_flags().get_help()}")
        return 0
    try:
        planned = plan(argv)
    except ValueError as error:
        print(f"benchmarks.reducers: {error}", file=sys.stderr)
        return 2
    return run(planned)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
