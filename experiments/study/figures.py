"""Stock figures of claims: each is drawn from a frame and returns its panels, to which a claim adds what it needs.

`experiments.plots.drawing` has the heat map, and the look of all figures.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.plots import drawing
from experiments.study.frames import Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = list["Axes"]


def curves(
    figure: "Figure | Axes",
    df: Frame,
    *,
    along: str,
    of: str,
    by: str,
    styles: str = "",
    order: Sequence[Any] = (),
    name: Callable[[Frame], str] | None = None,
    panels: str = "",
    factor: float = 1.0,
    marker: str | None = None,
    **axes: Any,
) -> Panels:
    """Draws a quantity along the runs, mean and standard deviation, one curve for each value of a column.

    Args:
      figure: an empty figure, or the one panel to draw in.
      df: the runs, whose cells of both quantities are lists.
      along, of: the quantities on the x and the y axis.
      by: column whose values the curves are of.
      styles: a second column, whose values set the line style, as those of ``by`` set the colour; "" for none.
      order: all values of ``by``, so that each keeps its look if some have no runs; by default those of the frame.
      name: the runs of a curve -> its name in the legend; by default the value of ``by``.
      panels: column whose values the panels are of; "" for one panel.
      factor: factor of the quantity on the y axis, such as 100 for percent.
      marker: marker of all curves, such as "" for none; by default each has its own.
      **axes: properties of the panels, such as xlabel.
    """
    parts = list(df.groupby(panels, sort=False)) if panels else [("", df)]
    found = _row(figure, len(parts))
    looks = _looks(df, by, styles, order)
    for at, (value, part) in zip(found, parts, strict=True):
        for labels, same in part.groupby([by, styles] if styles else [by], sort=False):
            look = looks[labels]
            if marker is not None:
                look["marker"] = marker
            if name:
                look["label"] = name(same)
            xs = np.array(same[along].tolist(), float).mean(axis=0)
            ys = factor * np.array(same[of].tolist(), float)
            band(at, xs, ys.T, **look)
        finish(at, **{"title": str(value), **axes})
    for at in found[1:]:
        at.set_ylabel("")
    return found


def values(
    figure: "Figure | Axes",
    df: Frame,
    *,
    x: str,
    y: Mapping[str, str],
    by: str = "",
    styles: str = "",
    order: Sequence[Any] = (),
    dots: bool = False,
    **axes: Any,
) -> Panels:
    """Draws columns against another one, each in its panel: mean and deviation of the runs, a curve for each ``by``.

    Args:
      figure: an empty figure, or the one panel to draw in.
      df: the runs.
      x: column of the x axis.
      y: column -> label of its panel.
      by: column whose values the curves are of; "" for one curve.
      styles, order: as of `curves`.
      dots: whether to draw a dot for each run, too.
      **axes: properties of the panels.
    """
    found = _row(figure, len(y), sharey=False)
    if not by:
        by, df = "all", df.assign(all="ours, mean and deviation of seeds")
    looks = _looks(df, by, styles, order)
    for at, (column, ylabel) in zip(found, y.items(), strict=True):
        for labels, part in df.groupby([by, styles] if styles else [by], sort=False):
            look = looks[labels]
            samples = dict(list(part.groupby(x)[column]))
            band(at, list(samples), samples.values(), **look)
            if dots:
                colour = drawing.look(look["position"])["color"]
                at.scatter(part[x], part[column], s=6, color=colour, zorder=3)
        finish(at, **{"xlabel": x.replace("_", " "), "ylabel": ylabel, **axes})
        if at.get_xscale() == "log":
            drawing.ticks(at.xaxis, df[x])
    return found


def dots(
    figure: "Figure",
    df: Frame,
    *,
    y: str,
    by: str,
    groups: Mapping[str, Sequence[str]],
    colours: Sequence[str] = drawing.COLOURS,
    limits: Sequence[tuple[float, float] | None] = (None,),
    lines: Mapping[str, tuple[float, str]] | None = None,
    **axes: Any,
) -> Panels:
    """Draws each run as a dot in the line of its category, and the mean as a tick.

    Args:
      figure: an empty figure.
      df: the runs.
      y: column of the values, which are on the x axis.
      by: column of the categories.
      groups: name in the legend -> categories in its colour; others are grey.
      colours: colours of the groups.
      limits: limits of the x axis, one for each panel; None for those of the dots.
      lines: name in the legend -> a value to compare with, and the style of its line.
      **axes: properties of the panels.
    """
    found = _row(figure, len(limits))
    looks = {}
    for colour, (label, names) in zip(colours, groups.items(), strict=False):
        looks.update(dict.fromkeys(names, (colour, label)))
    places = {name: place for place, name in enumerate(dict.fromkeys(df[by]))}
    for at, limit in zip(found, limits, strict=True):
        named: set[str] = set()
        for name, same in df.groupby(by, sort=False):
            place, ends = places[name], same[y]
            colour, label = looks.get(name, (drawing.REFERENCE["color"], "not judged"))
            (run_dots,) = at.plot(ends, [place] * len(ends), "o", color=colour, alpha=0.5, markersize=5)
            run_dots.set_markeredgewidth(0)
            if label not in named:
                run_dots.set_label(label)
                named.add(label)
            at.plot([ends.mean()], [place], "|", color=colour, markersize=14, markeredgewidth=2)
        for label, (value, style) in (lines or {}).items():
            line(at, value, label, across=False, linestyle=style)
        finish(at, legend=False, xlim=limit, **axes)
    found[0].set_yticks(range(len(places)), places)
    found[0].invert_yaxis()
    if found[-1].get_legend_handles_labels()[1]:
        drawing.legend_below(figure, found[-1])
    return found


def line(at: "Axes", value: float, label: str = "", *, across: bool = True, **look: Any) -> None:
    """Draws a line to compare with: across at a y, or else upright at an x."""
    draw = at.axhline if across else at.axvline
    draw(value, label=label or None, **drawing.REFERENCE | look)
    if at.get_legend():
        at.legend()


def known(at: "Axes", df: Frame, *, x: str, y: str, label: str = "", **look: Any) -> None:
    """Draws a curve to compare with: a column that is not measured, such as a bound, along another one."""
    curve = df.groupby(x)[y].first()
    at.plot(curve.index, curve, label=label or None, **drawing.REFERENCE | look)


def with_rate(same: Frame) -> str:
    """Returns the name of a curve of runs that share a method and a learning rate."""
    return f"{same['method'].iloc[0]}, rate {same['rate'].iloc[0]:g}"


def band(at: "Axes", xs: Any, ys: Any, *, position: int, label: str, **changes: Any) -> None:
    """Draws a curve of means with a band of one standard deviation to either side.

    Args:
      at: the panel.
      xs: x of each mean.
      ys: the values of the runs at each x.
      position: position of the curve among others, which gives its look.
      label: name in the legend.
      **changes: line properties of Matplotlib that replace those of the look.
    """
    samples = [np.asarray(sample, float) for sample in ys]
    means = np.array([sample.mean() for sample in samples])
    stds = np.array([sample.std(ddof=1) if len(sample) > 1 else 0.0 for sample in samples])
    every = max(1, len(means) // 8)
    look = {"markersize": 5, "markeredgecolor": "white", "markevery": every, **drawing.look(position), **changes}
    at.plot(xs, means, label=label, **look)
    at.fill_between(xs, means - stds, means + stds, color=look["color"], alpha=0.2, linewidth=0)


def finish(at: "Axes", *, legend: bool = True, **axes: Any) -> None:
    """Sets properties of a panel, writes plain numbers on logarithmic axes that end below 1e5, and adds the legend."""
    at.set(**axes)
    for axis, scale in ((at.xaxis, axes.get("xscale")), (at.yaxis, axes.get("yscale"))):
        if scale == "log":
            drawing.plain_numbers(axis)
    if legend and at.get_legend_handles_labels()[1]:
        at.legend()


def _looks(df: Frame, by: str, styles: str, order: Sequence[Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Returns the position and the label of each curve, and its line style if ``styles`` names a column."""
    looks: dict[tuple[Any, ...], dict[str, Any]] = {}
    for position, label in enumerate(order or dict.fromkeys(df[by])):
        if not styles:
            looks[label,] = {"position": position, "label": str(label)}
            continue
        for other, line in zip(dict.fromkeys(df[styles]), itertools.cycle(drawing.LINE_STYLES), strict=False):
            looks[label, other] = {"position": position, "label": f"{label}, {other}", "linestyle": line}
    return looks


def _row(figure: "Figure | Axes", count: int, *, sharey: bool = True) -> Panels:
    """Returns panels beside each other; a panel that is given is the one."""
    from matplotlib.figure import Figure

    if not isinstance(figure, Figure):
        return [figure]
    return list(figure.subplots(1, max(1, count), sharey=sharey, squeeze=False)[0])
