"""The figure of a sweep: a heat map over two numeric keys, or curves over one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.plots.drawing import Figure, heat_map, is_drawn, legend_below, log_if_wide, look, name, new_figure
from experiments.study.frames import Frame
from experiments.sweeps.edge import is_number
from experiments.sweeps.results import SweepResults, in_words
from experiments.sweeps.sweep import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (3.25, 2.6)  # size of a panel
MAX_CURVES = 14


def draw(results: SweepResults, *, columns: int | None = None) -> Figure:
    """Returns the figure, as wide as its panels need or as so many columns of a page.

    Two keys whose values are combined with each other give a heat map of means. Otherwise the metric is drawn against
    the numeric key with the most values, with a curve for each combination of the other keys. Keys that change in step
    with it, as lists of --zip and random draws do, have a panel each.

    Raises:
      ValueError: one line, if there is nothing to draw.
    """
    numeric: dict[str, set[Any]] = {}
    for key in results.keys:
        values = [point.get(key) for point in results.points.values()]
        if all(map(is_number, values)) and len(set(values)) > 1:
            numeric[key] = set(values)
    drawn = results.metric[["mean", "std"]].map(is_drawn).all(axis=1)
    finite = list(drawn.index[drawn])
    if not numeric:
        raise ValueError("no numeric key has several values")
    if not finite:
        raise ValueError(f"no run has a finite {results.goal.metric}")
    if len(results.keys) == len(numeric) == 2 and len(finite) > max(map(len, numeric.values())):
        x, y = numeric
        return _heat_map(results, finite, x=x, y=y, columns=columns)
    first = max(numeric, key=lambda key: len(numeric[key]))
    points = [results.points[at] for at in finite]
    panels = [key for key in numeric if _in_step(points, first, key)]
    return _curves(results, finite, panels=panels, columns=columns)


def _heat_map(results: SweepResults, points: Sequence[str], *, x: str, y: str, columns: int | None) -> Figure:
    means = Frame([results.points[at] for at in points])
    means["mean"] = results.metric["mean"][points].to_numpy()
    table = means.pivot(index=y, columns=x, values="mean")
    marked = None
    if results.best is not None and results.best in points:
        best = results.points[results.best]
        marked = (table.index.get_loc(best[y]), table.columns.get_loc(best[x]))
    rows, across = table.shape
    width, height = max(INCHES[0], 1.4 + 0.55 * across), max(INCHES[1], 1.0 + 0.3 * rows)
    with new_figure(width, height, columns=columns, math=False) as figure:
        axes = figure.subplots()
        heat_map(axes, table.to_numpy(), best=results.goal.mode, marked=marked, label=_named(results))
        axes.set_xticks(range(across), [f"{value:g}" for value in table.columns])
        axes.set_yticks(range(rows), [f"{value:g}" for value in table.index])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    return figure


def _curves(results: SweepResults, points: Sequence[str], *, panels: Sequence[str], columns: int | None) -> Figure:
    others = [key for key in results.keys if key not in panels]
    groups: dict[str, list[str]] = {}
    for at in points:
        groups.setdefault(in_words(results.points[at], others), []).append(at)
    if len(groups) > MAX_CURVES:
        raise ValueError(f"it would have {len(groups)} curves, more than {MAX_CURVES}")
    with new_figure(INCHES[0] * len(panels), INCHES[1], columns=columns, math=False) as figure:
        axes_of = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, key in zip(axes_of, panels, strict=True):
            _panel(axes, results, groups, along=key, is_line=len(panels) == 1)
        legend_below(figure, figure.axes[0])
    return figure


def _panel(
    axes: "Axes", results: SweepResults, groups: Mapping[str, Sequence[str]], *, along: str, is_line: bool
) -> None:
    """Draws the means against a key, with a bar of one standard deviation if there are several seeds."""
    df, within = results.metric, results.within
    x = [point.get(along) for point in results.points.values()]
    below = df["mean"] - (df["mean"] - df["std"]).clip(*within)
    above = (df["mean"] + df["std"]).clip(*within) - df["mean"]
    df = df.assign(x=x, below=below, above=above)
    for position, (label, points) in enumerate(groups.items()):
        part = df.loc[points].sort_values("x", kind="stable")
        looks = look(position)
        if not is_line:
            looks["linestyle"] = ""
        bars = part[["below", "above"]].to_numpy().T
        axes.errorbar(part["x"], part["mean"], bars, label=name(label), capsize=3, markersize=5, **looks)
    if results.best is not None:
        best = df.loc[results.best]
        axes.plot(best["x"], best["mean"], "o", color="k", markersize=13, markerfacecolor="none", label="best point")
    log_if_wide(axes, df["x"][[at for points in groups.values() for at in points]])
    axes.set_xlabel(along)
    spread = "\n(± standard deviation)" if any(df["runs"] > 1) else ""
    axes.set_ylabel(f"{_named(results)}{spread}")


def _in_step(points: Sequence[Point], one: str, other: str) -> bool:
    """Returns whether each value of a key comes with one value of the other, and the other way round."""
    pairs = {(point[one], point[other]) for point in points}
    return len(pairs) == len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs})


def _named(results: SweepResults) -> str:
    return f"{results.goal.metric.replace('_', ' ')} on the {results.sweep.splits} split"
