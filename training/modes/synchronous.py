"""Synchronous SGD: all workers compute gradients at the same parameters, which together make one update."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import parallel
import reducers
from parallel import Layout
from training import step_plan
from training.steps.train_step import make_train_step
from training.train_setup import Mode, TrainSetup


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Synchronous(Mode):
    """All workers meet in each step, at the reducer."""

    all_compute = True
    gradients_per_update = None
    waits_in = "reducer"

    def check(self) -> None:
        """Refuses nothing: the reducer and its place have checks of their own."""

    def needs_times(self, reducer: reducers.Reducer) -> bool:
        """Returns whether the reducer does."""
        return reducer.needs_arrivals

    def fewest_arrivals(self, reducer: reducers.Reducer, *, step: int) -> int:
        """Returns what the reducer says."""
        return reducer.fewest_arrivals(step=step, num_workers=self.num_workers)

    def traffic(self, params: Any) -> None:
        """Returns None: it is the reducer's."""

    def init(self, params: Any) -> dict[str, Any]:
        """Returns no state of its own."""
        return {"server": None, "snapshot": None, "replica": None}

    @property
    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """A step has no inputs but its batches."""
        return {}

    def waves(self, first_step: int, *, stops: Sequence[int] = ()) -> Iterator[step_plan.PlannedWave]:
        """Yields one wave for each step."""
        return step_plan.synchronous_waves(first_step, self.num_steps, num_workers=self.num_workers)

    def events(self) -> None:
        """Returns None: all arrive together."""

    def make_step(
        self, setup: TrainSetup, layout: Layout, *, map_workers: Callable[..., parallel.Step]
    ) -> parallel.Step:
        """Returns the step of ``training.steps.train_step``."""
        return make_train_step(setup, layout, map_workers=map_workers)
