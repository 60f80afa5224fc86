"""Draws curves of one or several runs.

    python -m experiments.plot RUN... [--x=step] [--y=loss,accuracy] [--out=curves.png]

With `--gantt=FIRST:LAST`, it draws the activity of each worker in these steps by simulated time instead.

A RUN is the folder of a run, finished or not. Its train records are drawn as a thin line, its evaluation records as a
thick one with markers; a cross marks where the numbers stop being finite. Each quantity has a panel.
"""

import difflib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import runs as run_folders
from experiments import gantt
from experiments.drawing import FORMATS, REFERENCE, Figure, look, new_figure
from experiments.parsing import Parser
from runs import identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

X = Literal["step", "epoch", "examples", "wall_seconds", "simulated_seconds"]
X_LABELS: dict[str, str] = {
    "step": "step (server updates)",
    "epoch": "epoch",
    "examples": "examples",
    "wall_seconds": "wall time",
    "simulated_seconds": "simulated time",
}
DEFAULT_Y = ("loss", "accuracy")
INCHES = (4.2, 3.1)  # of a panel
PANELS_IN_A_ROW = 3
MAX_LABEL = 60  # characters; runs that need longer labels are named by their folders

EVALUATION: dict[str, Any] = {
    "linewidth": 1.8,
    "markersize": 6,
    "markeredgecolor": "white",
    "markeredgewidth": 0.7,
    "zorder": 3,
}

Records = Sequence[Mapping[str, Any]]


def draw(runs: Mapping[str, Records], *, x: X = "step", y: Sequence[str] = DEFAULT_Y) -> Figure:
    """Returns a figure of records.

    Args:
        runs: label of a run -> its records, each with "kind" ("train" or "eval"), `x` and some of `y`.
        x: the quantity along the axis; seconds turn into minutes or hours where there are many.
        y: the quantities, one panel each; logarithmic where all values are positive and span more than a factor of 50.

    Returns:
        The figure.

    Raises:
        ValueError: one line, for a quantity that the records do not hold.

    >>> records = [{"kind": "train", "step": step, "loss": 1 / (1 + step)} for step in range(10)]
    >>> len(draw({"a run": records}, y=["loss"]).axes)
    1
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    _check(runs, x=x, y=y)
    rows = math.ceil(len(y) / PANELS_IN_A_ROW)
    columns = math.ceil(len(y) / rows)
    width, height = INCHES[0] * columns, INCHES[1] * rows
    with new_figure(width, height, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)) as figure:
        entries = _legend_entries(runs, y=y)
        longest = max(len(str(entry.get_label())) for entry in entries)
        across = max(1, min(len(entries), int(width / (0.6 + 0.08 * longest))))
        figure.set_size_inches(width, height + 0.2 * math.ceil(len(entries) / across))
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, quantity in zip(panels, y, strict=False):
            _draw_panel(axes, runs, x=x, y=quantity)
        for axes in panels[len(y) :]:
            axes.remove()
        by_row = [entry for column in range(across) for entry in entries[column::across]]  # matplotlib fills columns
        figure.legend(handles=by_row, loc="outside lower center", ncols=across)
    return figure


def _draw_panel(axes: "Axes", runs: Mapping[str, Records], *, x: X, y: str) -> None:
    """Draws one quantity of all runs."""
    from matplotlib import ticker

    unit, per_unit = _time_unit(runs, x=x)
    for position, run in enumerate(runs.values()):
        looks = look(position)
        for kind in ("train", "eval"):
            points = [(r[x] / per_unit, r[y]) for r in run if r["kind"] == kind and _number(r, x) and _number(r, y)]
            if not points:
                continue
            xs = [value for value, _ in points]
            ys = [value if math.isfinite(value) else math.nan for _, value in points]
            if kind == "train":
                axes.plot(xs, ys, **looks | {"marker": None}, linewidth=0.8, alpha=0.45, zorder=2)
            else:
                axes.plot(xs, ys, **looks, markevery=max(1, len(xs) // 15), **EVALUATION)
            _mark_end_of_numbers(axes, xs, ys, colour=looks["color"])
    values = [r[y] for run in runs.values() for r in run if _number(r, y) and math.isfinite(r[y])]
    if y.endswith("accuracy"):
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, decimals=None))
    elif values and min(values) > 0 and max(values) > 50 * min(values):
        axes.set_yscale("log")
    largest = max((r[x] for run in runs.values() for r in run if _number(r, x)), default=0)
    if x in ("step", "examples") and largest >= 10_000:
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.set_xlabel(f"{X_LABELS[x]}{unit}")
    axes.set_ylabel(_y_label(y))
    axes.margins(x=0.02)


def _mark_end_of_numbers(axes: "Axes", xs: Sequence[float], ys: Sequence[float], *, colour: str) -> None:
    """Draws a cross at the last finite point before a value that is not finite, which shows divergence."""
    for i in range(1, len(ys)):
        if math.isnan(ys[i]) and not math.isnan(ys[i - 1]):
            axes.plot(xs[i - 1], ys[i - 1], "x", color=colour, markersize=11, markeredgewidth=2, zorder=4)


def _legend_entries(runs: Mapping[str, Records], *, y: Sequence[str]) -> "list[Line2D]":
    """Returns legend entries of the runs, and of thin lines, thick lines and crosses where those appear."""
    from matplotlib.lines import Line2D

    entries: list[Line2D] = []
    drawn = [r for run in runs.values() for r in run if any(_number(r, quantity) for quantity in y)]
    evaluated = any(r["kind"] == "eval" for r in drawn)
    for position, label in enumerate(runs):
        looks = look(position) | ({} if evaluated else {"marker": ""})
        entries.append(Line2D([], [], **looks, label=label, **EVALUATION))
    grey = REFERENCE["color"]
    if len({r["kind"] for r in drawn}) > 1:
        entries.append(Line2D([], [], color=grey, linewidth=0.8, label="training"))
        entries.append(Line2D([], [], color=grey, marker="o", label="evaluation", **EVALUATION))
    if any(not math.isfinite(r[quantity]) for r in drawn for quantity in y if _number(r, quantity)):
        entries.append(
            Line2D([], [], color=grey, linestyle="", marker="x", markeredgewidth=2, label="not finite after this")
        )
    return entries


def _number(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), (int, float)) and not isinstance(record.get(key), bool)


def _time_unit(runs: Mapping[str, Records], *, x: X) -> tuple[str, float]:
    """Returns the unit for the label, and how many seconds it has (1 where x is no time)."""
    if not x.endswith("_seconds"):
        return "", 1.0
    largest = max((r[x] for run in runs.values() for r in run if _number(r, x)), default=0)
    return (" (h)", 3600.0) if largest >= 7200 else (" (min)", 60.0) if largest >= 300 else (" (s)", 1.0)


def _y_label(y: str) -> str:
    return f"{y.removesuffix('_seconds').replace('_', ' ')} (s)" if y.endswith("_seconds") else y.replace("_", " ")


def _check(runs: Mapping[str, Records], *, x: str, y: Sequence[str]) -> None:
    if x not in X_LABELS:
        raise ValueError(f"x={x!r}: must be one of {', '.join(X_LABELS)}")
    known = sorted({key for run in runs.values() for r in run for key in r if _number(r, key)} - {"step"})
    for quantity in y or [""]:
        if quantity not in known:
            near = difflib.get_close_matches(quantity, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"they hold {', '.join(known) or 'nothing'}"
            raise ValueError(f"y={quantity!r}: not in the records; {hint}")
    for label, run in runs.items():
        if not any(_number(r, x) for r in run):
            raise ValueError(f"x={x!r}: not in the records of {label}")
    if x == "simulated_seconds" and not any(r.get(x) for run in runs.values() for r in run):
        raise ValueError(f"x={x!r}: is 0 throughout; these runs had no arrival model")


def read(run: str) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any] | None]:
    """Returns the train and evaluation records of a run, finished or not, and its config, if it has one.

    Raises:
        ValueError: one line, if the folder does not exist, holds nothing to draw, or is damaged.
    """
    folder = Path(run).expanduser()
    if not folder.is_dir():
        raise ValueError(f"run={run!r}: no such folder")
    if not (folder / "metrics.jsonl").is_file():
        raise ValueError(f"run={run!r}: holds no metrics.jsonl; is it the folder of a run?")
    found = [r for r in run_folders.read(folder / "metrics.jsonl") if r.get("kind") in ("train", "eval")]
    if not found:
        raise ValueError(f"run={run!r}: its metrics.jsonl holds no records yet")
    return found, identity.read_object(run, folder / "config.json", way_out="move it away")


def labels(configs: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """Names each run by the config keys in which the runs differ, or by its folder where those are not unique.

    Where a block's name differs, the block's other keys are left out.

    >>> labels({"runs/a": {"seed": 0, "reducer": {"name": "mean"}}, "runs/b": {"seed": 0, "reducer": {"name": "sum"}}})
    {'runs/a': 'reducer=mean', 'runs/b': 'reducer=sum'}
    """
    folders = {run: Path(run).resolve().name for run in configs}
    if len(set(folders.values())) < len(folders):
        folders = {run: str(run) for run in configs}
    flat = {run: dict(identity.flatten(config)) for run, config in configs.items() if config is not None}
    if len(flat) < len(configs):
        return folders
    keys = dict.fromkeys(key for config in flat.values() for key in config)
    differing = [key for key in keys if len({repr(config.get(key)) for config in flat.values()}) > 1]
    shown = identity.without_renamed(differing)
    named = {
        run: ", ".join(f"{key.removesuffix('.name')}={config[key]}" for key in shown if key in config)
        for run, config in flat.items()
    }
    are_unique = len(set(named.values())) == len(named) and all(0 < len(label) <= MAX_LABEL for label in named.values())
    return named if are_unique else folders


def main(argv: Sequence[str] | None = None) -> int:
    """Draws the figure that the command line asks for; returns the exit code."""
    parser = Parser(prog="python -m experiments.plot", description="Draws curves of runs.", allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run")
    parser.add_argument("--x", default="step", help=f"one of {', '.join(X_LABELS)} (default: step)")
    parser.add_argument("--y", help="quantities of the records, separated by commas (default: loss,accuracy)")
    parser.add_argument(
        "--gantt", metavar="FIRST:LAST", help="draw the activity of each worker in these steps, not curves"
    )
    parser.add_argument("--out", default="curves.png", help="the figure: .png, .pdf or .svg (default: curves.png)")
    try:
        arguments = parser.parse_args(argv)
        out = Path(arguments.out).expanduser()
        if out.suffix not in FORMATS:
            raise ValueError(f"out={arguments.out!r}: must end in {', '.join(FORMATS)}")
        if not out.parent.is_dir():
            raise ValueError(f"out={arguments.out!r}: no such folder as {str(out.parent)!r}")
        found = {run: read(run) for run in dict.fromkeys(arguments.runs)}
        names = labels({run: config for run, (_, config) in found.items()})
        if arguments.gantt is not None:
            gantt.of_runs({names[run]: each for run, each in found.items()}, steps=arguments.gantt).savefig(
                out, dpi=200
            )
            print(f"{out}: steps {arguments.gantt} by simulated time")
            return 0
        runs = {names[run]: records for run, (records, _) in found.items()}
        recorded = {key for records in runs.values() for r in records for key in r}
        y = [q for q in DEFAULT_Y if q in recorded] if arguments.y is None else arguments.y.split(",")
        draw(runs, x=arguments.x, y=y).savefig(out, dpi=200)
    except (ValueError, OSError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {', '.join(y)} against {arguments.x} of {len(runs)} run{'s' if len(runs) > 1 else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
