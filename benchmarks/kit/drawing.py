"""The figures of docs/gram.md, drawn from the published results of benchmarks."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.kit.result import Measured
from runs.reporting.figures import COLOURS, MARKERS, Figure, new_figure, ticks

_OVER_MEAN, _SENDS, _BYTES = " over mean, ", " sends", "bytes / D, n = "
_CURVES = {  # the curves of ``traffic``; a row begins with the reducer's name
    "adasum:algorithm=gather": "Adasum, gather",
    "krum:num_byzantine=1": "rules on dot products, whole model",
    "adasum:telemetry=on": "Adasum, all dot products of each leaf",
    "adasum": "Adasum",
    "adasum:algorithm=halving": "Adasum, halving",
    "mean": "mean",
}


def reducers(found: Sequence[Measured]) -> Figure:
    """Draws the time of each reducer over the mean's, with quartiles, beside the number of gradients that it sends.

    Args:
      found: the results of ``benchmarks.reducers --published``.
    """
    times = [one for one in found if _OVER_MEAN in one.name]
    times.sort(key=lambda one: -one.median)
    sent = {one.name.partition(_SENDS)[0]: one.median for one in found if _SENDS in one.name}
    names = [one.name.partition(_OVER_MEAN)[0] for one in times]
    medians = np.array([one.median for one in times])
    quartiles = np.array([one.quartiles for one in times]).T
    rows = range(len(times))
    with new_figure(7.2, 0.6 + 0.28 * len(times)) as figure:
        axes = figure.subplots()
        axes.errorbar(medians, rows, xerr=np.abs(quartiles - medians), fmt="o", markersize=4, color=COLOURS[0])
        axes.axvline(1, color="#888888", linewidth=0.8)
        axes.set_yticks(rows, [f"{name}  ({sent[name]:.2f})" for name in names])
        axes.set(xscale="log", xlabel="time over the mean's\n(in brackets: gradients sent)")
        ticks(axes.xaxis, [time for time in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24) if time <= 1.1 * quartiles.max()])
    return figure


def traffic(found: Sequence[Measured]) -> Figure:
    """Draws how many gradients a worker sends, by the number of workers.

    Args:
      found: the results of ``benchmarks.traffic``.
    """
    with new_figure(7.2, 3.6) as figure:
        axes = figure.subplots()
        for (name, label), colour, marker in zip(_CURVES.items(), COLOURS, MARKERS, strict=False):
            counts = [one for one in found if one.name.partition(": ")[0] == name and one.column.startswith(_BYTES)]
            workers = [int(one.column.removeprefix(_BYTES).replace(",", "")) for one in counts]
            sent = [one.median for one in counts]
            axes.plot(workers, sent, color=colour, marker=marker, markersize=4, label=label)
        axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="gradients that a worker sends", ylim=(1, None))
        ticks(axes.xaxis, workers)
        axes.legend()
    return figure


# name of a benchmark -> its figure
FIGURES: Mapping[str, Callable[[Sequence[Measured]], Figure]] = {"reducers": reducers, "traffic": traffic}
