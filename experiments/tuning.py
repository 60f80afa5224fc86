"""Values, mostly learning rates, that are picked on the validation split, and runs with them over seeds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import rows as ask
from experiments.experiment import Row, Rows, Run, Scale

Point = Mapping[str, Any]  # labels that a run shares with the others of its point: all but the value, split and seed
SPLITS = ("validation", "test")  # of the two stages
NAMED_STAGES = ({"stage": "tuning"}, {"stage": "final"})  # labels of some claims' runs in place of the split


def epochs(
    total: float, *, evaluate: float, log: float | None = None, checkpoint: float | None = None
) -> dict[str, Any]:
    """Returns overrides for a run of so many epochs that keeps its last checkpoint; all arguments are in epochs.

    >>> epochs(8, evaluate=2)["checkpoint_every_epochs"]
    8
    """
    found = {"train_epochs": total, "eval_every_epochs": evaluate, "checkpoint_every_epochs": checkpoint or total}
    return found | ({} if log is None else {"log_every_epochs": log}) | {"keep_checkpoints": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """The runs of most claims: points to compare, each with a value that is picked on the validation split.

    Tuning runs try each value of a grid with seed 0. Once all of them are finished, the reported runs come: the picked
    value, all seeds, the test split.

    Attributes:
      points: scale -> the points to compare.
      grid: (scale, point) -> the values to try.
      recipe: (scale, labels of the point, the value) -> its run, which needs neither split nor seed nor their labels.
      seeds: number of seeds that are reported at each scale.
      pick: finished tuning runs of a point -> the one with the value to take; the default is the most accurate.
      key: label of the value.
      tuned_at: (scale, point) -> the point whose value it takes; the default is itself.
      stages: labels of tuning runs, and of reported runs.
      first: labels that come first in the names of runs.
    """

    points: Callable[[Scale], Sequence[Point]]
    grid: Callable[[Scale, Point], Sequence[float]]
    recipe: Callable[..., Run]
    seeds: Mapping[Scale, int]
    pick: Callable[[Rows], Row] = lambda tried: ask.best(tried, by="accuracy")
    key: str = "rate"
    tuned_at: Callable[[Scale, Point], Point] = lambda scale, point: point
    stages: tuple[Mapping[str, str], Mapping[str, str]] = ({"split": "validation"}, {"split": "test"})
    first: Sequence[str] = ()

    def runs(self, scale: Scale, rows: Rows) -> list[Run]:
        """Returns the tuning runs, then the reported runs of each point that is tuned."""
        points = self.points(scale)
        tuning = self.tuning_runs(scale, points)
        return tuning + [run for point in points for run in self.final_runs(scale, rows, point)]

    def tuning_runs(self, scale: Scale, points: Sequence[Point]) -> list[Run]:
        """Returns the runs that the values of these points are picked from."""
        found: list[Run] = []
        done: list[Point] = []
        for at in (self.tuned_at(scale, point) for point in points):
            if at not in done:
                found += [self.run(scale, at, value, stage=0, seed=0) for value in self.grid(scale, at)]
                done.append(at)
        return found

    def final_runs(self, scale: Scale, rows: Rows, point: Point) -> list[Run]:
        """Returns the reported runs of a point; none before its tuning runs are finished."""
        if not self.is_tuned(scale, rows, point):
            return []
        value = self.picked(rows, **self.tuned_at(scale, point))
        return [self.run(scale, point, value, stage=1, seed=seed) for seed in range(self.seeds[scale])]

    def run(self, scale: Scale, point: Point, value: Any, *, stage: int, seed: int) -> Run:
        """Returns one run; all scales but the paper's take one device, on which workers are lanes."""
        run = self.recipe(scale, **{**point, self.key: value})
        labels = {**point, self.key: value, **self.stages[stage], "seed": seed, **run.labels}
        return dataclasses.replace(
            run,
            labels={key: labels[key] for key in (*self.first, *labels)},
            overrides={**run.overrides, "data.evaluate_on": SPLITS[stage], "seed": seed},
            flags={} if scale == "paper" else {"num_devices": 1},
        )

    def is_tuned(self, scale: Scale, rows: Rows, point: Point) -> bool:
        """Returns whether all tuning runs are finished that a point's value is picked from."""
        at = self.tuned_at(scale, point)
        return set(self.grid(scale, at)) <= {row[self.key] for row in self.tried(rows, **at)}

    def tried(self, rows: Rows, **labels: Any) -> list[Row]:
        """Returns the finished tuning runs with these labels."""
        return ask.select(rows, **labels, **self.stages[0])

    def picked(self, rows: Rows, **labels: Any) -> Any:
        """Returns the value of the best tuning run with these labels; None before one is finished."""
        tried = self.tried(rows, **labels)
        return self.pick(tried)[self.key] if tried else None

    def tests(self, rows: Rows, **labels: Any) -> list[Row]:
        """Returns the reported rows with these labels."""
        return ask.select(rows, **labels, **self.stages[1])
