"""Draws curves of one or several runs.

    python -m experiments.plot FOLDER... [--x=step] [--y=loss,accuracy] [--columns=2] [--out=curves.png]

With `--gantt=FIRST:LAST`, it draws the activity of each worker in these steps instead, and with `--labels` which
classes each worker has.

A FOLDER belongs to a run, finished or not, or has runs below it, as the folder of a sweep does. Train records are drawn
as a thin line, evaluation records as a thick one with markers; a cross marks where the numbers stop being finite, or
exceed 1e100. Runs that differ in their seed alone are one curve, their mean, with a band of one standard deviation.
Each quantity has a panel. `--y="cosine/*"` draws a reducer's telemetry of groups of leaves: a panel for each curve,
with the model as a thick line and the groups as thin ones.
"""

import fnmatch
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from experiments.plots import drawing, gantt, labels
from experiments.plots.drawing import REFERENCE, Figure, look, new_figure
from experiments.study.run import range_of
from launch.output import printable
from launch.parser import Parser
from reducers.registry import suggest
from runs import saved_runs
from runs.errors import one_line
from runs.reporting.figures import FORMATS, add_size
from runs.reporting.progress import counted
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
INCHES = (3.25, 2.5)  # size of a panel
PANELS_IN_A_ROW = 3  # unless the columns of a page are counted, each of which has one
MAX_NAMED = 12  # groups of leaves that have a colour and a name each; more look alike
DIVERGED = 10  # times the least loss at a beginning; axes end below
MOST_RUNS = 1000  # reading them takes seconds

EVALUATION: dict[str, Any] = {
    "linewidth": 1.8,
    "markersize": 6,
    "markeredgecolor": "white",
    "markeredgewidth": 0.7,
    "zorder": 3,
}

MODEL: dict[str, Any] = {"color": "#000000", "linewidth": 1.8, "zorder": 3}  # among its groups of leaves

Records = Sequence[Mapping[str, Any]]


class Curve(NamedTuple):
    """Runs that differ in their seed alone.

    Attributes:
        mean: records with the means over the runs; for one run, its own records.
        band: records with the mean less and plus one standard deviation, one for each of `mean`; empty for one run.
        split: the split of the data that is evaluated; "" if nothing says so.
    """

    mean: Records
    band: Records = ()
    split: str = ""


def draw(
    curves: Mapping[str, Curve], *, x: X = "step", y: Sequence[str] = DEFAULT_Y, columns: int | None = None
) -> Figure:
    """Returns a figure of curves.

    Args:
        curves: label -> the curve, whose records have "kind" ("train" or "eval"), `x` and some of `y`.
        x: the quantity along the axis; many seconds turn into minutes or hours.
        y: the quantities, one panel each; logarithmic where all values are positive and span more than a factor of 50.
            A pattern such as "cosine/*" has one panel for each curve, with "cosine" and all that match.
        columns: 1 or 2, for a figure as wide as so many columns of a page, with as many panels in a row.

    Returns:
        The figure.

    Raises:
        ValueError: one line, for a quantity that the records do not hold, and for more curves or panels than a
            reader can tell apart.

    >>> records = [{"kind": "train", "step": step, "loss": 1 / (1 + step)} for step in range(10)]
    >>> len(draw({"a run": Curve(records)}, y=["loss"]).axes)
    1
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    numbers = {label: _numbers(curve.mean) for label, curve in curves.items()}
    curves = {label: curve._replace(mean=numbers[label]) for label, curve in curves.items()}
    _check(curves, x=x, y=y)
    unit, per_unit = _time_unit(curves, x=x)
    for record in itertools.chain(*numbers.values()):
        if x in record:
            record[x] /= per_unit
    panels = [(quantity, label) for quantity in y for label in (curves if "*" in quantity else [None])]
    drawing.check_panels(len(panels))
    rows = math.ceil(len(panels) / (columns or PANELS_IN_A_ROW))
    in_a_row = math.ceil(len(panels) / rows)
    width, height = INCHES[0] * in_a_row, INCHES[1] * rows
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    with new_figure(width, height, columns=columns, math=False, layout=layout) as figure:
        looks = _group_looks(curves, y)
        entries = _legend_entries(curves, y=y, looks=looks)
        places = list(figure.subplots(rows, in_a_row, squeeze=False).flat)
        first: dict[str, Axes] = {}
        for axes, (quantity, label) in zip(places, panels, strict=False):
            if label is None:
                _draw_panel(axes, curves, x=x, y=quantity)
            else:
                axes.sharey(first.setdefault(quantity, axes))  # curves are compared
                _draw_groups(axes, curves, label=label, x=x, y=quantity, looks=looks)
            axes.set_xlabel(f"{X_LABELS[x]}{unit}")
        for axes in places[len(panels) :]:
            axes.remove()
        crosses = [line for axes in figure.axes for line in axes.lines if line.get_label() == drawing.BEYOND]
        drawing.legend_across(figure, [*entries, *crosses[:1]])
    return figure


def _draw_panel(axes: "Axes", curves: Mapping[str, Curve], *, x: X, y: str) -> None:
    """Draws one quantity of all curves; the band is that of the evaluations, or of training if there are none."""
    for position, curve in enumerate(curves.values()):
        looks = look(position)
        colour = looks["color"]
        training = _points(curve, kinds=["train"], x=x, y=y)
        evaluations = _points(curve, kinds=["eval"], x=x, y=y)
        if training.xs:
            axes.plot(training.xs, training.ys, **looks | {"marker": None}, linewidth=0.8, alpha=0.45, zorder=2)
            _mark_end_of_numbers(axes, training, colour=colour)
        if evaluations.xs:
            every = max(1, len(evaluations.xs) // 15)
            axes.plot(evaluations.xs, evaluations.ys, **looks, markevery=every, **EVALUATION)
            _mark_end_of_numbers(axes, evaluations, colour=colour)
        _draw_band(axes, evaluations if evaluations.xs else training, colour=colour)
    _scale_axes(axes, curves, x=x, y=y, drawn=[y])


def _draw_groups(
    axes: "Axes", curves: Mapping[str, Curve], *, label: str, x: X, y: str, looks: Mapping[str, dict[str, Any]]
) -> None:
    """Draws a quantity of the groups of leaves of one curve as thin lines, and that of its model as a thick one."""
    model, groups = _metric(y), _matching(curves, y)
    for quantity in [*groups, model]:
        how = looks.get(quantity.partition("/")[2], MODEL)
        # Evaluations have the telemetry of the step before them.
        points = _points(curves[label], kinds=("train", "eval"), x=x, y=quantity)
        axes.plot(points.xs, points.ys, **how)
        _mark_end_of_numbers(axes, points, colour=how["color"])
        if quantity == model:
            _draw_band(axes, points, colour=how["color"])
    _scale_axes(axes, curves, x=x, y=model, drawn=[model, *groups])
    if len(curves) > 1:
        axes.set_title(drawing.name(label))


def _metric(y: str) -> str:
    """Returns the quantity of the model to which that of a group, or a pattern of those, belongs."""
    return y.partition("/")[0]


def _matching(curves: Mapping[str, Curve], pattern: str) -> list[str]:
    """Returns the quantities of groups of leaves that match a pattern such as "cosine/Dense_*"."""
    found = _quantities(curves)
    if _metric(pattern) not in found:
        return []
    return sorted(key for key in found if fnmatch.fnmatchcase(key, pattern))


def _quantities(curves: Mapping[str, Curve]) -> set[str]:
    return {key for record in _records(curves) for key in record} - {"kind", "step"}


def _records(curves: Mapping[str, Curve]) -> Iterator[Mapping[str, Any]]:
    """Yields the means of all curves."""
    return itertools.chain.from_iterable(curve.mean for curve in curves.values())


def _group_looks(curves: Mapping[str, Curve], y: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the group of leaves -> look, the same in all panels; many groups look alike."""
    quantities = [found for pattern in y if "*" in pattern for found in _matching(curves, pattern)]
    groups = sorted({quantity.partition("/")[2] for quantity in quantities})
    if len(groups) > MAX_NAMED:
        return {group: {"color": REFERENCE["color"], "linewidth": 0.6, "alpha": 0.4} for group in groups}
    return {group: look(i) | {"marker": "", "linewidth": 0.8} for i, group in enumerate(groups)}


class _Points(NamedTuple):
    """A curve: its x and y, NaN where y is not finite, and the ends of its band, if it has one."""

    xs: list[float]
    ys: list[float]
    ends: list[tuple[float, float]]


def _points(curve: Curve, *, kinds: Sequence[str], x: X, y: str) -> _Points:
    """Returns the points of the records of some kinds that have both quantities."""
    points = _Points([], [], [])
    for i, record in enumerate(curve.mean):
        if record["kind"] in kinds and y in record and _drawn(record, x):
            points.xs.append(record[x])
            points.ys.append(record[y])
            if curve.band:
                points.ends.append(curve.band[i].get(y, (math.nan, math.nan)))
    return points


def _draw_band(axes: "Axes", points: _Points, *, colour: str) -> None:
    if points.ends:
        low, high = zip(*points.ends, strict=True)
        axes.fill_between(points.xs, low, high, color=colour, alpha=0.2, linewidth=0)


def _scale_axes(axes: "Axes", curves: Mapping[str, Curve], *, x: X, y: str, drawn: Sequence[str]) -> None:
    """Sets the scales and number formats that suit the quantities of all panels, and labels the y axis."""
    from matplotlib import ticker

    values = [record[quantity] for record in _records(curves) for quantity in drawn if _drawn(record, quantity)]
    within = [value for value in values if value <= _diverged(curves, y)] if y.endswith("loss") else values
    if y.endswith("accuracy"):
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, decimals=None))
    elif within and min(within) > 0 and max(within) > 50 * min(within):
        axes.set_yscale("log")
    if len(within) < len(values):
        drawing.end_at(axes, 1.05 * max(within), marked="first")
    if axes.get_yscale() == "log":
        drawing.plain_numbers(axes.yaxis)
    if x in ("step", "examples") and _largest(curves, x) >= 10_000:
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.set_ylabel(drawing.name(_y_label(y)))
    axes.margins(x=0.02)


def _diverged(curves: Mapping[str, Curve], y: str) -> float:
    """Returns the loss beyond which a curve has diverged, a multiple of the least one that a curve begins with."""
    begins = [record for curve in curves.values() for record in [*filter(lambda one: _drawn(one, y), curve.mean)][:1]]
    least = min((record[y] for record in begins), default=0.0)
    return DIVERGED * least if least > 0 else math.inf


def _mark_end_of_numbers(axes: "Axes", points: _Points, *, colour: str) -> None:
    """Draws a cross at the last finite point before a value that is not finite, which shows divergence."""
    pairs = itertools.pairwise(zip(points.xs, points.ys, strict=True))
    for (x, y), (_, following) in pairs:
        if math.isnan(following) and not math.isnan(y):
            axes.plot(x, y, "x", color=colour, markersize=11, markeredgewidth=2, zorder=4)


def _legend_entries(
    curves: Mapping[str, Curve], *, y: Sequence[str], looks: Mapping[str, dict[str, Any]]
) -> "list[Artist]":
    """Returns legend entries of the runs, groups of leaves, thin and thick lines, bands and crosses that appear."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Artist] = []
    plain = {quantity for quantity in y if "*" not in quantity}
    patterns = [quantity for quantity in y if "*" in quantity]
    shown = set(plain)
    for pattern in patterns:
        shown.update([_metric(pattern), *_matching(curves, pattern)])
    kinds = {record["kind"] for record in _records(curves) if plain & record.keys()}
    grey = REFERENCE["color"]
    for position, label in enumerate(curves if plain else []):
        how = look(position)
        if "eval" not in kinds:
            how["marker"] = ""
        entries.append(Line2D([], [], **how, label=drawing.name(label), **EVALUATION))
    if len(kinds) > 1:
        entries.append(Line2D([], [], color=grey, linewidth=0.8, label="training"))
        entries.append(Line2D([], [], color=grey, marker="o", label=_evaluation(curves), **EVALUATION))
    if patterns:
        entries.append(Line2D([], [], **MODEL, label="model"))
        if len(looks) > MAX_NAMED:
            looks = {f"each of {len(looks)} groups": next(iter(looks.values()))}
        entries += [Line2D([], [], **how, label=drawing.name(group)) for group, how in looks.items()]
    if any(curve.band for curve in curves.values()):
        entries.append(Patch(color=grey, alpha=0.2, linewidth=0, label="± one standard deviation"))
    if any(not _drawn(record, quantity) for record in _records(curves) for quantity in shown & record.keys()):
        cross = Line2D([], [], color=grey, linestyle="", marker="x", markeredgewidth=2, label="not finite after this")
        entries.append(cross)
    return entries


def _evaluation(curves: Mapping[str, Curve]) -> str:
    splits = sorted({curve.split for curve in curves.values()} - {""})
    return f"evaluation ({' and '.join(splits)} split)" if splits else "evaluation"


def _numbers(records: Records) -> list[dict[str, Any]]:
    """Returns the records with their kind and their numbers alone, NaN in place of one that cannot be drawn."""
    found = []
    for record in records:
        kept = {"kind": record["kind"]}
        for key, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                kept[key] = value if drawing.is_drawn(value) else math.nan
        found.append(kept)
    return found


def _drawn(record: Mapping[str, Any], key: str) -> bool:
    return not math.isnan(record.get(key, math.nan))


def _largest(curves: Mapping[str, Curve], x: str) -> float:
    return max((record[x] for record in _records(curves) if _drawn(record, x)), default=0)


def _time_unit(curves: Mapping[str, Curve], *, x: X) -> tuple[str, float]:
    """Returns the unit for the label, and how many seconds it has (1 if x is not a time)."""
    if not x.endswith("_seconds"):
        return "", 1.0
    largest = _largest(curves, x)
    if largest >= 7200:
        return " (h)", 3600.0
    return (" (min)", 60.0) if largest >= 300 else (" (s)", 1.0)


def _y_label(y: str) -> str:
    words = y.replace("_", " ")
    if _metric(y) == "noise_scale":
        return f"{words} (examples)"
    return f"{words.removesuffix(' seconds')} (s)" if y.endswith("_seconds") else words


def _check(curves: Mapping[str, Curve], *, x: str, y: Sequence[str]) -> None:
    if len(curves) > drawing.MOST_CURVES:
        raise ValueError(f"{len(curves)} curves: a figure has at most {drawing.MOST_CURVES}; name fewer folders")
    if x not in X_LABELS:
        raise ValueError(f"x={x!r}: must be one of {', '.join(X_LABELS)}")
    known = sorted(_quantities(curves))
    for quantity in y or [""]:
        if quantity in known or ("*" in quantity and _matching(curves, quantity)):
            continue
        raise ValueError(f"y={quantity!r}: not in the records; {suggest(quantity, known)}")
    for label, curve in curves.items():
        if not any(_drawn(record, x) for record in curve.mean):
            raise ValueError(f"x={x!r}: not in the records of {label}")
        if x == "simulated_seconds" and not any(record.get(x) for record in curve.mean):
            raise ValueError(f"x={x!r}: is 0 throughout in {label}, which had no arrival model")


def over_seeds(runs: Sequence[Records]) -> Curve:
    """Returns the means, and the bands of one standard deviation, of runs at the steps that all of them have recorded.

    >>> one, other = ([{"kind": "eval", "step": 4, "loss": loss}] for loss in (1.0, 3.0))
    >>> over_seeds([one, other]).mean
    [{'kind': 'eval', 'step': 4, 'loss': 2.0}]
    """
    if len(runs) == 1:
        return Curve(runs[0])
    numbers = [_numbers(run) for run in runs]
    every = list(itertools.chain(*numbers))
    keys = {key for record in every for key in record} - {"kind", "step"}
    ranges = {key: range_of(key, (record[key] for record in every if _drawn(record, key))) for key in keys}
    first, *others = [{(record["kind"], record["step"]): record for record in run} for run in numbers]
    mean, band = [], []
    for place, record in first.items():
        if not all(place in other for other in others):
            continue
        records = [record, *(other[place] for other in others)]
        means, ends = {"kind": record["kind"], "step": record["step"]}, {}
        for key in record:
            if key in keys and all(key in each for each in records):
                values = [each[key] for each in records]
                average, std = float(np.mean(values)), float(np.std(values, ddof=1))
                low, high = ranges[key]
                means[key] = average
                ends[key] = max(average - std, low), min(average + std, high)
        mean.append(means)
        band.append(ends)
    return Curve(mean, band)


def curves(runs: Mapping[str, SavedRun]) -> dict[str, Curve]:
    """Returns label -> curve, with one curve for runs that differ in their seed alone."""
    groups = saved_runs.by_seed({run: saved.config for run, saved in runs.items()})
    if len(groups) == len(runs):
        names = saved_runs.labels({run: saved.config for run, saved in runs.items()})
        return {names[run]: Curve(saved.records, split=_split(saved)) for run, saved in runs.items()}
    configs = {group[0]: runs[group[0]].config for group in groups}
    names = saved_runs.labels({run: config and saved_runs.without_seed(config) for run, config in configs.items()})
    found = {}
    for group in groups:
        count = counted(len(group), "seed")
        name = f"{names[group[0]]} ({count})" if len(groups) > 1 else f"mean over {count}"
        if len(group) == 1:
            name = names[group[0]]
        over = over_seeds([runs[run].records for run in group])
        found[name] = over._replace(split=_split(runs[group[0]]))
    return found


def _split(saved: SavedRun) -> str:
    data = (saved.config or {}).get("data")
    return data.get("evaluate_on", "test") if data else ""


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
    """Yields each folder of a run, and the runs below other folders; a folder without any run is yielded, too."""
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
        "--y", help="quantities, separated by commas (default: loss,accuracy); 'cosine/*' has groups of leaves"
    )
    parser.add_argument("--gantt", metavar="FIRST:LAST", help="draw what each worker does in these steps")
    parser.add_argument("--labels", action="store_true", help="draw which classes each worker has")
    parser.add_argument("--out", default="curves.png", help="the figure: .png, .pdf or .svg (default: curves.png)")
    add_size(parser)
    try:
        arguments = parser.parse_args(argv)
        columns = arguments.columns
        out = Path(arguments.out).expanduser()
        if out.suffix not in FORMATS:
            raise ValueError(f"out={arguments.out!r}: must end in {', '.join(FORMATS)}")
        if not out.parent.is_dir():
            raise ValueError(f"out={arguments.out!r}: no such folder as {str(out.parent)!r}")
        found, notes = find(arguments.runs)
        said = counted(len(found), "run")
        names = saved_runs.labels({run: saved.config for run, saved in found.items()})
        named = {names[run]: saved for run, saved in found.items()}
        if arguments.gantt is not None:
            figure, said = (
                gantt.of_runs(named, steps=arguments.gantt, columns=columns),
                f"steps {arguments.gantt} of {said}",
            )
        elif arguments.labels:
            figure, said = labels.of_runs(named, columns=columns), f"the workers' classes of {said}"
        else:
            drawn = curves(found)
            if arguments.y is None:
                recorded = _quantities(drawn)
                y = [quantity for quantity in DEFAULT_Y if quantity in recorded]
            else:
                y = list(dict.fromkeys(arguments.y.split(",")))
            figure = draw(drawn, x=arguments.x, y=y, columns=columns)
            said = f"{', '.join(y)} against {arguments.x} of {said}"
            if len(drawn) < len(found):
                said += f" in {counted(len(drawn), 'curve')}"
        drawing.save(figure, out, dpi=arguments.dpi)
    except (ValueError, OSError) as error:
        print(f"plot: {one_line(str(error))}", file=sys.stderr)
        return 2
    for note in notes:
        print(f"plot: {one_line(note)}", file=sys.stderr)
    print(printable(f"{out}: {said}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
