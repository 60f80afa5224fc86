"""Draws curves of one or several runs.

    python -m experiments.plot FOLDER... [--x=step] [--y=loss,accuracy] [--out=curves.png]

With `--gantt=FIRST:LAST`, it draws the activity of each worker in these steps instead, and with `--labels` which
classes each worker has.

A FOLDER is that of a run, finished or not, or one with runs below it, such as that of a sweep. Train records are drawn
as a thin line, evaluation records as a thick one with markers; a cross marks where the numbers stop being finite, or
exceed 1e100. Runs that differ in their seed alone are one curve, their mean, with a band of one standard deviation.
Each quantity has a panel. `--y="cosine/*"` draws what a reducer's telemetry records of groups of leaves: a panel for
each curve, with the model as a thick line and the groups as thin ones.
"""

import difflib
import fnmatch
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from experiments.plots import drawing, gantt, labels
from experiments.plots.drawing import FORMATS, REFERENCE, Figure, look, new_figure
from experiments.study.run import range_of
from launch.output import printable
from launch.parser import Parser
from runs import saved_runs
from runs.errors import one_line
from runs.saved_runs import SavedRun

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

X = Literal["step", "epoch", "examples", "wall_seconds", "simulated_seconds"]
X_LABELS: dict[str, str] = {
    "step": "step (updates)",
    "epoch": "epoch",
    "examples": "examples",
    "wall_seconds": "wall time",
    "simulated_seconds": "simulated time",
}
DEFAULT_Y = ("loss", "accuracy")
INCHES = (4.2, 3.1)  # of a panel
PANELS_IN_A_ROW = 3
MAX_NAMED = 12  # groups of leaves with a colour and a name each
MOST_RUNS = 1000  # that are read, which takes seconds
MAX_NOTES = 5  # lines about folders that are not drawn

EVALUATION: dict[str, Any] = {
    "linewidth": 1.8,
    "markersize": 6,
    "markeredgecolor": "white",
    "markeredgewidth": 0.7,
    "zorder": 3,
}

MODEL: dict[str, Any] = {"color": "#000000", "linewidth": 1.8, "zorder": 3}  # beside its groups of leaves

Records = Sequence[Mapping[str, Any]]


class Curve(NamedTuple):
    """Runs that differ in their seed alone.

    Attributes:
        mean: records, each with the means over the runs; the records of the run where it is one.
        band: records with the mean less and plus one standard deviation, one for each of `mean`; empty for one run.
    """

    mean: Records
    band: Records = ()


def draw(
    runs: Mapping[str, Records],
    *,
    x: X = "step",
    y: Sequence[str] = DEFAULT_Y,
    bands: Mapping[str, Records] = MappingProxyType({}),
) -> Figure:
    """Returns a figure of records.

    Args:
        runs: label of a run -> its records, each with "kind" ("train" or "eval"), `x` and some of `y`.
        x: the quantity along the axis; seconds turn into minutes or hours where there are many.
        y: the quantities, one panel each; logarithmic where all values are positive and span more than a factor of 50.
            A pattern such as "cosine/*" has one panel for each run, with "cosine" and all that match.
        bands: label -> the lower and the upper end of a band around the curve, one record for each of the run's.

    Returns:
        The figure.

    Raises:
        ValueError: one line, for a quantity that the records do not hold, and for more curves or panels than can be
            told apart.

    >>> records = [{"kind": "train", "step": step, "loss": 1 / (1 + step)} for step in range(10)]
    >>> len(draw({"a run": records}, y=["loss"]).axes)
    1
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    _check(runs, x=x, y=y)
    panels = [(q, label) for q in y for label in (runs if "*" in q else [None])]
    drawing.check_panels(len(panels))
    rows = math.ceil(len(panels) / PANELS_IN_A_ROW)
    columns = math.ceil(len(panels) / rows)
    width, height = INCHES[0] * columns, INCHES[1] * rows
    with new_figure(width, height, math=False, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)) as figure:
        looks = _group_looks(runs, y)
        entries = _legend_entries(runs, y=y, looks=looks, has_band=bool(bands))
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        first: dict[str, Axes] = {}
        for axes, (quantity, label) in zip(places, panels, strict=False):
            if label is None:
                _draw_panel(axes, runs, bands, x=x, y=quantity)
                continue
            axes.sharey(first.setdefault(quantity, axes))  # runs are compared
            _draw_groups(axes, runs, bands, label=label, x=x, y=quantity, looks=looks)
        for axes in places[len(panels) :]:
            axes.remove()
        drawing.legend_across(figure, entries)
    return figure


def _draw_panel(axes: "Axes", runs: Mapping[str, Records], bands: Mapping[str, Records], *, x: X, y: str) -> None:
    """Draws one quantity of all runs."""
    _, per_unit = _time_unit(runs, x=x)
    for position, (label, run) in enumerate(runs.items()):
        looks = look(position)
        for kind in ("train", "eval"):
            points = _points(run, bands.get(label, ()), kinds=(kind,), x=x, y=y, per_unit=per_unit)
            if not points.xs:
                continue
            if kind == "train":
                axes.plot(points.xs, points.ys, **looks | {"marker": None}, linewidth=0.8, alpha=0.45, zorder=2)
            else:
                axes.plot(points.xs, points.ys, **looks, markevery=max(1, len(points.xs) // 15), **EVALUATION)
            _mark_end_of_numbers(axes, points, colour=looks["color"])
            if kind == "train" and any(r["kind"] == "eval" and _number(r, y) for r in run):
                continue  # the band is that of the evaluations
            _draw_band(axes, points, colour=looks["color"])
    _label_axes(axes, runs, x=x, y=y, drawn=[y])


def _draw_groups(
    axes: "Axes",
    runs: Mapping[str, Records],
    bands: Mapping[str, Records],
    *,
    label: str,
    x: X,
    y: str,
    looks: Mapping[str, dict[str, Any]],
) -> None:
    """Draws a quantity of the groups of leaves of one run as thin lines, and that of its model as a thick one."""
    model, groups = _metric(y), _matching(runs, y)
    _, per_unit = _time_unit(runs, x=x)
    for quantity in [*groups, model]:
        how = looks.get(quantity.partition("/")[2], MODEL)
        band = bands.get(label, ()) if quantity == model else ()
        # Evaluations have the telemetry of the step before them.
        points = _points(runs[label], band, kinds=("train", "eval"), x=x, y=quantity, per_unit=per_unit)
        axes.plot(points.xs, points.ys, **how)
        _mark_end_of_numbers(axes, points, colour=how["color"])
        _draw_band(axes, points, colour=how["color"])
    _label_axes(axes, runs, x=x, y=model, drawn=[model, *groups])
    if len(runs) > 1:
        axes.set_title(drawing.name(label), fontsize="medium")


def _metric(y: str) -> str:
    """Returns the quantity of the model to which that of a group, or a pattern of those, belongs."""
    return y.partition("/")[0]


def _matching(runs: Mapping[str, Records], pattern: str) -> list[str]:
    """Returns the quantities of groups of leaves that match a pattern such as "cosine/Dense_*"."""
    found = {key for run in runs.values() for r in run for key in r if _number(r, key)}
    return sorted(key for key in found if _metric(pattern) in found and fnmatch.fnmatchcase(key, pattern))


def _group_looks(runs: Mapping[str, Records], y: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the group of leaves -> look, the same in all panels; where there are many, they look alike."""
    quantities = [found for pattern in y if "*" in pattern for found in _matching(runs, pattern)]
    groups = sorted({quantity.partition("/")[2] for quantity in quantities})
    if len(groups) > MAX_NAMED:
        return {group: {"color": REFERENCE["color"], "linewidth": 0.6, "alpha": 0.4} for group in groups}
    return {group: look(i) | {"marker": "", "linewidth": 0.8} for i, group in enumerate(groups)}


class _Points(NamedTuple):
    """A curve: its x and y, NaN where y is not finite, and the ends of its band, if it has one."""

    xs: list[float]
    ys: list[float]
    ends: list[tuple[float, float]]


def _points(run: Records, band: Records, *, kinds: Sequence[str], x: X, y: str, per_unit: float) -> _Points:
    """Returns the points of the records of some kinds that have both quantities."""
    chosen = [i for i, r in enumerate(run) if r["kind"] in kinds and _drawn(r, x) and _number(r, y)]
    return _Points(
        [run[i][x] / per_unit for i in chosen],
        [run[i][y] if _drawn(run[i], y) else math.nan for i in chosen],
        [band[i].get(y, (math.nan, math.nan)) for i in chosen] if band else [],
    )


def _draw_band(axes: "Axes", points: _Points, *, colour: str) -> None:
    if points.ends:
        low, high = zip(*points.ends, strict=True)
        axes.fill_between(points.xs, low, high, color=colour, alpha=0.2, linewidth=0)


def _label_axes(axes: "Axes", runs: Mapping[str, Records], *, x: X, y: str, drawn: Sequence[str]) -> None:
    """Names the axes, and scales them by the quantities that are drawn in any run."""
    from matplotlib import ticker

    values = [r[q] for run in runs.values() for r in run for q in drawn if _drawn(r, q)]
    if y.endswith("accuracy"):
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, decimals=None))
    elif values and min(values) > 0 and max(values) > 50 * min(values):
        axes.set_yscale("log")
    largest = max((r[x] for run in runs.values() for r in run if _drawn(r, x)), default=0)
    if x in ("step", "examples") and largest >= 10_000:
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.set_xlabel(f"{X_LABELS[x]}{_time_unit(runs, x=x)[0]}")
    axes.set_ylabel(drawing.name(_y_label(y)))
    axes.margins(x=0.02)


def _mark_end_of_numbers(axes: "Axes", points: _Points, *, colour: str) -> None:
    """Draws a cross at the last finite point before a value that is not finite, which shows divergence."""
    xs, ys, _ = points
    for i in range(1, len(ys)):
        if math.isnan(ys[i]) and not math.isnan(ys[i - 1]):
            axes.plot(xs[i - 1], ys[i - 1], "x", color=colour, markersize=11, markeredgewidth=2, zorder=4)


def _legend_entries(
    runs: Mapping[str, Records], *, y: Sequence[str], looks: Mapping[str, dict[str, Any]], has_band: bool
) -> "list[Artist]":
    """Returns legend entries of the runs, groups of leaves, thin and thick lines, bands and crosses that appear."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Artist] = []
    of_runs, patterns = [q for q in y if "*" not in q], [q for q in y if "*" in q]
    shown = [*of_runs, *(quantity for p in patterns for quantity in (_metric(p), *_matching(runs, p)))]
    drawn = [r for run in runs.values() for r in run if any(_number(r, q) for q in of_runs)]
    evaluated = any(r["kind"] == "eval" for r in drawn)
    grey = REFERENCE["color"]
    for position, label in enumerate(runs if of_runs else []):
        of_run = look(position) | ({} if evaluated else {"marker": ""})
        entries.append(Line2D([], [], **of_run, label=drawing.name(label), **EVALUATION))
    if len({r["kind"] for r in drawn}) > 1:
        entries.append(Line2D([], [], color=grey, linewidth=0.8, label="training"))
        entries.append(Line2D([], [], color=grey, marker="o", label="evaluation", **EVALUATION))
    if patterns:
        entries.append(Line2D([], [], **MODEL, label="model"))
        named = looks if len(looks) <= MAX_NAMED else {f"each of {len(looks)} groups": next(iter(looks.values()))}
        entries += [Line2D([], [], **how, label=drawing.name(group)) for group, how in named.items()]
    if has_band:
        entries.append(Patch(color=grey, alpha=0.2, linewidth=0, label="± one standard deviation"))
    if any(_number(r, q) and not _drawn(r, q) for run in runs.values() for r in run for q in shown):
        entries.append(
            Line2D([], [], color=grey, linestyle="", marker="x", markeredgewidth=2, label="not finite after this")
        )
    return entries


def _number(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), (int, float)) and not isinstance(record.get(key), bool)


def _drawn(record: Mapping[str, Any], key: str) -> bool:
    return _number(record, key) and drawing.is_drawn(record[key])


def _time_unit(runs: Mapping[str, Records], *, x: X) -> tuple[str, float]:
    """Returns the unit for the label, and how many seconds it has (1 where x is no time)."""
    if not x.endswith("_seconds"):
        return "", 1.0
    largest = max((r[x] for run in runs.values() for r in run if _drawn(r, x)), default=0)
    return (" (h)", 3600.0) if largest >= 7200 else (" (min)", 60.0) if largest >= 300 else (" (s)", 1.0)


def _y_label(y: str) -> str:
    if y.partition("/")[0] == "noise_scale":
        return f"{y.replace('_', ' ')} (examples)"
    return f"{y.removesuffix('_seconds').replace('_', ' ')} (s)" if y.endswith("_seconds") else y.replace("_", " ")


def _check(runs: Mapping[str, Records], *, x: str, y: Sequence[str]) -> None:
    if len(runs) > drawing.MOST_CURVES:
        raise ValueError(f"{len(runs)} curves: a figure has at most {drawing.MOST_CURVES}; name fewer folders")
    if x not in X_LABELS:
        raise ValueError(f"x={x!r}: must be one of {', '.join(X_LABELS)}")
    known = sorted({key for run in runs.values() for r in run for key in r if _number(r, key)} - {"step"})
    for quantity in y or [""]:
        if quantity not in known and not ("*" in quantity and _matching(runs, quantity)):
            near = difflib.get_close_matches(quantity, known, n=1)
            listed = ", ".join(key for key in known if _metric(key) not in known or "/" not in key)
            hint = f"did you mean {near[0]!r}?" if near else f"they hold {listed or 'nothing'}"
            raise ValueError(f"y={quantity!r}: not in the records; {hint}")
    for label, run in runs.items():
        if not any(_drawn(r, x) for r in run):
            raise ValueError(f"x={x!r}: not in the records of {label}")
        if x == "simulated_seconds" and not any(r.get(x) for r in run):
            raise ValueError(f"x={x!r}: is 0 throughout in {label}, which had no arrival model")


def over_seeds(runs: Sequence[Records]) -> Curve:
    """Returns the means, and the bands of one standard deviation, of runs at the steps that all of them have recorded.

    >>> one, other = ([{"kind": "eval", "step": 4, "loss": loss}] for loss in (1.0, 3.0))
    >>> over_seeds([one, other]).mean
    [{'kind': 'eval', 'step': 4, 'loss': 2.0}]
    """
    if len(runs) == 1:
        return Curve(runs[0])
    places = [{(record["kind"], record["step"]): record for record in run} for run in runs]
    keys = {key for record in runs[0] for key in record if _number(record, key)} - {"step"}
    ranges = {key: range_of(key, (r[key] for run in runs for r in run if _drawn(r, key))) for key in keys}
    mean, band = [], []
    for kind, step in places[0]:
        if not all((kind, step) in other for other in places):
            continue
        records = [other[kind, step] for other in places]
        means, ends = {}, {}
        for key in records[0]:
            if key in keys and all(_number(record, key) for record in records):
                values, (low, high), std = [record[key] for record in records], ranges[key], math.nan
                means[key] = math.nan
                if all(map(drawing.is_drawn, values)):
                    means[key], std = statistics.fmean(values), statistics.stdev(values)
                ends[key] = max(means[key] - std, low), min(means[key] + std, high)
        mean.append({"kind": kind, "step": step, **means})
        band.append(ends)
    return Curve(mean, band)


def curves(runs: Mapping[str, SavedRun]) -> dict[str, Curve]:
    """Returns label -> curve, with one curve for runs that differ in their seed alone."""
    groups = saved_runs.by_seed({run: saved.config for run, saved in runs.items()})
    if len(groups) == len(runs):
        names = saved_runs.labels({run: saved.config for run, saved in runs.items()})
        return {names[run]: Curve(saved.records) for run, saved in runs.items()}
    configs = {group[0]: runs[group[0]].config for group in groups}
    names = saved_runs.labels({run: config and saved_runs.without_seed(config) for run, config in configs.items()})
    found = {}
    for group in groups:
        name = names[group[0]] if len(groups) > 1 else "mean"
        count = f" ({len(group)} seeds)" if len(group) > 1 else ""
        found[f"{name}{count}"] = over_seeds([runs[run].records for run in group])
    return found


def find(folders: Sequence[str]) -> tuple[dict[str, SavedRun], list[str]]:
    """Returns the runs in some folders, and a line for each part that has nothing to draw, or has lost records.

    Raises:
        ValueError: one line, if a folder does not exist, none of them has a run to draw, or more have than are read in
            seconds.
    """
    found: dict[str, SavedRun] = {}
    errors: list[str] = []
    expanded = list(itertools.islice(_expanded(folders), MOST_RUNS + 1))
    if len(expanded) > MOST_RUNS:
        raise ValueError(f"more than {MOST_RUNS} runs: name fewer folders")
    for run in expanded:
        try:
            found[run] = saved_runs.read(run)
        except (ValueError, OSError) as error:
            errors.append(str(error).partition("\n")[0])
    if not found:
        raise ValueError(errors[0])
    lost = [f"{run}: {saved.lost}" for run, saved in found.items() if saved.lost]
    return found, [*(f"skipped: {error}" for error in errors), *lost]


def _expanded(folders: Sequence[str]) -> Iterator[str]:
    """Yields each folder that is a run, and the runs below each that is none; a folder without any is yielded, too."""
    for folder in dict.fromkeys(folders):
        path = Path(folder).expanduser()
        if not path.exists():
            raise ValueError(f"run={folder!r}: no such folder")
        if any((path / mark).exists() for mark in saved_runs.MARKS):
            yield folder
        else:
            yield from [str(run) for run in saved_runs.below(path)] or [folder]


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the figure that the command line asks for; returns the exit code."""
    parser = Parser(prog="python -m experiments.plot", description="Draws curves of runs.", allow_abbrev=False)
    parser.add_argument("runs", metavar="FOLDER", nargs="+", help="folder of a run, or one with runs below it")
    parser.add_argument("--x", default="step", help=f"one of {', '.join(X_LABELS)} (default: step)")
    parser.add_argument(
        "--y",
        help="quantities of the records, separated by commas (default: loss,accuracy); 'cosine/*' is that of each "
        "group of leaves",
    )
    parser.add_argument(
        "--gantt", metavar="FIRST:LAST", help="draw the activity of each worker in these steps, not curves"
    )
    parser.add_argument("--labels", action="store_true", help="draw which classes each worker has, not curves")
    parser.add_argument("--out", default="curves.png", help="the figure: .png, .pdf or .svg (default: curves.png)")
    try:
        arguments = parser.parse_args(argv)
        out = Path(arguments.out).expanduser()
        if out.suffix not in FORMATS:
            raise ValueError(f"out={arguments.out!r}: must end in {', '.join(FORMATS)}")
        if not out.parent.is_dir():
            raise ValueError(f"out={arguments.out!r}: no such folder as {str(out.parent)!r}")
        found, notes = find(arguments.runs)
        if arguments.gantt is not None or arguments.labels:
            names = saved_runs.labels({run: saved.config for run, saved in found.items()})
            drawn = {names[run]: saved for run, saved in found.items()}
            is_gantt = arguments.gantt is not None
            figure = gantt.of_runs(drawn, steps=arguments.gantt) if is_gantt else labels.of_runs(drawn)
            drawing.save(figure, out, dpi=drawing.DPI)
            said = f"steps {arguments.gantt}" if is_gantt else "the workers' classes"
            said += f" of {len(found)} run{'s' if len(found) > 1 else ''}"
        else:
            drawn_curves = curves(found)
            runs = {label: curve.mean for label, curve in drawn_curves.items()}
            recorded = {key for records in runs.values() for r in records for key in r}
            y = (
                [q for q in DEFAULT_Y if q in recorded]
                if arguments.y is None
                else [*dict.fromkeys(arguments.y.split(","))]
            )
            bands = {label: curve.band for label, curve in drawn_curves.items() if curve.band}
            drawing.save(draw(runs, x=arguments.x, y=y, bands=bands), out, dpi=drawing.DPI)
            said = f"{', '.join(y)} against {arguments.x} of {len(found)} run{'s' if len(found) > 1 else ''}"
            said += f" in {len(runs)} curve{'s' if len(runs) > 1 else ''}" if len(runs) < len(found) else ""
    except (ValueError, OSError) as error:
        print(f"plot: {one_line(str(error))}", file=sys.stderr)
        return 2
    for note in notes[:MAX_NOTES]:
        print(f"plot: {one_line(note)}", file=sys.stderr)
    if len(notes) > MAX_NOTES:
        print(f"plot: {len(notes) - MAX_NOTES} more lines like these", file=sys.stderr)
    print(printable(f"{out}: {said}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
