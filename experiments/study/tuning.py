"""Values, mostly learning rates, that are picked on the validation split, and runs with them over seeds."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.study import frames
from experiments.study.claim import Claim
from experiments.study.frames import Frame, Value
from experiments.study.run import SCALES, Mode, Row, Rows, Run, Scale

Point = Mapping[str, Any]  # labels that a run shares with the others of its point: all but the value, split and seed
MAX_EXTENSIONS = 8  # values that a grid grows by, at most
SPLITS = ("validation", "test")  # for tuning and for reported runs
ONE_SEED: Mapping[Scale, int] = dict.fromkeys(SCALES, 1)  # for tuning where runs are dear
NAMED_STAGES = ({"stage": "tuning"}, {"stage": "final"})  # labels of some claims' runs in place of the split


def epochs(
    total: float, *, evaluate: float, log: float | None = None, checkpoint: float | None = None
) -> dict[str, Any]:
    """Returns overrides for a run of ``total`` epochs that keeps its last checkpoint; all arguments are in epochs.

    >>> epochs(8, evaluate=2)["checkpoint_every_epochs"]
    8
    """
    found = {"train_epochs": total, "eval_every_epochs": evaluate, "checkpoint_every_epochs": checkpoint or total}
    if log is not None:
        found["log_every_epochs"] = log
    return {**found, "keep_checkpoints": 1}


def steps(total: int, *, evaluate: int, log: int) -> dict[str, Any]:
    """Returns overrides that run a config with epochs for ``total`` steps instead; all arguments are in steps.

    >>> steps(8, evaluate=2, log=1)["eval_every_epochs"] is None
    True
    """
    none = dict.fromkeys(("train_epochs", "eval_every_epochs", "checkpoint_every_epochs"))
    every = {"eval_every_steps": evaluate, "log_every_steps": log, "checkpoint_every_steps": total}
    return {**none, "train_steps": total, **every}


class Score(NamedTuple):
    """Scores a value by its tuning runs: larger is better, and a run that is not finite is worst.

    Attributes:
      of: the quantity.
      mode: which of its values are better.
      target: rows -> the value of the quantity that should be reached first; None to go by the end of the runs.
      along: the quantity in which the way to the target is measured.
      digits: of the quantity in texts, where an accuracy is in percent.
      floor: the quantity of an untrained model; values whose mean at the end is no better are equally bad, so that none
        is picked by luck. None if every mean counts as measured.
    """

    of: str = "accuracy"
    mode: Mode = "max"
    target: Callable[[Rows], float] | None = None
    along: str = "epoch"
    digits: int = 2
    floor: float | None = None

    def __call__(self, rows: Rows) -> tuple[float, float]:
        """Returns the score: nearness to the target, then the quantity at the end, as means over the runs."""
        sign = 1 if self.mode == "max" else -1
        ends = [_last(row, self.of) for row in rows]
        end = sign * statistics.fmean(ends) if np.isfinite(ends).all() else -math.inf
        if self.floor is not None and end <= sign * self.floor:
            end = -math.inf
        return -self._until(rows), end

    @property
    def factor(self) -> float:
        """Factor of the quantity in texts."""
        return 100 if self.of == "accuracy" else 1

    @property
    def title(self) -> str:
        """The head of the column of scores."""
        unit = " (%)" if self.factor == 100 else ""
        said = f"validation {self.of}{unit} at the end"
        if self.target is not None:
            said = f"{self.along} to the target ({said})"
        return said.replace("_", " ").capitalize()

    @property
    def best(self) -> str:
        """The criterion of the best value, in words."""
        said = f"{'highest' if self.mode == 'max' else 'least'} {self.of.replace('_', ' ')} at the end"
        if self.target is not None:
            said = f"first at the target by {self.along.replace('_', ' ')}, then {said}"
        if self.floor is not None:
            said += f", where all that end at {self.factor * self.floor:g} or worse are equal,"
        return said

    def in_words(self, rows: Rows) -> str:
        """Returns the score as text: where the target is reached, and the quantity at the end."""
        mean = statistics.fmean(self.factor * _last(row, self.of) for row in rows)
        end = f"{mean:.{self.digits}f}"
        if self.target is None:
            return end
        until = self._until(rows)
        reached = f"{until:,.4g}" if until < math.inf else "not reached"
        return f"{reached} ({end})"

    def _until(self, rows: Rows) -> float:
        if self.target is None:
            return 0.0
        target = self.target(rows)
        return statistics.fmean(frames.first(row[self.along], row[self.of], target, mode=self.mode) for row in rows)


BY_ACCURACY = Score()
LEARNING_RATE: Mapping[str, Value] = {"learning rate": Value("rate", None, is_fixed=True)}  # columns of a summary
RATE_AND_ACCURACY: Mapping[str, Value] = {**LEARNING_RATE, "test accuracy at the end": Value("end", 2, "%")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """The runs of most claims: points to compare, each with a value that is picked on the validation split.

    Tuning runs try each value of a grid. Where the best is the least or the greatest of them, the grid is continued by
    its own ratio until it is inside, so that no method is held back by a grid that ends too early. Then the reported
    runs come: the picked value, all seeds, the test split.

    Attributes:
      points: scale -> the points to compare.
      grid: (scale, point) -> the values to try first, ascending.
      recipe: (scale, labels of the point, the value) -> its run, to which the split, the seed, their labels and that of
        the data are added.
      seeds: scale -> number of reported seeds.
      first_seeds: scale -> the first reported seed (default 0), above 0 if results of earlier seeds were known when the
        rule was written.
      score: tuning runs of one value -> its score, which is larger for better values.
      tuning_seeds: scale -> number of seeds that each value is tried with (default 3, and 1 at smoke scale).
      extensions: scale -> how many values a grid may grow by, in all (default 8, and none at smoke scale).
      key: label of the value.
      value: what the value is, in words.
      tuned_at: (scale, point) -> the point whose pick it uses; by default its own.
      stages: labels of tuning runs, and of reported runs.
      reported_flags: flags of train.py for reported runs that need more than one device, such as live ones.
      first: labels that come first in the names of runs.
    """

    points: Callable[[Scale], Sequence[Point]]
    grid: Callable[[Scale, Point], Sequence[float]]
    recipe: Callable[..., Run]
    seeds: Mapping[Scale, int]
    first_seeds: Mapping[Scale, int] = dataclasses.field(default_factory=dict)
    score: Score = BY_ACCURACY
    tuning_seeds: Mapping[Scale, int] = dataclasses.field(default_factory=dict)
    extensions: Mapping[Scale, int] = dataclasses.field(default_factory=dict)
    key: str = "rate"
    value: str = "learning rate"
    tuned_at: Callable[[Scale, Point], Point] = lambda scale, point: point
    stages: tuple[Mapping[str, str], Mapping[str, str]] = ({"split": "validation"}, {"split": "test"})
    first: Sequence[str] = ()
    reported_flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def claim(self, **declared: Any) -> Claim:
        """Returns the claim of these runs; ``declared`` are its other attributes, and may replace those made here."""
        made: dict[str, Any] = {"runs": self.runs, "frame": self.frame, "values": RATE_AND_ACCURACY}
        return Claim(tuned=self, **(made | declared))

    def frame(self, rows: Rows, *columns: str) -> Frame:
        """Returns the reported runs, by seed, with their accuracy at the end in percent if they measure one.

        ``columns`` are quantities that some runs do not measure; the frame has them in any case.
        """
        df = frames.frame(self.tests(rows), *columns)
        return df.assign(end=frames.accuracy(df)) if "accuracy" in df else df

    @property
    def selection(self) -> str:
        """How values are picked, as a sentence."""
        points = self.points("laptop")
        labels = dict.fromkeys(label.replace("_", " ") for point in points for label in point)
        each = f" of each {', '.join(labels)}" if len(points) > 1 else ""
        grids = [sorted(self.grid("laptop", at)) for at in self._tuned_points("laptop", points)]
        grid = "a grid of its own"
        goes_on = " that goes on by its own ratio until the pick is inside"
        if all(other == grids[0] for other in grids):
            grid = ", ".join(f"{value:g}" for value in grids[0])
            goes_on = f", a grid{goes_on}"
        if self.extensions.get("laptop", MAX_EXTENSIONS) and len(grids[0]) > 1:
            grid += goes_on
        num_seeds = self._tuning_seeds("laptop")
        seeds = "one seed" if num_seeds == 1 else f"mean of {num_seeds} seeds"
        return f"The {self.value}{each}: {self.score.best} on the validation split, {seeds}, of {grid}."

    def runs(self, scale: Scale, rows: Rows) -> list[Run]:
        """Returns the tuning runs, then the reported runs of each point that is tuned."""
        points = self.points(scale)
        tuning = self.tuning_runs(scale, rows, points)
        return tuning + [run for point in points for run in self.final_runs(scale, rows, point)]

    def tuning_runs(self, scale: Scale, rows: Rows, points: Sequence[Point]) -> list[Run]:
        """Returns the tuning runs of these points; grids grow as rows are finished."""
        return [
            self.run(scale, at, value, stage=0, seed=seed)
            for at in self._tuned_points(scale, points)
            for value in self.values(scale, rows, at)
            for seed in range(self._tuning_seeds(scale))
        ]

    def final_runs(self, scale: Scale, rows: Rows, point: Point) -> list[Run]:
        """Returns the reported runs of a point; none before its tuning runs are finished."""
        if not self.is_tuned(scale, rows, point):
            return []
        return self.reported_runs(scale, point, self.picked(rows, **self.tuned_at(scale, point)))

    def reported_runs(self, scale: Scale, point: Point, value: Any) -> list[Run]:
        """Returns the reported runs of a point with this value."""
        first = self.first_seeds.get(scale, 0)
        seeds = range(first, first + self.seeds[scale])
        return [self.run(scale, point, value, stage=1, seed=seed) for seed in seeds]

    def run(self, scale: Scale, point: Point, value: Any, *, stage: int, seed: int) -> Run:
        """Returns one run; all scales but the paper's take one device, on which workers are lanes."""
        own = {**point, self.key: value}
        run = self.recipe(scale, **own)
        labels = {**own, **self.stages[stage], "seed": seed}
        if "data.name" in run.overrides:
            labels["data"] = run.overrides["data.name"]
        labels |= run.labels
        flags: Mapping[str, Any] = {} if scale == "paper" else {"num_devices": 1}
        if stage and self.reported_flags:
            flags = self.reported_flags
        return dataclasses.replace(
            run,
            labels={key: labels[key] for key in (*self.first, *labels)},
            overrides={**run.overrides, "data.evaluate_on": SPLITS[stage], "seed": seed},
            flags=flags,
        )

    def values(self, scale: Scale, rows: Rows, point: Point) -> list[float]:
        """Returns the values to try at a point: its grid, continued at an end as long as the best value is there.

        >>> tuned = Tuned(points=lambda scale: [{}], grid=lambda scale, point: (0.1, 0.2), recipe=Run, seeds={})
        >>> row = {"split": "validation", "seed": 0}
        >>> tried = [{**row, "rate": 0.1, "accuracy": [0.5]}, {**row, "rate": 0.2, "accuracy": [0.9]}]
        >>> dataclasses.replace(tuned, tuning_seeds={"laptop": 1}).values("laptop", tried, {})
        [0.1, 0.2, 0.4]
        """
        at = self.tuned_at(scale, point)
        values = sorted(self.grid(scale, at))
        tried = self._by_value(rows, at)
        most = 0 if scale == "smoke" else MAX_EXTENSIONS
        for _ in range(self.extensions.get(scale, most)):
            if len(values) < 2 or not self._are_finished(scale, tried, values):
                break
            best = self._best({value: tried[value] for value in values})
            if best == values[0]:
                values.insert(0, _continued(values[1], values[0]))
            elif best == values[-1]:
                values.append(_continued(values[-2], values[-1]))
            else:
                break
        return values

    def is_tuned(self, scale: Scale, rows: Rows, point: Point) -> bool:
        """Returns whether all tuning runs are finished that a point's value is picked from."""
        tried = self._by_value(rows, self.tuned_at(scale, point))
        return self._are_finished(scale, tried, self.values(scale, rows, point))

    def _are_finished(self, scale: Scale, tried: Mapping[Any, Rows], values: Sequence[float]) -> bool:
        needed = self._tuning_seeds(scale)
        return all(len(tried.get(value, ())) >= needed for value in values)

    def tried(self, rows: Rows, **labels: Any) -> list[Row]:
        """Returns the finished tuning runs with these labels."""
        return _with(rows, **labels, **self.stages[0])

    def picked(self, rows: Rows, **labels: Any) -> Any:
        """Returns the value of the best tuning runs with these labels; None before one is finished."""
        tried = self._by_value(rows, labels)
        most = max(map(len, tried.values()), default=0)
        complete = {value: found for value, found in tried.items() if len(found) == most}
        return self._best(complete) if complete else None

    def tests(self, rows: Rows, **labels: Any) -> list[Row]:
        """Returns the reported rows with these labels, by seed."""
        return sorted(_with(rows, **labels, **self.stages[1]), key=lambda row: row["seed"])

    def is_inside(self, rows: Rows, **labels: Any) -> bool:
        """Returns whether the pick lies inside its grid: worse values were tried on both sides, or no others at all."""
        values = self._by_value(rows, labels)
        return len(values) < 2 or self.picked(rows, **labels) not in (min(values), max(values))

    def edge(self, scale: Scale, rows: Rows) -> str:
        """Returns a sentence on the first pick at the edge of its grid, on which no verdict can rest; "" if none is."""
        for at in self._tuned_points(scale, self.points(scale)):
            if not self.is_inside(rows, **at):
                where = f" of {_named(at)}" if at else ""
                picked = self.picked(rows, **at)
                return f"The {self.key}{where} was picked at the edge of its grid, {picked:g}."
        return ""

    def table(self, scale: Scale, rows: Rows) -> Frame:
        """Returns the grids: the values that were tried, their scores, the picks, and how often a grid was extended."""
        cells = []
        for at in self._tuned_points(scale, self.points(scale)):
            tried = self._by_value(rows, at)
            if not tried:
                continue
            scores = [f"{value:g}: {self.score.in_words(tried[value])}" for value in sorted(tried)]
            fewest = min(map(len, tried.values()))
            picked = self.picked(rows, **at)
            if len(tried) == 1:
                place = "one value"
            elif all(self.score(found)[1] == -math.inf for found in tried.values()):
                place = "none learns"
            else:
                place = "inside" if self.is_inside(rows, **at) else "at the edge"
            added = len(tried.keys() - self.grid(scale, at))
            cells.append([_named(at) or "all", ", ".join(scores), str(fewest), f"{picked:g}", place, str(added)])
        header = ["Tuned", f"{self.score.title} by {self.key}", "Seeds", "Picked", "In its grid", "Values added"]
        return pd.DataFrame(cells, columns=header)

    def _best(self, tried: Mapping[Any, Rows]) -> Any:
        """Returns the value with the best score, of equal ones the one in the middle."""
        values = sorted(tried)
        middle = (len(values) - 1) / 2
        scores = [(self.score(tried[value]), -abs(place - middle)) for place, value in enumerate(values)]
        return values[scores.index(max(scores))]

    def _tuned_points(self, scale: Scale, points: Sequence[Point]) -> list[Point]:
        """Returns the points that values are picked at, each once."""
        found = [self.tuned_at(scale, point) for point in points]
        return [at for place, at in enumerate(found) if at not in found[:place]]

    def _tuning_seeds(self, scale: Scale) -> int:
        return self.tuning_seeds.get(scale, 1 if scale == "smoke" else 3)

    def _by_value(self, rows: Rows, labels: Mapping[str, Any]) -> dict[Any, list[Row]]:
        """Returns the tuning runs of each value that was tried."""
        found: dict[Any, list[Row]] = {}
        for row in self.tried(rows, **labels):
            found.setdefault(row[self.key], []).append(row)
        return found


def _with(rows: Rows, **labels: Any) -> list[Row]:
    """Returns the rows with these labels."""
    return [row for row in rows if labels.items() <= row.items()]


def _continued(inner: float, edge: float) -> float:
    """Returns the value beyond the edge of a grid, by the ratio of its last two.

    >>> _continued(0.1, 0.3), _continued(0.2, 0.1)
    (0.9, 0.05)
    """
    return float(f"{edge * edge / inner:.3g}")


def _named(point: Point) -> str:
    """Returns a point in words.

    >>> _named({"reducer": "sum", "num_workers": 8})
    'sum, num_workers 8'
    """
    return ", ".join(value if isinstance(value, str) else f"{key} {value}" for key, value in point.items())


def _last(row: Row, key: str) -> float:
    """Returns a quantity at the last evaluation; NaN if the run has none."""
    return float(row[key][-1]) if row.get(key) else math.nan
