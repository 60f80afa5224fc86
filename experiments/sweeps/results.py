"""The finished runs of a sweep, point by point, and the best of the points."""

import dataclasses
import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from configs import schema
from experiments.execution.stopped import LEFT_OUT
from experiments.study import frames
from experiments.study.frames import Frame
from experiments.study.run import Range, Rows, range_of
from experiments.sweeps.edge import is_number, next_value
from experiments.sweeps.goal import Goal
from experiments.sweeps.sweep import Point, Sweep
from reducers import registry

CONFIDENCE = 0.95
LONGEST = 1e15  # larger numbers are written with an exponent
MOST_DIGITS = 15  # most digits after the point
_ROUNDING = 1e-12  # relative difference of values that are equal but for rounding
NATS = 103.0  # a loss beyond which float32 gives the right answer a probability of 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepResults:
    """The findings of a sweep so far.

    Attributes:
      sweep: the sweep.
      rows: rows of its runs that do not go on; the key ``LEFT_OUT`` of a row says why its run is not ranked.
      goal: what its points are compared by.
    """

    sweep: Sweep
    rows: Rows
    goal: Goal

    @functools.cached_property
    def points(self) -> dict[str, Point]:
        """Text of a point -> the point, for those that have rows, in the order of the grid.

        Points with runs that were stopped early come after the others, and points with runs that diverged are last.
        """
        found = {str(point): point for point in map(self.point_of, self.rows)}
        of = self.left_out
        return dict(sorted(found.items(), key=lambda item: (bool(of[item[0]]["diverged"]), bool(of[item[0]]))))

    @functools.cached_property
    def left_out(self) -> defaultdict[str, Counter[str]]:
        """Text of a point -> the number of its runs that "diverged" and that were "stopped" early."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in self.rows:
            if LEFT_OUT in row:
                found[str(self.point_of(row))][row[LEFT_OUT]] += 1
        return found

    def point_of(self, labels: Mapping[str, Any]) -> Point:
        """Returns the point of a run by its labels or its row."""
        return {key: labels[key] for key in self.sweep.keys if key in labels}

    @functools.cached_property
    def ends(self) -> Frame:
        """Each quantity at the last evaluation of each run, NaN if it is left out, by the text of its point."""
        index = pd.Index([str(self.point_of(row)) for row in self.rows], dtype=object)
        columns = {self.goal.metric: None}
        ranked = [{} if LEFT_OUT in row else row for row in self.rows]
        for row in ranked:
            measured = [key for key, value in row.items() if isinstance(value, list) and value]
            columns |= dict.fromkeys(key for key in measured if key not in self.sweep.keys)
        df = Frame(ranked, index=index).reindex(columns=list(columns))
        return Frame({key: frames.last(df, key) for key in columns})

    @property
    def _ranked_ends(self) -> Frame:
        """The ends of the runs that are not left out."""
        return self.ends[np.array([LEFT_OUT not in row for row in self.rows], bool)]

    @functools.cached_property
    def keys(self) -> list[str]:
        """The keys in which the points differ."""
        return [key for key in self.sweep.keys if differ(point.get(key) for point in self.sweep.points)]

    @functools.cached_property
    def quantities(self) -> list[str]:
        """The goal's metric, and then the other quantities in which the runs differ."""
        ends = self._ranked_ends
        others = ends.columns.drop(self.goal.metric)
        differing = [key for key in others if len(ends) == 1 or ends[key].nunique(dropna=False) > 1]
        return [self.goal.metric, *differing]

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of the config that the sweep sets to one value in all runs."""
        alike = {**self.sweep.fixed, **{key: self.sweep.points[0].get(key) for key in self.sweep.keys}}
        return {key: value for key, value in alike.items() if key not in self.keys}

    @property
    def constants(self) -> dict[str, float]:
        """The quantities that are the same at the end of all runs."""
        ends = self._ranked_ends
        return {key: ends[key].iloc[0] for key in ends if key not in self.quantities}

    @functools.cached_property
    def samples(self) -> dict[str, Frame]:
        r"""Quantity -> a line for each point: mean, std and n of the finite values, and the number of runs.

        ``low`` and ``high`` are the confidence interval of the mean by Student's t, :math:`m \pm t_{n-1} s / \sqrt n`,
        which ends where the quantity does. They are NaN for one value, and for equal ones, whose spread says nothing of
        other runs.
        """
        from scipy import stats

        found = {}
        for quantity in self.ends:
            finite = self.ends[quantity].where(np.isfinite)
            groups = finite.groupby(level=0, sort=False)
            df = groups.agg(mean=_mean, std=_deviation, n="count", runs="size").reindex(list(self.points))
            freedom = df["n"].where(df["std"] > 0) - 1
            half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * df["std"] / np.sqrt(df["n"])
            within = range_of(quantity, finite.dropna())
            found[quantity] = df.assign(low=(df["mean"] - half).clip(*within), high=(df["mean"] + half).clip(*within))
        return found

    @property
    def metric(self) -> Frame:
        """The samples of the goal's metric."""
        return self.samples[self.goal.metric]

    @property
    def within(self) -> Range:
        """The least and the greatest value that the metric can have."""
        return range_of(self.goal.metric, self.ends[self.goal.metric].where(np.isfinite).dropna())

    @functools.cached_property
    def finite(self) -> list[str]:
        """The points whose runs are all finite, in the metric and in the loss, if it is recorded."""
        judged = self.ends[self.ends.columns.intersection([self.goal.metric, "loss"])]
        is_finite = np.isfinite(judged).all(axis=1).groupby(level=0, sort=False).all()
        return list(is_finite.index[is_finite])

    @functools.cached_property
    def best(self) -> str | None:
        """The point with the best mean, the first of equal ones; None if every point has a run that is not finite."""
        return self.best_of(self.finite) if self.finite else None

    def best_of(self, points: Sequence[str]) -> str:
        """Returns which of these points has the best mean, the first of equal ones."""
        return str((self.goal.sign * self.metric["mean"][list(points)]).idxmax())

    def divergence(self, at: str) -> str:
        """Returns a sentence on a point that the metric names although its loss is huge; "" for others."""
        loss = self.samples["loss"]["mean"][at] if "loss" in self.samples else math.nan
        if self.goal.metric == "loss" or not loss > NATS:
            return ""
        return f" Its loss is {number(loss, 1)}, and it may have diverged."

    def in_words(self, at: str, quantity: str = "") -> str:
        """Returns mean, deviation and number of a quantity at a point; at the metric also what its runs lack."""
        quantity = quantity or self.goal.metric
        sample = self.samples[quantity].loc[at]
        n, digits = int(sample["n"]), digits_of(sample)
        said = "none"
        if n:
            spread = number(sample["std"], digits) if n > 1 else "-"
            said = f"{number(sample['mean'], digits)} ± {spread} (n={n})"
        return ", ".join([said, *self.lost([at], quantity)])

    def lost(self, points: Sequence[str], quantity: str) -> list[str]:
        """Returns how many runs of these points have no finite value, by the reason, as "2 diverged"; often nothing."""
        of = self.samples[quantity].loc[list(points)]
        left_out = sum((self.left_out[at] for at in points), Counter[str]())
        counts = {"not finite": int((of["runs"] - of["n"]).sum()) - left_out.total()}
        if quantity == self.goal.metric:
            counts |= left_out
        return [f"{count} {reason}" for reason, count in counts.items() if count]

    def interval(self, at: str) -> str:
        """Returns the confidence interval of the metric at a point, such as "[0.9552, 1.0000]"; "" if it has none."""
        sample = self.metric.loc[at]
        ends = [number(end, digits_of(sample)) for end in sample[["low", "high"]].dropna()]
        return f"[{', '.join(ends)}]" if ends else ""


def number(value: float, digits: int, *, style: str = ",") -> str:
    """Returns a number with these digits after the point, or with an exponent if it is very large.

    >>> number(1234.5, 1), number(8e19, 4), number(0.5, 2, style="+")
    ('1,234.5', '8e+19', '+0.50')
    """
    return f"{value:{style}.{digits}f}" if abs(value) < LONGEST else f"{value:{style}.4g}"


def digits_of(sample: Mapping[str, float]) -> int:
    """Returns the digits after the point for the mean and deviation of a sample: four, or none from 1,000 on.

    A deviation that is too small for them has more, but at most ``MOST_DIGITS``.

    >>> digits_of({"mean": 0.5, "std": 0.02}), digits_of({"mean": 2000.0, "std": 3e-6})
    (4, 6)
    """
    least = 0 if abs(sample["mean"]) >= 1000 else 4
    needed = -math.floor(math.log10(sample["std"])) if 0 < sample["std"] < math.inf else least
    return min(MOST_DIGITS, max(least, needed))


def differ(values: Iterable[Any]) -> bool:
    """Returns whether some values are unequal.

    >>> differ([1, 1.0]), differ([[1], [2]])
    (False, True)
    """
    first, *others = values
    return any(value != first for value in others)


def in_words(point: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Returns these keys of a point as one text.

    >>> in_words({"reducer.name": "sum", "seed": 0}, ["reducer.name"])
    'reducer.name=sum'
    """
    return ", ".join(f"{key}={point[key]}" for key in keys if key in point)


def beyond_edges(results: SweepResults, best: str) -> list[str]:
    """Returns a line for each numeric key of which the smallest or the largest value that was tried is as good as any.

    A value beside the best point that is exactly as good counts, too: of equal points the first one is the best, which
    could hide an edge. A key has no edge if its values are drawn at random, if it allows nothing beyond them, or if all
    of them are equally good.

    Args:
      results: of a sweep.
      best: its best point, or the best of a group.
    """
    point, found = results.points[best], []
    config = next(run for run in results.sweep.runs if results.point_of(run.labels) == point).load()
    means = results.metric["mean"]
    for key in results.keys:
        beside = _beside(results, point, key)
        values = [other.get(key) for other in beside]
        if key in results.sweep.drawn or not all(map(is_number, values)):
            continue
        tried = sorted(set(values))
        good = {other.get(key) for other in beside if means.get(str(results.point_of(other))) == means[best]}
        if len(good) == len(tried):
            continue
        allowed = functools.partial(registry.matches, schema.parameter(config, key).annotation)
        for end, ascending in (("smallest", tried[::-1]), ("largest", tried)):
            edge = ascending[-1]
            following = next_value(ascending, allowed=allowed) if edge in good else None
            if following is not None:
                which = f"the best {key}, {edge}" if edge == point[key] else f"{key}={edge}, as good as the best"
                found.append(f"{which}, is the {end} that was tried; try {key}={following}, too")
    return found


def _beside(results: SweepResults, point: Any, key: str) -> list[Any]:
    """Returns the points that differ from one in this key alone; all points if others change in step."""
    points = results.sweep.points
    others = [other for other in results.keys if other != key]
    beside = [each for each in points if all(each.get(other) == point.get(other) for other in others)]
    return beside if differ(each.get(key) for each in beside) else list(points)


def _mean(values: pd.Series) -> float:
    """Returns the mean of the values that are not NaN, the same in any order; NaN if there are none."""
    finite, size = _scaled(values)
    return size * statistics.fmean(finite) if finite else math.nan


def _deviation(values: pd.Series) -> float:
    """Returns the sample's standard deviation: 0 for one value, and for values that are equal but for rounding."""
    finite, size = _scaled(values)
    if len(finite) < 2:
        return 0.0 if finite else math.nan
    std = statistics.stdev(finite)
    return size * std if std > _ROUNDING * abs(statistics.fmean(finite)) else 0.0


def _scaled(values: pd.Series) -> tuple[list[float], float]:
    """Returns the values that are not NaN over a power of two, and that power, at which no square overflows."""
    finite = values.dropna()
    size = 2.0 ** (math.frexp(finite.abs().max())[1] - 1) if len(finite) else 1.0
    return (finite / size).tolist(), size
