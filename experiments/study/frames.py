"""Rows as frames of pandas: a line for each run, whose measurements are numbers, or lists with a value an evaluation.

A frame has every column that is asked for, and NaN is never left out: pandas skips it in silence, so that a mean of
the finite values would decide a claim.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame as Frame

from experiments.study.run import Mode, Rows, scale_of
from launch.output import printable


def frame(rows: Rows, *columns: str) -> Frame:
    """Returns a line for each row, by seed, with its scale.

    Args:
      rows: rows of runs.
      *columns: columns that the frame has in any case; they are NaN where no row has them.
    """
    found = pd.DataFrame(list(rows)).drop(columns="origin", errors="ignore")
    wanted = dict.fromkeys([*found, "seed", *columns])
    found = found.reindex(columns=list(wanted))
    found["scale"] = scale_of(rows) if rows else "laptop"
    return found.sort_values("seed", kind="stable", ignore_index=True)


def last(df: Frame, key: str) -> pd.Series:
    """Returns a quantity at the last evaluation; NaN where a run has none.

    >>> last(pd.DataFrame({"accuracy": [[0.5, 0.9], []]}), "accuracy").tolist()
    [0.9, nan]
    """

    def end(values: Any) -> float:
        return values[-1] if isinstance(values, list) and values else math.nan

    return df[key].map(end).astype(float)


def accuracy(df: Frame) -> pd.Series:
    """Returns the accuracy at the end, in percent; 0 for a run that is not finite.

    >>> accuracy(pd.DataFrame({"accuracy": [[0.25, 0.5], [0.25, math.nan]]})).tolist()
    [50.0, 0.0]
    """
    ends = 100 * last(df, "accuracy")
    return ends.where(np.isfinite(ends), 0.0)


def errors(df: Frame) -> list[np.ndarray]:
    """Returns the test errors of each run along its way, in percent."""
    return [100 * (1 - np.array(accuracies)) for accuracies in df["accuracy"]]


def until(
    df: Frame, target: float | pd.Series, *, of: str = "accuracy", along: str = "step", mode: Mode = "max"
) -> pd.Series:
    """Returns where each run first reaches a target, to the precision of its evaluation interval.

    Args:
      df: the runs.
      target: the value to be reached, or one for each run.
      of: the quantity that reaches it.
      along: the quantity that is returned, such as step, epoch or simulated_seconds.
      mode: which values are better.

    Returns:
      Infinity for a run that does not get there.

    >>> until(pd.DataFrame({"step": [[10, 20, 30]], "accuracy": [[0.5, 0.9, 0.8]]}), 0.85).tolist()
    [20.0]
    """
    targets = np.broadcast_to(target, len(df))
    found = [first(*run, mode=mode) for run in zip(df[along], df[of], targets, strict=True)]
    return pd.Series(found, df.index, dtype=float)


def first(places: Sequence[float], values: Sequence[float], target: float, *, mode: Mode = "max") -> float:
    """Returns the first place at which values are at a target or better; infinity if there is none.

    >>> first([10, 20, 30], [0.9, 0.5, 0.4], 0.6, mode="min")
    20.0
    """
    sign = 1 if mode == "max" else -1
    for place, value in zip(places, values, strict=True):
        if sign * (value - target) >= 0:
            return float(place)
    return math.inf


class Groups(dict[Any, pd.Series]):
    """Labels -> a column of the runs with them, which is empty if there are none, so that no test can be made."""

    def __missing__(self, key: Any) -> pd.Series:
        return pd.Series(dtype=float)


def groups(df: Frame, by: str | list[str], of: str) -> Groups:
    """Returns a column of the runs for each value of a label, or for each tuple of values of several.

    >>> ends = groups(pd.DataFrame({"reducer": ["sum", "mean", "sum"], "end": [1.0, 2.0, 3.0]}), "reducer", "end")
    >>> ends["sum"].tolist(), ends["adasum"].tolist()
    ([1.0, 3.0], [])
    """
    return Groups(list(df.groupby(by)[of]))  # not dict(): a GroupBy has an attribute keys, which is no mapping's


def by_seed(df: Frame, columns: str, of: str) -> Frame:
    """Returns a line for each seed with a column for each value of a label, so that values are paired by seed.

    A run that is missing is NaN, so that no test passes over it. A label that the frame lacks has no column; ask for it
    by ``reindex(columns=...)``.

    >>> runs = pd.DataFrame({"seed": [1, 0, 1], "n": [2, 2, 4], "steps": [10.0, 20.0, 30.0]})
    >>> by_seed(runs, "n", "steps")[4].tolist()
    [nan, 30.0]
    """
    return df.pivot(index="seed", columns=columns, values=of)


def picked(df: Frame, by: list[str], of: str, *, seed: int, least: Callable[[Any], Any] = np.argmin) -> pd.Series:
    """Returns the place of the least value in a list, such as losses by rate, for the run with the picking seed.

    Args:
      df: the runs, among them those of the picking seed.
      by: labels; one place is picked for each of their values.
      of: the quantity, which has a value for each place.
      seed: the seed to pick with.
      least: values -> the place of the least; ``np.nanargmin`` ignores NaN.

    Returns:
      The place for each run; NaN if the picking seed has no such run.

    >>> runs = pd.DataFrame({"n": [2, 2, 4], "seed": [0, 1, 0], "loss": [[3.0, 1.0], [5.0, 7.0], [0.0, 4.0]]})
    >>> picked(runs, ["n"], "loss", seed=0).tolist()
    [1.0, 1.0, 0.0]
    """
    tried = df[df["seed"] == seed]
    places = pd.Series(map(least, tried[of]), pd.MultiIndex.from_frame(tried[by]), dtype=float)
    return places.reindex(pd.MultiIndex.from_frame(df[by])).set_axis(df.index)


def at(values: Sequence[Sequence[float]] | pd.Series, places: pd.Series) -> pd.Series:
    """Returns the value at a place in each list; NaN where the place is NaN.

    >>> at([[1.0, 2.0], [3.0, 4.0]], pd.Series([1, math.nan])).tolist()
    [2.0, nan]
    """
    found = pd.Series(math.nan, places.index)
    for line, (each, place) in enumerate(zip(values, places, strict=True)):
        if not np.isnan(place):
            found.iloc[line] = each[int(place)]
    return found


class Value(NamedTuple):
    """A column that a summary shows, with its digits (None for all) and unit; ``is_fixed`` if a group has one value."""

    column: str
    digits: int | None = 2
    unit: str = ""
    is_fixed: bool = False


def text(values: pd.Series, digits: int | None = 2, unit: str = "", *, is_fixed: bool = False) -> str:
    """Returns mean, standard deviation and number of some values, or how many runs reach a target if not all do.

    If ``is_fixed``, values that are the same in each run are shown as one.

    >>> text(pd.Series([0.98, 0.99, 1.0]), 3), text(pd.Series([465.02] * 5), is_fixed=True)
    ('0.990 ± 0.010 (n=3)', '465.02')
    """
    n, values = len(values), values.astype(float)
    style = ",g" if digits is None else f",.{digits}f"
    unit = unit and f" {unit}"
    if is_fixed and values.nunique(dropna=False) == 1:
        return f"{values.iloc[0]:{style}}{unit}"
    if np.isinf(values).any():
        return f"{np.isfinite(values).sum()} of {n} runs get there"
    mean = values.mean(skipna=False)
    deviation = f" ± {values.std(skipna=False):{style}}" if n > 1 else ""
    return f"{mean:{style}}{deviation}{unit} (n={n})"


def summary(df: Frame, labels: Sequence[str], values: Mapping[str, Value], paper: Mapping[Any, str]) -> Frame:
    """Returns a line for each group of runs that differ only in their seed, with the paper's value.

    Args:
      df: the runs.
      labels: columns that tell the groups apart.
      values: head of a column -> what it shows.
      paper: value of the labels, a tuple if there are several -> the paper's value with its mark, such as "62 [READ]".
    """
    paper = {at if isinstance(at, tuple) else (at,): said for at, said in paper.items()}
    groups = dict(list(df.groupby(list(labels), sort=False)))
    lines = []
    for at in dict.fromkeys([*groups, *paper]):
        line = {label.replace("_", " "): plain(value) for label, value in zip(labels, at, strict=True)}
        for head, (column, digits, unit, is_fixed) in values.items():
            line[head] = text(groups[at][column], digits, unit, is_fixed=is_fixed) if at in groups else ""
        if paper:
            line["paper"] = paper.get(at, "?")
        lines.append(line)
    return pd.DataFrame(lines)


def markdown(df: Frame) -> str:
    r"""Returns a frame as a table of Markdown.

    >>> print(markdown(pd.DataFrame({"a": [1], "b": ["2|3"]})))
    | a | b |
    | --- | --- |
    | 1 | 2\|3 |
    """
    lines = []
    for cells in [list(df), ["---"] * len(df.columns), *df.astype(str).values.tolist()]:
        escaped = [printable(str(cell)).replace("|", r"\|") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines)


def plain(value: Any) -> str:
    """Returns a label as text; a whole number stays one where a gap in its column has made it a float.

    >>> plain(8.0), plain(0.05), plain("sum")
    ('8', '0.05', 'sum')
    """
    if not isinstance(value, float | np.floating):
        return str(value)
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
