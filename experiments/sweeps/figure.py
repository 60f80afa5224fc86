"""The figure of a sweep: a heat map over two numeric keys, or curves over one."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.plots.drawing import Figure, heat_map, is_drawn, legend_below, log_if_wide, look, name, new_figure
from experiments.study.findings import cut
from experiments.sweeps.edge import is_number
from experiments.sweeps.results import Entry, SweepResults, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (4.6, 3.4)  # of a panel
MAX_CURVES = 14


def draw(results: SweepResults) -> Figure:
    """Returns the figure.

    Two keys whose values are combined with each other give a heat map of means. Otherwise the metric is drawn against
    the numeric key with the most values, with a curve for each combination of the other keys. Keys that change in step
    with it, as lists of --zip and random draws do, have a panel each.

    Raises:
      ValueError: one line, if there is nothing to draw.
    """
    values = {key: _distinct([entry.point.get(key) for entry in results.entries]) for key in results.keys}
    numeric = [key for key in results.keys if len(values[key]) > 1 and all(map(is_number, values[key]))]
    samples = [entry.sample(results.goal.metric) for entry in results.entries]
    finite = [e for e, s in zip(results.entries, samples, strict=True) if is_drawn(s.mean) and is_drawn(s.std)]
    if not numeric:
        raise ValueError("no numeric key has several values")
    if not finite:
        raise ValueError(f"no run has a finite {results.goal.metric}")
    if len(results.keys) == len(numeric) == 2 and len(finite) > max(map(len, values.values())):
        return _heat_map(results, finite, x=numeric[0], y=numeric[1])
    first = max(numeric, key=lambda key: len(values[key]))
    panels = [key for key in numeric if key == first or _in_step(finite, first, key)]
    return _curves(results, finite, panels=panels)


def _heat_map(results: SweepResults, entries: Sequence[Entry], *, x: str, y: str) -> Figure:
    xs, ys = ([*sorted({entry.point[key] for entry in entries})] for key in (x, y))
    means = [[math.nan] * len(xs) for _ in ys]
    marked = None
    for entry in entries:
        column, row = xs.index(entry.point[x]), ys.index(entry.point[y])
        means[row][column] = entry.sample(results.goal.metric).mean
        if entry is results.best:
            marked = (row, column)
    width, height = max(INCHES[0], 1.6 + 0.75 * len(xs)), max(INCHES[1], 1.2 + 0.4 * len(ys))
    with new_figure(width, height, math=False) as figure:
        axes = figure.subplots()
        heat_map(axes, means, best=results.goal.mode, marked=marked, label=_named(results.goal.metric))
        axes.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
        axes.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    return figure


def _curves(results: SweepResults, entries: Sequence[Entry], *, panels: Sequence[str]) -> Figure:
    others = [key for key in results.keys if key not in panels]
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(in_words(entry.point, others), []).append(entry)
    if len(groups) > MAX_CURVES:
        raise ValueError(f"it would have {len(groups)} curves, more than {MAX_CURVES}")
    height = INCHES[1] + 0.2 * math.ceil((len(groups) + 1) / 2)
    with new_figure(INCHES[0] * len(panels), height, math=False) as figure:
        for axes, key in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _panel(axes, results, groups, along=key, line="-" if len(panels) == 1 else "")
        legend_below(figure, figure.axes[0], columns=2)
    return figure


def _panel(
    axes: "Axes", results: SweepResults, groups: Mapping[str, Sequence[Entry]], *, along: str, line: str
) -> None:
    """Draws the means against a key, with a bar of one standard deviation where there are several seeds."""
    metric = results.goal.metric
    for position, (label, entries) in enumerate(groups.items()):
        ordered = sorted(entries, key=lambda entry: entry.point[along])
        samples = [entry.sample(metric) for entry in ordered]
        ends = [cut(s.mean - s.std, s.mean + s.std, results.within) for s in samples]
        bars = [(s.mean - low, high - s.mean) for s, (low, high) in zip(samples, ends, strict=True)]
        looks = look(position) | ({} if line else {"linestyle": ""})
        axes.errorbar(
            [entry.point[along] for entry in ordered],
            [sample.mean for sample in samples],
            yerr=list(zip(*bars, strict=True)),
            capsize=3,
            markersize=5,
            label=name(label),
            **looks,
        )
    if results.best is not None:
        best = results.best
        ring: dict[str, Any] = {"marker": "o", "markersize": 13, "markerfacecolor": "none", "color": "#000000"}
        axes.plot([best.point[along]], [best.sample(metric).mean], linestyle="", label="best mean", **ring)
    log_if_wide(axes, [entry.point[along] for entries in groups.values() for entry in entries])
    axes.set_xlabel(along)
    spread = " (± standard deviation)" if any(len(entry.rows) > 1 for entry in results.entries) else ""
    axes.set_ylabel(f"{_named(metric)}{spread}")


def _in_step(entries: Sequence[Entry], one: str, other: str) -> bool:
    """Returns whether each value of a key comes with one value of the other, and the other way round."""
    pairs = {(entry.point[one], entry.point[other]) for entry in entries}
    return len(pairs) == len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs})


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list({repr(value): value for value in values}.values())


def _named(metric: str) -> str:
    return metric.replace("_", " ")
