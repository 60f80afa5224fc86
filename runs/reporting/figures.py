"""The common style of figures, and how they are written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.whole_files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported only to draw

# Okabe and Ito's colour-blind-safe palette, without the yellow that vanishes on white. Markers tell the curves apart
# in grey, line styles beyond seven runs.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: Any = {
    "font.size": 10,
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
def new_figure(width: float, height: float, *, math: bool = True, **options: Any) -> Iterator["Figure"]:
    """Yields an empty figure of this size in inches, to which the block adds panels and curves in the common style.

    Args:
      width: inches.
      height: inches.
      math: whether text between two dollar signs is a formula; False if users' names are drawn. Numbers at the axes do
        not change.
      **options: arguments of matplotlib's Figure, such as dpi; the layout is "constrained" unless they say otherwise.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), **{"layout": "constrained", **options})
        yield figure
    if not math:
        axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
        numbers = {text for axis in axes for text in axis.findobj(Text)} - {axis.label for axis in axes}
        for text in figure.findobj(Text):
            if text not in numbers:
                text.set_parse_math(False)


def save(figure: "Figure", path: Path, **options: Any) -> None:
    """Writes a figure to a file atomically; the file's ending gives the format.

    Args:
      figure: the figure.
      path: the file.
      **options: arguments of ``savefig``, such as dpi.
    """
    with replacing(path.resolve()) as file:  # a link stays one
        figure.savefig(file, format=path.suffix[1:] or "png", **options)
