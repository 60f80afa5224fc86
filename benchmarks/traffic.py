"""Counts what a worker sends with each reducer and encoding, and in how many collectives, by the number of workers.

    python -m benchmarks.traffic

``reducers.traffic`` counts in traced programs, with one worker per device and the leaves of ResNet-50; nothing is run.
Rows name a formula for n workers: the bytes over D, the bytes of the gradient. L is the number of leaves, and k the
number of devices that Adasum combines at once, of which the last level may have 32.
"""

import functools
import sys
from collections.abc import Iterator, Sequence

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from benchmarks import encodings
from benchmarks.kit import command
from benchmarks.kit.candidates import Candidate, parse
from benchmarks.kit.command import Log
from benchmarks.kit.leaves import FIXED
from benchmarks.kit.result import Measured
from reducers.leaves import num_bytes

NUM_WORKERS = (8, 64, 512, 4096)

# Reducers whose bytes are counted, and the formulas that these follow.
_MODEL, _LAYER = "2 (n - 1) / n + 8 n^2 / D", "2 (n - 1) / n + 8 n^2 L / D"
FORMULAS = {
    "mean": "2 (n - 1) / n",
    "sum": "2 (n - 1) / n",
    "sign_majority": "(n - 1) / 2 n, of n < 128",
    "coordinate_median": "2 (n - 1) / n",
    "trimmed_mean:num_trimmed=1": "2 (n - 1) / n",
    "krum:num_byzantine=1": _MODEL,
    "multi_krum:num_byzantine=1,num_selected=4": _MODEL,
    "geometric_median": _MODEL,
    "mgda": _MODEL,
    "upgrad": _MODEL,
    "pcgrad": _MODEL,
    "adacons": _MODEL,
    "agreement_scaled_mean": _MODEL,
    "radial_directional": _LAYER,
    "adasum": "2 (n - 1) / n + 8 k^2 L / D a level, k = 16",
    "adasum:algorithm=halving": "the same, k = 2",
    "adasum:telemetry=on": _LAYER,
    "adasum:algorithm=gather": "n - 1",
    "backup_workers:num_required=6": "2 (n - 1) / n",
}


def cases() -> dict[str, Candidate]:
    """Returns the candidates to count, by name and formula."""
    found = {f"{label}: {formula}": parse(label) for label, formula in FORMULAS.items()}
    for name, case in encodings.CASES.items():
        found[f"mean, {name}: its own"] = encodings.candidate(name, case)
    return found


def benchmark(
    *,
    repeats: int,
    log: Log,
    leaves_of: str = "resnet50",
    num_workers: Sequence[int] = NUM_WORKERS,
) -> Iterator[Measured]:
    """Counts bytes and collectives of traced programs.

    Args:
      repeats: not used: counts are the same each time.
      log: called with lines of progress.
      leaves_of: one of ``leaves.FIXED``.
      num_workers: ascending.
    """
    del repeats
    leaves = FIXED[leaves_of]()
    size = num_bytes(leaves)
    for row, candidate in cases().items():
        collectives = []
        for n in num_workers:
            log(f"{row}: tracing it for {n} workers")
            moved = candidate.traffic(leaves, num_workers=n)
            count = sum(moved.collectives.values())
            collectives.append(Measured(row, [count], unit="", column=f"collectives, n = {n:,}"))
            yield Measured(row, [moved.bytes_per_worker / size], column=f"bytes / D, n = {n:,}")
        yield from (collectives[0], collectives[-1])


main = functools.partial(command.run, benchmark, name="traffic", doc=__doc__, repeats=1)

if __name__ == "__main__":
    launch.command.run(main, sys.argv[1:])
