"""The table of a sweep, as Markdown for people and as CSV for programs."""

from typing import Any

from experiments.study import frames
from experiments.study.frames import Frame
from experiments.sweeps.results import CONFIDENCE, SweepResults, beyond_edges, in_words
from experiments.sweeps.sweep import SPLIT

# Quantities that are in the CSV alone.
_HIDDEN = {
    *("step", "epoch", "examples", "wall_seconds", "bytes_per_worker", "learning_rate", "step_seconds"),
    *("gradient_norm", "reduced_norm", "update_norm", "contributors", "busy_workers"),
}


def text(results: SweepResults) -> str:
    """Returns the common settings, the table, and remarks on the best point, as Markdown."""
    parts = [f"{headline(results)}\n\n{_shared(results)}".strip()]
    if results.points:
        parts.append(frames.markdown(table(results)))
    found = beyond_edges(results, results.best) if results.best else []
    remarks = [best(results), *(f"Edge of the grid: {line}." for line in found)]
    missing = len(results.sweep.runs) - len(results.rows)
    if missing:
        remarks.append(f"{missing} of {len(results.sweep.runs)} runs are not finished, and not in the table.")
    return "\n\n".join([*parts, *remarks]) + "\n"


def headline(results: SweepResults) -> str:
    """Returns a sentence on the config, the split that is evaluated, and the goal."""
    configs = [run.config["data"] for run in results.sweep.runs]
    goal = f"{'largest' if results.goal.mode == 'max' else 'smallest'} {results.goal.metric}"
    said = f"Sweep of `{results.sweep.spec}` for the {goal} on the {results.sweep.splits} split."
    if without := sorted({data["name"] for data in configs if "evaluate_on" not in data}):
        said += f" The data {', '.join(without)} have no key {SPLIT}, so these runs are evaluated on their test split."
    return said


def table(results: SweepResults) -> Frame:
    """Returns a line for each point: the keys that differ, then mean, deviation and number of runs of each quantity.

    The metric comes first, and its best mean is in bold, with its confidence interval. Quantities that say little
    about a point, such as the norms of its last step, are in the CSV alone.
    """
    metric, *others = results.quantities
    shown = [metric, *(quantity for quantity in others if quantity not in _HIDDEN)]
    cells = []
    for at, point in results.points.items():
        settings = [_value(point.get(key, "")) for key in results.keys]
        measured = [results.in_words(at, quantity) for quantity in shown]
        if at == results.best:
            measured[0] = f"**{measured[0]}**{_interval(results, at)}"
        cells.append(settings + measured)
    return Frame(cells, columns=[*results.keys, *(quantity.replace("_", " ") for quantity in shown)])


def best(results: SweepResults) -> str:
    """Returns a sentence on the best point, and one on the other points whose means lie within its interval."""
    if results.best is None:
        return f"No point has finished with a finite {results.goal.metric} in all of its runs."
    where = in_words(results.points[results.best], results.keys) or "the only point"
    sample, shown = results.metric.loc[results.best], _interval(results, results.best)
    said = [f"Best: {where}: {results.goal.metric} {results.in_words(results.best)}{shown}."]
    said[0] += results.divergence(results.best)
    low, high = sample[["low", "high"] if shown else ["mean", "mean"]]
    within = results.metric["mean"].between(low, high).sum() - 1
    points = "one other point" if within == 1 else f"{within} other points"
    if within and shown:
        said.append(f"The mean of {points} lies within this interval.")
    elif within:
        said.append(f"It is equal to that of {points}.")
    if sample["n"] == 1:
        said.append("One seed gives no interval: use --seeds=3, or more.")
    elif not shown:
        said.append(f"{sample['n']:g} equal runs give no interval.")
    return " ".join(said)


def comma_separated(results: SweepResults) -> str:
    """Returns the same numbers in full, as CSV: mean, deviation and number of finite runs of each quantity.

    The metric has its interval, too; unknown numbers are empty.
    """
    columns: dict[str, Any] = {key: [point.get(key, "") for point in results.points.values()] for key in results.keys}
    for quantity in results.quantities:
        of = results.samples[quantity]
        columns[quantity] = of["mean"]
        columns[f"{quantity}_std"] = of["std"].where(of["n"] > 1)
        columns[f"{quantity}_n"] = of["n"]
    metric, of = results.goal.metric, results.metric
    columns |= {f"{metric}_low": of["low"], f"{metric}_high": of["high"], "runs": of["runs"]}
    columns["best"] = ["best" if at == results.best else "" for at in results.points]
    return Frame(columns, dtype=object).to_csv(index=False, lineterminator="\n")


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shared(results: SweepResults) -> str:
    """Returns the settings and numbers that are the same in all runs, and therefore have no columns."""
    said = []
    if settings := [f"{key}={value}" for key, value in results.settings.items()]:
        said.append(f"All runs have {', '.join(settings)}.")
    if measured := [f"{key} {value:g}" for key, value in results.constants.items()]:
        said.append(f"All runs ended with {', '.join(measured)}.")
    return " ".join(said)


def _interval(results: SweepResults, at: str) -> str:
    ends = results.interval(at)
    return ends and f", {100 * CONFIDENCE:g} % interval {ends}"
