"""The look of figures: colour-blind safe, readable in grey and at the width of a column."""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from launch.output import clipped, printable
from runs.reporting.figures import COLOURS, COLUMN_INCHES, MARKERS, Figure, new_figure, plain_numbers, ticks
from runs.reporting.figures import save as save

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

LINE_STYLES: tuple[Any, ...] = ("-", "--", ":", "-.")
MAX_NAME = 140  # characters of a name in a figure
LINE = 40  # characters of a line of it, which is as wide as a column of a page
PANEL_INCHES = (3.25, 2.6)  # width and least height of a panel whose rows are workers
MAX_PANEL_INCHES = 9.0  # greatest height, for any number of workers
BEYOND = "beyond the axis"  # name of the crosses at its end
MOST_COLUMNS = 8  # of a legend
MOST_TICKS = 8  # at the points themselves; random draws have more
MOST_PANELS = MOST_CURVES = 100  # in a figure; more take minutes, and nobody can tell them apart
LARGEST = 1e100  # the largest number that is drawn, which leaves room for margins and logarithms
REFERENCE: Any = {"color": "#666666", "linewidth": 1}  # a line to compare curves with


@contextlib.contextmanager
def worker_panels(
    titles: Sequence[str], *, num_workers: int, row: float, columns: int | None = None, sharex: bool = False
) -> "Iterator[tuple[Figure, dict[str, Axes]]]":
    """Gives a figure with a panel per run, whose rows are the workers, from the top down.

    Args:
      titles: titles of the panels, which are the keys of the result.
      num_workers: the largest number of rows.
      row: the height of a row, in inches, while the figure is not too high.
      columns: as of `new_figure`; by default each panel is as wide as a column.
      sharex: whether the panels have one x axis.

    Raises:
      ValueError: one line, for more panels than a figure can have.
    """
    check_panels(len(titles))
    height = min(max(PANEL_INCHES[1], row * num_workers + 1.2), MAX_PANEL_INCHES)
    with new_figure(PANEL_INCHES[0] * len(titles), height, columns=columns, math=False) as figure:
        panels = figure.subplots(1, len(titles), squeeze=False, sharex=sharex, sharey=True)[0]
        yield figure, dict(zip(titles, panels, strict=True))
        characters = int(LINE * figure.get_figwidth() / len(titles) / COLUMN_INCHES[1])
        for title, axes in zip(titles, panels, strict=True):
            axes.set_title(textwrap.fill(name(title), max(characters, 8), break_on_hyphens=False))
        panels[0].set(ylabel="worker")
        panels[0].invert_yaxis()
        whole_numbers(panels[0].yaxis)


def check_panels(count: int) -> None:
    """Raises ValueError, one line, for more panels than a figure can have."""
    if count > MOST_PANELS:
        raise ValueError(f"the figure would have {count} panels; at most {MOST_PANELS}")


def is_drawn(value: float) -> bool:
    """Returns whether a number has a place in a figure: it is neither NaN nor beyond ``LARGEST``.

    >>> [is_drawn(value) for value in (-1.0, 1e308, 10**400, float("nan"))]
    [True, False, False, False]
    """
    return abs(value) <= LARGEST


def name(text: str) -> str:
    r"""Returns a name as a figure can show it: on a few short lines, and not hidden from a legend by a first "_".

    >>> name("_a\nb"), [len(line) for line in name("x" * 300).split("\n")]
    (' _a\\nb', [40, 40, 40, 20])
    """
    line = clipped(printable(text), MAX_NAME)
    wrapped = textwrap.fill(line, LINE, break_on_hyphens=False)
    return f" {wrapped}" if wrapped.startswith("_") else wrapped


def look(position: int) -> dict[str, Any]:
    """Returns colour, marker and line style of the curve at a position."""
    turn, place = divmod(position, len(COLOURS))
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": LINE_STYLES[turn % len(LINE_STYLES)]}


def legend_across(figure: "Figure", entries: "Sequence[Artist]") -> None:
    """Writes a legend under all panels, as many entries in a row as fit; widens a figure that is narrower than one.

    Args:
      figure: its height grows by that of the legend.
      entries: lines and patches with labels, row by row.
    """
    from matplotlib.figure import Figure

    width, height = figure.get_size_inches()
    for columns in range(min(len(entries), MOST_COLUMNS), 0, -1):
        by_row = [entry for column in range(columns) for entry in entries[column::columns]]  # matplotlib fills columns
        alone = Figure()
        legend = alone.legend(handles=by_row, ncols=columns)
        for text in legend.get_texts():
            text.set_parse_math(False)  # names of users
        alone.draw_without_rendering()
        needed = legend.get_window_extent().transformed(alone.dpi_scale_trans.inverted())
        if needed.width <= width:
            break
    figure.set_size_inches(max(width, needed.width), height + needed.height)
    figure.legend(handles=by_row, loc="outside lower center", ncols=columns)


def legend_below(figure: "Figure", axes: "Axes") -> None:
    """Writes the legend of one panel under all of them."""
    legend_across(figure, axes.get_legend_handles_labels()[0])


def end_at(axes: "Axes", top: float, *, marked: Literal["all", "first"] = "all") -> None:
    """Ends the y axis at a value, where crosses mark the points of curves that lie beyond it, such as diverged ones.

    Args:
      axes: the panel, whose curves are drawn.
      top: the end.
      marked: all points beyond it, or the first one of each curve.
    """
    look: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 7, "markeredgewidth": 1.5, "zorder": 4}
    points = {line: np.asarray(line.get_xydata(), float) for line in axes.lines}
    if not any(map(len, points.values())):
        return
    if axes.get_yscale() == "linear":
        within = [y for xy in points.values() for y in xy[:, 1] if y <= top]
        axes.set_ylim(bottom=min(within) - axes.get_ymargin() * (top - min(within)))
    for line, xy in points.items():
        xs = xy[xy[:, 1] > top, 0][: 1 if marked == "first" else None]
        axes.plot(xs, [top] * len(xs), color=line.get_color(), **look, clip_on=False, in_layout=False)
    axes.plot([], [], color=REFERENCE["color"], **look, label=BEYOND)
    axes.set_ylim(top=top)


def whole_numbers(axis: "Axis") -> None:
    """Puts ticks at whole numbers alone."""
    locator: Any = axis.get_major_locator()
    locator.set_params(integer=True)


def percent_ticks(axes: "Axes") -> None:
    """Labels a logarithmic y axis of percentages at 0.5, 1, 2, 5, ... within its limits."""
    low, high = axes.get_ylim()
    ticks(axes.yaxis, [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high])


def log_if_wide(axes: "Axes", values: Sequence[float]) -> None:
    """Makes the x axis logarithmic, with plain numbers, if all values are positive and span more than a factor of 5."""
    if min(values) > 0 and max(values) > 5 * min(values):
        axes.set_xscale("log")
        if len(set(values)) > MOST_TICKS:
            plain_numbers(axes.xaxis)
        else:
            ticks(axes.xaxis, values)


def heat_map(
    axes: "Axes",
    values: Sequence[Sequence[float]],
    *,
    best: Literal["max", "min"],
    marked: tuple[int, int] | None,
    label: str,
) -> None:
    """Draws a table of numbers as colours, brighter for better ones, with each number in its cell.

    Args:
      axes: the axes to draw on.
      values: [rows, columns], from the bottom up; NaN leaves a cell empty.
      best: which values are better.
      marked: row and column of a cell that gets a frame.
      label: name of the quantity.
    """
    from matplotlib.patches import Rectangle

    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis" if best == "max" else "viridis_r")
    colours = image.to_rgba(np.asarray(values))
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if np.isfinite(value):
                red, green, blue, _ = colours[row, column]
                colour = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
                axes.text(column, row, f"{value:.4g}", ha="center", va="center", color=colour)
    if marked is not None:
        corner = (marked[1] - 0.5, marked[0] - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=3))
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, label=label)
