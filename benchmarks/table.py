"""Rows as aligned text."""

import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks.measure import Row

HEADER = ("reducer", "ms", "over mean", "quartiles", "MB sent", "bandwidth", "collectives")


def table(rows: Sequence[Row], *, copy_bytes_per_second: float) -> str:
    """Returns a block of lines for each set of leaves.

    Milliseconds and the time over that of the mean are medians; megabytes are what a device sends; bandwidth is the
    share of the measured one that would be used if nothing but gradients and results were touched, each once.

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
    """Names and collectives to the left, numbers to the right; a line of two cells has a reason instead of numbers."""
    whole = [line for line in lines if len(line) == len(HEADER)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    widths[0] = max(len(line[0]) for line in lines)
    aligned = []
    for first, *rest in lines:
        numbers = [cell.rjust(width) for cell, width in zip(rest[:-1], widths[1:], strict=False)]
        aligned.append("  ".join(["", first.ljust(widths[0]), *numbers, rest[-1]]).rstrip())
    return aligned
