"""The figure of docs/gram.md, drawn from the published results of the benchmark ``reduction``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.kit.result import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OVER_MEAN, _SENDS = " over mean, ", " sends"


def reduction(found: Sequence[Measured]) -> "Figure":
    """Draws the time of each reducer over the mean's, median and quartiles, beside how many gradients a device sends.

    Args:
      found: what ``benchmarks.reduction`` measured.
    """
    from matplotlib.figure import Figure

    times = {one.name.partition(_OVER_MEAN)[0]: one for one in found if _OVER_MEAN in one.name}
    sent = {one.name.removesuffix(_SENDS): one.median for one in found if one.name.endswith(_SENDS)}
    labels = sorted(times, key=lambda label: -times[label].median)
    medians = [times[label].median for label in labels]
    low, high = zip(*[times[label].quartiles for label in labels], strict=True)
    figure = Figure(figsize=(7.2, 0.6 + 0.28 * len(labels)), layout="constrained")
    axes = figure.subplots()
    errors = [[m - x for m, x in zip(medians, low, strict=True)], [x - m for m, x in zip(medians, high, strict=True)]]
    axes.errorbar(medians, range(len(labels)), xerr=errors, fmt="o", markersize=4, color="#0072b2")
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(labels)), [f"{label}  ({sent[label]:.2f})" for label in labels])
    axes.set(xscale="log", xlabel="time over the mean's\n(in brackets: gradients sent)")
    ticks = [tick for tick in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24) if tick <= 1.1 * max(high)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    return figure
