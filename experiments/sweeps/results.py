"""The finished runs of a sweep, point by point, and the best of the points."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from configs import schema
from experiments.study import rows as ask
from experiments.study.findings import Range, Sample, cut, digits_of, number, range_of
from experiments.study.run import Row, Rows
from experiments.sweeps.edge import is_number, next_value
from experiments.sweeps.goal import Goal
from experiments.sweeps.sweep import Point, Sweep
from reducers import registry

CONFIDENCE = 0.95
_ROUNDING = 1e-12  # relative, of values that are equal but for rounding
NATS = 103.0  # a loss beyond which float32 has no probability for what is right but 0


class Entry(NamedTuple):
    """A point of a sweep, and the rows of its finished runs, which differ in their seed alone."""

    point: Point
    rows: Rows

    def values(self, quantity: str) -> list[float]:
        """Returns a quantity at the last evaluation of each run; NaN where a run has none."""
        return [ask.last(row, quantity) for row in self.rows]

    def sample(self, quantity: str) -> Sample:
        """Returns the finite ones of these values as a sample, whose mean is NaN if there are none."""
        finite = [value for value in self.values(quantity) if math.isfinite(value)]
        if not finite:
            return Sample(math.nan, math.nan, 0)
        sample = Sample.of(finite)
        std = sample.std if sample.std > _ROUNDING * abs(sample.mean) else 0.0
        return sample._replace(std=std, digits=digits_of(std, least=0 if abs(sample.mean) >= 1000 else sample.digits))


def interval(sample: Sample, *, within: Range = (-math.inf, math.inf)) -> Range | None:
    r"""Returns the confidence interval of a mean by Student's t, :math:`m \pm t_{n-1} s / \sqrt n`.

    Args:
      sample: the values.
      within: the least and the greatest value that the quantity can have, where the interval ends.

    Returns:
      None for one run, and for runs that are equal, which do not show how far others would be apart.

    >>> [round(end, 3) for end in interval(Sample.of([0.97, 0.98, 0.99]), within=(0.0, 1.0))]
    [0.955, 1.0]
    """
    from scipy import stats

    if sample.n < 2 or sample.std == 0:
        return None
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, sample.n - 1)) * sample.std / math.sqrt(sample.n)
    return cut(sample.mean - half, sample.mean + half, within)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepResults:
    """The findings of a sweep so far.

    Attributes:
      sweep: the sweep.
      rows: rows of its finished runs.
      goal: what its points are compared by.
    """

    sweep: Sweep
    rows: Rows
    goal: Goal

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """The points that have finished runs, in the order of the grid."""
        groups: list[tuple[Point, list[Row]]] = []  # values may be lists, so that a point cannot be a key
        for row in self.rows:
            point = {key: row[key] for key in self.sweep.keys if key in row}
            same = next((group for other, group in groups if other == point), None)
            if same is None:
                groups.append((point, [row]))
            else:
                same.append(row)
        return [Entry(point, rows) for point, rows in groups]

    @functools.cached_property
    def keys(self) -> list[str]:
        """The keys in which the points differ."""
        return [key for key in self.sweep.keys if differ(point.get(key) for point in self.sweep.points)]

    @functools.cached_property
    def quantities(self) -> list[str]:
        """The quantities in which the runs differ, after the goal's metric."""
        differing = [key for key in self._recorded if len(set(self._all(key))) > 1 or len(self.rows) == 1]
        return [self.goal.metric, *(key for key in differing if key != self.goal.metric)]

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of the config that the sweep sets to one value in all runs."""
        first = self.sweep.points[0]
        alike = {key: first[key] for key in self.sweep.keys if key not in self.keys and key in first}
        return {**{key: value for key, value in self.sweep.fixed.items() if key not in self.keys}, **alike}

    @property
    def constants(self) -> dict[str, float]:
        """The quantities that are the same at the end of all runs."""
        return {key: self._all(key)[0] for key in self._recorded if key not in self.quantities}

    @functools.cached_property
    def best(self) -> Entry | None:
        """The point with the best mean; one with a run that is not finite is none, and the first wins a tie."""
        return self.best_of(self.finite) if self.finite else None

    @property
    def finite(self) -> list[Entry]:
        """The points whose runs are all finite, in the metric and in the loss, if it is recorded."""
        of = {self.goal.metric, "loss"} & {self.goal.metric, *self._recorded}
        return [entry for entry in self.entries if all(math.isfinite(v) for key in of for v in entry.values(key))]

    def divergence(self, entry: Entry) -> str:
        """Returns a sentence on a point that the metric names although its loss is huge; "" for others."""
        loss = entry.sample("loss").mean
        if self.goal.metric == "loss" or not loss > NATS:
            return ""
        return f" Its loss is {number(loss, 1)}, and it may have diverged."

    @functools.cached_property
    def within(self) -> Range:
        """The least and the greatest value that the metric can have."""
        metric = self.goal.metric
        return range_of(metric, [v for entry in self.entries for v in entry.values(metric) if math.isfinite(v)])

    def interval(self, entry: Entry) -> Range | None:
        """Returns the confidence interval of the metric at a point; None where it has none."""
        return interval(entry.sample(self.goal.metric), within=self.within)

    def interval_in_words(self, entry: Entry) -> str:
        """Returns the same as text, such as "[0.9552, 1.0000]"; "" where there is none."""
        digits = entry.sample(self.goal.metric).digits
        ends = self.interval(entry)
        return f"[{', '.join(number(end, digits) for end in ends)}]" if ends else ""

    def best_of(self, entries: Sequence[Entry]) -> Entry:
        """Returns the one of some points with the best mean, the first of equal ones."""
        return max(entries, key=lambda entry: self.goal.sign * entry.sample(self.goal.metric).mean)

    def tied_with(self, best: Entry) -> list[Point]:
        """Returns the points whose mean is that of a point, itself included."""
        mean = best.sample(self.goal.metric).mean
        return [entry.point for entry in self.entries if entry.sample(self.goal.metric).mean == mean]

    @property
    def num_within(self) -> int:
        """The number of other points whose mean lies within the interval of the best one, or equals it."""
        if self.best is None:
            return 0
        sample = self.best.sample(self.goal.metric)
        low, high = self.interval(self.best) or (sample.mean, sample.mean)
        means = [entry.sample(self.goal.metric).mean for entry in self.entries if entry is not self.best]
        return sum(low <= mean <= high for mean in means)

    @functools.cached_property
    def _recorded(self) -> list[str]:
        return list(
            dict.fromkeys(key for row in self.rows for key, value in row.items() if self._is_measured(key, value))
        )

    def _is_measured(self, key: str, value: Any) -> bool:
        return key not in self.sweep.keys and isinstance(value, list) and bool(value)

    def _all(self, quantity: str) -> list[float]:
        return [ask.last(row, quantity) for row in self.rows]


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


def beyond_edges(results: SweepResults, best: Entry) -> list[str]:
    """Returns one line for each numeric key whose value at a good point is the smallest or the largest that was tried.

    Keys that are drawn at random have no edge, and there is none where nothing beyond a value is allowed, or where
    another value is as good.

    Args:
      results: of a sweep.
      best: its best point, or the best of a group.
    """
    name = best.rows[0]["run"]
    run = next(run for run in results.sweep.runs if run.name == name)
    config = run.load()
    found = []
    for key in results.keys:
        tried = [point.get(key) for point in _beside(results, best, key)]
        value = best.point.get(key)
        if key in results.sweep.drawn or not all(map(is_number, tried)) or value not in (min(tried), max(tried)):
            continue
        if any(point.get(key) != value for point in results.tied_with(best)):
            continue
        annotation = schema.parameter(config, key).annotation
        values = sorted(set(tried), reverse=value == min(tried))
        following = next_value(values, allowed=functools.partial(registry.matches, annotation))
        if following is not None:
            end = "smallest" if value == min(tried) else "largest"
            found.append(f"the best {key}, {value}, is the {end} that was tried; try {key}={following}, too")
    return found


def _beside(results: SweepResults, best: Entry, key: str) -> list[Any]:
    """Returns the points that differ from one in this key alone; all points if others change in step."""
    others = [k for k in results.keys if k != key]
    beside = [p for p in results.sweep.points if all(p.get(k) == best.point.get(k) for k in others)]
    return beside if differ(point.get(key) for point in beside) else list(results.sweep.points)
