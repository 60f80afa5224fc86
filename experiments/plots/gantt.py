"""Gantt charts of the workers' activities in the time of a run, one panel per run."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.plots import timelines
from experiments.plots.drawing import COLOURS, Figure, is_drawn, legend_across, worker_panels
from experiments.plots.timelines import Span
from runs.saved_runs import SavedRun

# kind of a span -> its look
BARS: dict[str, dict[str, Any]] = {
    "computing": {"color": COLOURS[0], "label": "computing"},
    "dropped": {"color": COLOURS[1], "label": "computing, dropped"},
    "waiting": {"color": "#cccccc", "label": "waiting"},
}
MARK: dict[str, Any] = {"marker": "|", "color": "#000000", "linestyle": "", "label": "applied"}


def of_runs(runs: Mapping[str, SavedRun], *, steps: str, columns: int | None = None) -> "Figure":
    """Draws a range of steps of some runs.

    Args:
      runs: label of a run -> what its folder holds.
      steps: "FIRST:LAST", counted from 1.
      columns: as of `worker_panels`.

    Raises:
      ValueError: one line, if the range is not valid, or a run has no arrivals or no record of these steps.
    """
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", steps)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(f"gantt={steps[:40]!r}: must be FIRST:LAST, such as 1:10")
    drawn = {}
    for label, run in runs.items():
        try:
            drawn[label] = timelines.of_run(
                run.records, run.config, first_step=first, last_step=last, folder=run.folder
            )
        except ValueError as error:
            raise ValueError(f"run {label}: {error}") from None
        if not all(is_drawn(span.stop) for span in drawn[label]):
            raise ValueError(f"run {label}: has times beyond what can be drawn")
    return draw(drawn, columns=columns)


def draw(spans_of: Mapping[str, Sequence[Span]], *, columns: int | None = None) -> "Figure":
    """Draws a panel per run and a row per worker; all panels share one time axis.

    Args:
      spans_of: label of a run -> its spans.
      columns: as of `worker_panels`.

    Returns:
      The figure.

    >>> len(draw({"sync": [Span("computing", 0, 0.0, 2.0)], "async": [Span("applied", 0, 1.0, 1.0)]}).axes)
    2
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    num_workers = max(span.worker for spans in spans_of.values() for span in spans) + 1
    look: Any = {"row": 0.14, "columns": columns, "sharex": True}
    with worker_panels(list(spans_of), num_workers=num_workers, **look) as (figure, panels):
        for label, axes in panels.items():
            spans = spans_of[label]
            for kind, style in BARS.items():
                chosen = [span for span in spans if span.kind == kind]
                workers, starts = [span.worker for span in chosen], [span.start for span in chosen]
                axes.barh(workers, [s.stop - s.start for s in chosen], left=starts, height=0.8, linewidth=0, **style)
            applied = [span for span in spans if span.kind == "applied"]
            size = max(2.0, 0.7 * 72 * figure.get_figheight() / num_workers)
            axes.plot([s.stop for s in applied], [s.worker for s in applied], markersize=min(size, 9.0), **MARK)
            axes.set(xlabel="time (s)")
            axes.grid(visible=False, axis="y")
        bars = [Patch(**style) for style in BARS.values()]
        legend_across(figure, [*bars, Line2D([], [], **MARK)])
    return figure
