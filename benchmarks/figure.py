"""Time against size, a line for each reducer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.leaves import SIZED
from benchmarks.measure import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
_MARKERS = "osD^vP*Xhp"


def draw(rows: Sequence[Row]) -> "Figure":
    """Draws the median time of a call, with its quartiles, over the floats of a gradient; both logarithmic.

    One panel for each layout that was measured at more than one size. Reads and writes nothing.

    Raises:
      ValueError: if there is none.
    """
    from matplotlib.figure import Figure

    measured = [row for row in rows if row.seconds and row.leaves in SIZED]
    panels = [name for name in SIZED if len({row.num_floats for row in measured if row.leaves == name}) > 1]
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
