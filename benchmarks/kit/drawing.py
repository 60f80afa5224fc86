"""The figures of docs/gram.md, drawn from the published results of benchmarks."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.kit.result import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OVER_MEAN, _SENDS, _BYTES = " over mean, ", " sends", "bytes / D, n = "
_CURVES = {  # the curves of ``traffic``; a row begins with the reducer's name
    "adasum:algorithm=gather": "Adasum, gather",
    "krum:num_byzantine=1": "rules on dot products, whole model",
    "adasum:telemetry=on": "Adasum, all dot products of each leaf",
    "adasum": "Adasum",
    "adasum:algorithm=halving": "Adasum, halving",
    "mean": "mean",
}


def reducers(found: Sequence[Measured]) -> "Figure":
    """Draws the time of each reducer over the mean's, with quartiles, beside the number of gradients that it sends.

    Args:
      found: the results of ``benchmarks.reducers --published``.
    """
    from matplotlib.figure import Figure

    times = {one.name.partition(_OVER_MEAN)[0]: one for one in found if _OVER_MEAN in one.name}
    sent = {one.name.partition(_SENDS)[0]: one.median for one in found if _SENDS in one.name}
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


def traffic(found: Sequence[Measured]) -> "Figure":
    """Draws how many gradients a worker sends, by the number of workers.

    Args:
      found: the results of ``benchmarks.traffic``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    workers: set[int] = set()
    styles = zip(("#d55e00", "#cc79a7", "#e69f00", "#0072b2", "#009e73", "#000000"), "osD^vx", strict=True)
    for (name, label), (color, marker) in zip(_CURVES.items(), styles, strict=True):
        curve = {
            int(one.column.removeprefix(_BYTES).replace(",", "")): one.median
            for one in found
            if one.name.partition(": ")[0] == name and one.column.startswith(_BYTES)
        }
        axes.plot(list(curve), list(curve.values()), color=color, marker=marker, markersize=4, label=label)
        workers.update(curve)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="gradients that a worker sends", ylim=(1, None))
    axes.set_xticks(sorted(workers), [f"{n:,}" for n in sorted(workers)])
    axes.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8)
    return figure


# name of a benchmark -> its figure
FIGURES: Mapping[str, Callable[[Sequence[Measured]], "Figure"]] = {"reducers": reducers, "traffic": traffic}
