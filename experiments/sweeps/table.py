"""The table of a sweep, as Markdown for people and as CSV for programs."""

import csv
import io
import itertools
import math
from typing import Any

from experiments.study.findings import Table, number
from experiments.sweeps.results import CONFIDENCE, Entry, SweepResults, beyond_edges, in_words
from experiments.sweeps.sweep import SPLIT

# Quantities that are in the CSV alone.
_HIDDEN = {
    *("step", "epoch", "examples", "wall_seconds", "bytes_per_worker", "learning_rate", "step_seconds"),
    *("gradient_norm", "reduced_norm", "update_norm", "contributors", "busy_workers"),
}


def text(results: SweepResults) -> str:
    """Returns what all runs share, the table, and remarks on the best point, as Markdown."""
    parts = [f"{headline(results)}\n\n{_shared(results)}".strip()]
    if results.entries:
        parts.append(table(results).markdown())
    found = beyond_edges(results, results.best) if results.best else []
    remarks = [best(results), *(f"Edge of the grid: {line}." for line in found)]
    missing = len(results.sweep.runs) - len(results.rows)
    if missing:
        remarks.append(f"{missing} of {len(results.sweep.runs)} runs are not finished, and not in the table.")
    return "\n\n".join([*parts, *remarks]) + "\n"


def headline(results: SweepResults) -> str:
    """Returns a sentence on the config, the split that is evaluated, and the goal."""
    configs = [run.config["data"] for run in results.sweep.runs]
    splits = sorted({data.get("evaluate_on", "test") for data in configs})
    goal = f"{'largest' if results.goal.mode == 'max' else 'smallest'} {results.goal.metric}"
    said = f"Sweep of `{results.sweep.spec}` for the {goal} on the {' and the '.join(splits)} split."
    if without := sorted({data["name"] for data in configs if "evaluate_on" not in data}):
        said += f" The data {', '.join(without)} have no key {SPLIT}, so these runs are evaluated on their test split."
    return said


def table(results: SweepResults) -> Table:
    """Returns one row per point: the keys that differ, then mean, deviation and number of runs of each quantity.

    The metric comes first, and its best mean is in bold, with its confidence interval. What says little about a point,
    such as the norms of its last step, is in the CSV alone.
    """
    metric, cells = results.goal.metric, []
    quantities = [quantity for quantity in results.quantities if quantity == metric or quantity not in _HIDDEN]
    for entry in results.entries:
        row = [_value(entry.point.get(key, "")) for key in results.keys]
        for quantity in quantities:
            cell = _cell(entry, quantity)
            is_best = quantity == metric and entry is results.best
            row.append(f"**{cell}**{_interval(results, entry)}" if is_best else cell)
        cells.append(row)
    return Table([*results.keys, *(quantity.replace("_", " ") for quantity in quantities)], cells)


def best(results: SweepResults) -> str:
    """Returns a sentence on the best point."""
    if results.best is None:
        return f"No point has finished with a finite {results.goal.metric} in all of its runs."
    sample, within = results.best.sample(results.goal.metric), results.num_within
    where = in_words(results.best.point, results.keys) or "the only point"
    shown = _interval(results, results.best)
    said = f"Best: {where}: {results.goal.metric} {_cell(results.best, results.goal.metric)}{shown}."
    said += results.divergence(results.best)
    points = "one other point" if within == 1 else f"{within} other points"
    if shown:
        return said + (f" The mean of {points} lies within this interval." if within else "")
    tie = f" It is equal to that of {points}." if within else ""
    one, equal = "One seed gives no interval: use --seeds=3, or more.", f"{sample.n} equal runs give no interval."
    return f"{said}{tie} {one if sample.n == 1 else equal}"


def comma_separated(results: SweepResults) -> str:
    """Returns the same numbers as CSV, in full: of each quantity its mean, deviation and number of finite runs.

    The metric has its interval, too; what is not known is empty.
    """
    file = io.StringIO()
    header = list(results.keys)
    for quantity in results.quantities:
        header += [quantity, f"{quantity}_std", f"{quantity}_n"]
    metric = results.goal.metric
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*header, f"{metric}_low", f"{metric}_high", "runs", "best"])
    for entry in results.entries:
        row = [entry.point.get(key, "") for key in results.keys]
        for quantity in results.quantities:
            sample = entry.sample(quantity)
            row += ["" if not sample.n else sample.mean, "" if sample.n < 2 else sample.std, sample.n]
        low, high = results.interval(entry) or ("", "")
        writer.writerow([*row, low, high, len(entry.rows), "best" if entry is results.best else ""])
    return file.getvalue()


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shared(results: SweepResults) -> str:
    """Returns what is no column because it is the same in all runs."""
    settings = ", ".join(f"{key}={value}" for key, value in results.settings.items())
    measured = ", ".join(f"{key} {value:g}" for key, value in results.constants.items())
    sentences = [f"All runs have {settings}.", f"All runs ended with {measured}."]
    return " ".join(itertools.compress(sentences, [settings, measured]))


def _cell(entry: Entry, quantity: str) -> str:
    values = entry.values(quantity)
    sample = entry.sample(quantity)
    missing = sum(not math.isfinite(value) for value in values)
    lost = f", {missing} not finite" if missing else ""
    if not sample.n:
        return f"none{lost}"
    deviation = "-" if sample.n == 1 else number(sample.std, sample.digits)
    return f"{number(sample.mean, sample.digits)} ± {deviation} (n={sample.n}){lost}"


def _interval(results: SweepResults, entry: Entry) -> str:
    ends = results.interval_in_words(entry)
    return ends and f", {100 * CONFIDENCE:g} % interval {ends}"
