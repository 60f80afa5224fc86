"""The common style and sizes of figures, and how they are written."""

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.whole_files import replacing

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported only to draw

# Okabe and Ito's colour-blind-safe palette, without the yellow that vanishes on white. Markers tell the curves apart
# in grey, line styles beyond seven runs.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FORMATS = (".png", ".pdf", ".svg")
COLUMN_INCHES = {1: 3.25, 2: 6.75}  # width of one column of a page of a paper, and of both
MOST_PLAIN = 1e5  # logarithmic axes that end below it have plain numbers, the others powers of ten
DPI, MOST_DPI = 200, 2400  # dots per inch
ROOM = 30  # characters of all ticks beside each other
STYLE: Any = {
    "font.size": 8,  # of all text, which is printed as large as it is drawn
    "axes.titlesize": "medium",
    "figure.titlesize": "medium",
    "pdf.fonttype": 42,  # letters that publishers take, TrueType
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
}


@contextlib.contextmanager
def new_figure(
    width: float, height: float, *, columns: int | None = None, math: bool = True, **options: Any
) -> Iterator["Figure"]:
    """Yields an empty figure of this size in inches, to which the block adds panels and curves in the common style.

    Args:
      width: inches.
      height: inches.
      columns: 1 or 2, for the width of as many columns of a page in place of ``width``; None for ``width``.
      math: whether text between two dollar signs is a formula; False if users' names are drawn. Numbers at the axes do
        not change.
      **options: arguments of matplotlib's Figure, such as dpi; the layout is "constrained" unless they say otherwise.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(COLUMN_INCHES[columns] if columns else width, height), **{"layout": "constrained", **options}
        )
        yield figure
    if not math:
        axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
        numbers = {text for axis in axes for text in axis.findobj(Text)} - {axis.label for axis in axes}
        for text in figure.findobj(Text):
            if text not in numbers:
                text.set_parse_math(False)


def ticks(axis: "Axis", values: Iterable[float], name: Callable[[float], str] | None = None) -> None:
    """Puts ticks where the points are and nowhere else; of many, every few, so that their names have room.

    Args:
      axis: an axis, whose scale is set.
      values: the points, in any order; there may be none.
      name: a value -> its name; by default a plain number, or one of millions.
    """
    from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator

    millions = EngFormatter(sep="")
    name = name or (lambda value: f"{value:,g}" if value < 1e6 else millions(float(f"{value:.2g}")))
    points = sorted(set(values))
    axis.set_major_locator(FixedLocator(points, nbins=max(2, ROOM // max(map(len, map(name, points)), default=1))))
    axis.set_major_formatter(lambda value, _: name(value))
    axis.set_minor_locator(NullLocator())


def plain_numbers(axis: "Axis") -> None:
    """Writes plain numbers in place of powers of ten on a logarithmic axis, whose limits are set, that ends below 1e5.

    Besides powers of ten, it names the numbers that begin with 2, 3 and 5 on an axis of less than two decades.
    """
    low, high = sorted(axis.get_view_interval())
    if high < MOST_PLAIN:
        axis.set_major_formatter("{x:,g}")
        begins = "23456789" if high < 3 * low else "235" if high < 100 * low else ""
        axis.set_minor_formatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in begins else "")


def add_size(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that set the width and the resolution of a figure."""
    said = "width of the figure: one or two columns of a page (default: by what it shows)"
    parser.add_argument("--columns", type=int, choices=[*COLUMN_INCHES], help=said)
    parser.add_argument("--dpi", type=_dpi, default=DPI, help=f"dots per inch of a .png (default: {DPI})")


def _dpi(text: str) -> int:
    if not 1 <= (dpi := int(text)) <= MOST_DPI:
        raise argparse.ArgumentTypeError(f"{dpi}: must be in [1, {MOST_DPI}]")
    return dpi


def save(figure: "Figure", path: Path, **options: Any) -> None:
    """Writes a figure to a file atomically; the file's ending gives the format.

    Args:
      figure: the figure.
      path: the file.
      **options: arguments of ``savefig``, such as dpi.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE), replacing(path.resolve()) as file:  # a link stays one
        figure.savefig(file, format=path.suffix[1:] or "png", **options)
