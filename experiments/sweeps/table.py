"""The table of a sweep, as Markdown for people and as CSV for programs."""

import csv
import functools
import io
import itertools
import math
from typing import Any

from configs import flags as config_flags
from configs import schema
from experiments.study.findings import Sample, Table
from experiments.study.run import Run
from experiments.sweeps.edge import is_number, next_value
from experiments.sweeps.results import CONFIDENCE, Entry, SweepResults, differ, in_words, interval
from experiments.sweeps.sweep import SPLIT
from reducers import registry


def text(results: SweepResults) -> str:
    """Returns what all runs share, the table, and remarks on the best point, as Markdown."""
    parts = [f"{headline(results)}\n\n{_shared(results)}".strip()]
    if results.entries:
        parts.append(table(results).markdown())
    remarks = [best(results), *(f"Edge of the grid: {line}." for line in warnings(results))]
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

    The metric comes first, and its best mean is in bold, with its confidence interval.
    """
    metric, cells = results.goal.metric, []
    for entry in results.entries:
        row = [_value(entry.point.get(key, "")) for key in results.keys]
        for quantity in results.quantities:
            cell = _cell(entry, quantity)
            is_best = quantity == metric and entry is results.best
            row.append(f"**{cell}**{_interval(entry.sample(metric))}" if is_best else cell)
        cells.append(row)
    return Table([*results.keys, *(quantity.replace("_", " ") for quantity in results.quantities)], cells)


def best(results: SweepResults) -> str:
    """Returns a sentence on the best point."""
    if results.best is None:
        return f"No point has finished with a finite {results.goal.metric} in all of its runs."
    sample, within = results.best.sample(results.goal.metric), results.num_within
    where = in_words(results.best.point, results.keys) or "the only point"
    said = f"Best: {where}: {results.goal.metric} {_cell(results.best, results.goal.metric)}{_interval(sample)}."
    points = "one other point" if within == 1 else f"{within} other points"
    if sample.n == 1:
        tie = f" It is equal to that of {points}." if within else ""
        return f"{said}{tie} One seed gives no interval: use --seeds=3, or more."
    return said + (f" The mean of {points} lies within this interval." if within else "")


def warnings(results: SweepResults) -> list[str]:
    """Returns one line for each numeric key whose best value is the smallest or the largest that was tried.

    Keys that are drawn at random have no edge, and there is none where nothing beyond a value is allowed, or where
    another value is as good.
    """
    if results.best is None:
        return []
    config = config_flags.load(results.sweep.spec, _run_of_best(results).overriding)
    found = []
    for key in results.keys:
        tried = [point.get(key) for point in _beside_best(results, key)]
        best = results.best.point.get(key)
        if key in results.sweep.drawn or not all(map(is_number, tried)) or best not in (min(tried), max(tried)):
            continue
        if any(point.get(key) != best for point in results.tied):
            continue
        annotation = schema.parameter(config, key).annotation
        values = sorted(set(tried), reverse=best == min(tried))
        following = next_value(values, allowed=functools.partial(registry.matches, annotation))
        if following is not None:
            end = "smallest" if best == min(tried) else "largest"
            found.append(f"the best {key}, {best}, is the {end} that was tried; try {key}={following}, too")
    return found


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
        low, high = interval(entry.sample(metric)) or ("", "")
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
    deviation = "-" if sample.n == 1 else f"{sample.std:,.{sample.digits}f}"
    return f"{sample.mean:,.{sample.digits}f} ± {deviation} (n={sample.n}){lost}"


def _interval(sample: Sample) -> str:
    ends = interval(sample)
    if ends is None:
        return ""
    return f", {100 * CONFIDENCE:g} % interval [{ends[0]:,.{sample.digits}f}, {ends[1]:,.{sample.digits}f}]"


def _beside_best(results: SweepResults, key: str) -> list[Any]:
    """Returns the points that differ from the best one in this key alone; all points if others change in step."""
    assert results.best is not None
    best = results.best.point
    beside = [p for p in results.sweep.points if all(p.get(k) == best.get(k) for k in results.keys if k != key)]
    return beside if differ(point.get(key) for point in beside) else list(results.sweep.points)


def _run_of_best(results: SweepResults) -> Run:
    assert results.best is not None
    name = results.best.rows[0]["run"]
    return next(run for run in results.sweep.runs if run.name == name)
