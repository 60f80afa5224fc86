"""The table of a sweep, as Markdown for people and as CSV for programs."""

from collections import Counter
from collections.abc import Sequence
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


def text(
    results: SweepResults, *, groups: Frame | None = None, best_group: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Returns the common settings, the tables, remarks, and at the end the winner, as Markdown.

    Args:
      results: the findings.
      groups: the table of the values of one key, which are compared.
      best_group: sentences that name the best of these values, and so the winner.
      notes: further remarks.
    """
    parts = [headline(results), _shared(results)]
    if results.points:
        parts.append(frames.markdown(table(results)))
    if groups is not None and len(groups) > 1:
        parts.append(frames.markdown(groups))
    num_runs = len(results.sweep.runs)
    missing, lost = num_runs - len(results.rows), sum(results.left_out.values(), Counter[str]())
    if lost["diverged"]:
        parts.append(f"{lost['diverged']} of {num_runs} runs diverged: their loss was not finite.")
    if lost["stopped"]:
        parts.append(f"{lost['stopped']} of {num_runs} runs were stopped early by the median rule.")
    if missing:
        parts.append(f"{missing} of {num_runs} runs are not finished, and not in the table.")
    return "\n\n".join(filter(None, [*parts, *notes, _winner(results, best_group)])) + "\n"


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

    Points with a run that was stopped early, or that diverged, come last.
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


def _winner(results: SweepResults, best_group: Sequence[str]) -> str:
    """Returns the best group, or else the best point, and the edges of the grid at which it lies."""
    lines = [*best_group, _company(results)] if best_group else [best(results)]
    found = beyond_edges(results, results.best) if results.best else []
    return "  \n".join(filter(None, [*lines, *(f"Edge of the grid: {line}." for line in found)]))  # Markdown's new line


def best(results: SweepResults) -> str:
    """Returns a sentence on the best point, and one on the other points whose means lie within its interval."""
    if results.best is None:
        return f"No point has finished with a finite {results.goal.metric} in all of its runs."
    where = in_words(results.points[results.best], results.keys) or "the only point"
    sample, shown = results.metric.loc[results.best], _interval(results, results.best)
    said = f"Best: {where}: {results.goal.metric} {results.in_words(results.best)}{shown}."
    said += results.divergence(results.best)
    no_interval = ""
    if sample["n"] == 1:
        no_interval = "One seed gives no interval: use --seeds=3, or more."
    elif not shown:
        no_interval = f"{sample['n']:g} equal runs give no interval."
    return " ".join(filter(None, [said, _company(results), no_interval]))


def comma_separated(results: SweepResults) -> str:
    """Returns the same numbers in full, as CSV: mean, deviation and number of finite runs of each quantity.

    The metric has its interval, too; unknown numbers are empty. Numbers of runs that "diverged" or were "stopped" early
    come after that of all runs.
    """
    columns: dict[str, Any] = {key: [point.get(key, "") for point in results.points.values()] for key in results.keys}
    for quantity in results.quantities:
        of = results.samples[quantity]
        columns[quantity] = of["mean"]
        columns[f"{quantity}_std"] = of["std"].where(of["n"] > 1)
        columns[f"{quantity}_n"] = of["n"]
    metric, of = results.goal.metric, results.metric
    columns |= {f"{metric}_low": of["low"], f"{metric}_high": of["high"], "runs": of["runs"]}
    for state in ("diverged", "stopped"):
        columns[state] = [results.left_out[at][state] for at in results.points]
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


def _company(results: SweepResults) -> str:
    """Returns a sentence on the points that are as good as the best one, or nearly; "" if there are none."""
    sample, has_interval = results.metric.loc[results.best], bool(_interval(results, str(results.best)))
    low, high = sample[["low", "high"] if has_interval else ["mean", "mean"]]
    within = results.metric["mean"][results.finite].between(low, high).sum() - 1
    if not within:
        return ""
    points = "one other point" if within == 1 else f"{within} other points"
    if has_interval:
        return f"The mean of {points} lies within its interval."
    return f"Its mean is equal to that of {points}."


def _interval(results: SweepResults, at: str) -> str:
    ends = results.interval(at)
    return ends and f", {100 * CONFIDENCE:g} % interval {ends}"
