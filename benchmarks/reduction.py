"""Adasum against the mean, for 8 workers on 8 devices of one process and 10 million floats in ResNet-50's leaves.

    python -m benchmarks.reduction

This is the one result of ``benchmarks.reducers`` that has a target; that command measures every reducer at any size.
"""

import sys

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks import candidates, command, leaves, loops
from benchmarks.command import Found, Log
from benchmarks.measure import Row, measure
from benchmarks.measured import Measured, Target
from parallel import Layout, configure_cpu_devices, keep_freed_memory

WORKERS, FLOATS, MAX_SECONDS = 8, 10_000_000, 300.0


def benchmark(*, repeats: int, log: Log) -> Found:
    """Measures one reducer on one set of leaves, as ``benchmarks.reducers`` does."""
    keep_freed_memory()
    configure_cpu_devices(WORKERS, num_devices=WORKERS)
    layout = Layout.of(WORKERS, num_devices=WORKERS)
    rows: list[Row] = []
    ((name, shapes),) = leaves.sets(["resnet50_like"], sizes=[FLOATS])
    measure(
        name,
        shapes,
        [candidates.parse("adasum")],
        layout=layout,
        repeats=repeats,
        max_seconds=MAX_SECONDS,
        rows=rows,
        log=log,
    )
    (row,) = rows
    if row.refused:
        raise RuntimeError(row.refused)
    found = [
        Measured("adasum over mean, 8 devices, 10 M floats", row.ratios.tolist(), target=Target("<=", 1.3)),
        Measured("mean, 8 devices, 10 M floats", row.baseline_seconds, unit="s"),
    ]
    return Found(found, loops.devices(layout.num_devices))


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="reduction", doc=__doc__, argv=sys.argv[1:], repeats=15)
