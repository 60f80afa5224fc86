"""What a run does turn by turn: a step of all workers, or a wave of an asynchronous run; and which turns go together.

A step is an update of the server. A synchronous turn is one step; a wave is several, or none where gradients still
wait for others of their update.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

import asynchronous

Numbers = dict[str, float]
Measure = Callable[[Mapping[str, Any]], Numbers]


class Turn(NamedTuple):
    """One step of all workers, or one wave.

    Attributes:
      steps: those that it completes, counted from 1.
      draw: [W] int64, the number of each worker's batch; -1 where it has none.
      plan: what the reduce half is told of each worker, [W] each.
      arrivals: the gradients of a wave; None where all come together.
      is_whole: no gradient waits for others of its update, so that a run can stop here.
      begins_whole: the same of the moment before it.
    """

    steps: range
    draw: np.ndarray
    plan: Mapping[str, np.ndarray] = {}
    arrivals: asynchronous.Events | None = None
    is_whole: bool = True
    begins_whole: bool = True

    def reaches(self, period: int) -> bool:
        """Tells whether it ends with a step that is a multiple of ``period``."""
        return bool(self.steps) and self.is_whole and self.steps[-1] % period == 0


class Dispatch(NamedTuple):
    """Turns that the devices are asked for at once, one after another.

    >>> together = Dispatch(tuple(Together(num_workers=2, num_counted=2).turns(5, 8, stops=())))
    >>> together.draw
    array([[10, 11],
           [12, 13],
           [14, 15]])
    """

    turns: tuple[Turn, ...]

    @property
    def first_step(self) -> int:
        """The first that it completes, counted from 1; the next, where it completes none."""
        return self.turns[0].steps.start

    @property
    def last_step(self) -> int:
        """The last that is complete after it."""
        return self.turns[-1].steps.stop - 1

    @property
    def draw(self) -> np.ndarray:
        """[W] of one turn, [k, W] of several."""
        return _together([turn.draw for turn in self.turns])

    @property
    def plan(self) -> dict[str, np.ndarray]:
        """[W] each of one turn, [k, W] of several."""
        return {name: _together([turn.plan[name] for turn in self.turns]) for name in self.turns[0].plan}

    def each(self, measured: Any) -> Iterator[tuple[Turn, Any]]:
        """Yields each turn with its part of what all measured: leaves [...] of one turn, [k, ...] of several."""
        for i, turn in enumerate(self.turns):
            yield turn, measured if len(self.turns) == 1 else jax.tree.map(operator.itemgetter(i), measured)


def _together(columns: Sequence[np.ndarray]) -> np.ndarray:
    return columns[0] if len(columns) == 1 else np.stack(columns)


def dispatches(turns: Iterable[Turn], *, size: int, stops: Sequence[int]) -> Iterator[Dispatch]:
    """Takes ``size`` turns at a time together, none across a multiple of a stop; too few before one go one by one.

    So two programs do for a run of any length. A run that stops after a dispatch, and goes on from there, has the same
    dispatches as one that never stopped.

    >>> turns = Together(num_workers=2, num_counted=2).turns(5, 17, stops=())
    >>> [len(some.turns) for some in dispatches(turns, size=3, stops=(10,))]
    [3, 1, 1, 3, 3, 1]
    """
    waiting: list[Turn] = []
    for turn in turns:
        waiting.append(turn)
        if len(waiting) == size:
            yield Dispatch(tuple(waiting))
            waiting = []
        elif any(turn.reaches(stop) for stop in stops):
            yield from (Dispatch((one,)) for one in waiting)
            waiting = []
    yield from (Dispatch((one,)) for one in waiting)


class Collector(Protocol):
    """Takes a turn and what it measured, on the host; returns the steps that are complete, with their numbers."""

    def __call__(self, turn: Turn, metrics: Mapping[str, Any]) -> list[tuple[int, Numbers]]: ...


class Timetable(Protocol):
    """The turns of a run: a pure function of the step at which they begin."""

    gradients_per_step: int  # that are computed
    num_counted: int  # that an update counts, where that is fixed
    plan: Mapping[str, np.dtype]  # of a worker's part of a turn's plan

    def turns(self, first_step: int, num_steps: int, *, stops: Sequence[int]) -> Iterator[Turn]:
        """Yields the turns after ``first_step`` steps up to ``num_steps``; none goes across a multiple of a stop."""

    def collector(self, *, seconds: float, measure: Measure) -> Collector:
        """Returns what makes numbers of each step out of what turns measured, from a simulated moment on.

        Args:
          seconds: that moment.
          measure: what the sums of a step's gradients come to.
        """

    def staleness(self, num_steps: int) -> np.ndarray | None:
        """Counts the gradients of the first steps by worker and staleness, [W, S]; None where none is stale."""


class Together:
    """Synchronous: each turn is a step of all workers, and worker w draws number ``step * W + w``.

    >>> turn = next(Together(num_workers=2, num_counted=2).turns(5, 9, stops=()))
    >>> turn.steps, turn.draw
    (range(6, 7), array([10, 11]))
    """

    plan: Mapping[str, np.dtype] = {}

    def __init__(self, *, num_workers: int, num_counted: int):
        self.gradients_per_step, self.num_counted = num_workers, num_counted

    def turns(self, first_step: int, num_steps: int, *, stops: Sequence[int]) -> Iterator[Turn]:
        """Yields one turn for each step."""
        del stops
        for step in range(first_step, num_steps):
            first_draw = step * self.gradients_per_step
            yield Turn(range(step + 1, step + 2), np.arange(first_draw, first_draw + self.gradients_per_step))

    def collector(self, *, seconds: float, measure: Measure) -> Collector:
        """Returns the step's numbers as they were measured."""
        del seconds, measure
        return lambda turn, metrics: [(turn.steps[-1], {name: float(value) for name, value in metrics.items()})]

    def staleness(self, num_steps: int) -> None:
        """Nothing is stale."""


class InWaves:
    """Asynchronous: turns are the waves of an event order, which follows from the durations of tasks alone."""

    plan: Mapping[str, np.dtype] = {name: np.dtype(np.int32) for name in ("position", "staleness", "reads_after")}

    def __init__(self, durations: asynchronous.Durations, *, num_workers: int, mode: asynchronous.Mode):
        self._durations, self._num_workers, self._mode = durations, num_workers, mode
        self.gradients_per_step = self.num_counted = mode.gradients_per_update

    def _order(self, first_event: int, num_events: int):
        return asynchronous.order(
            self._durations,
            num_workers=self._num_workers,
            num_events=num_events,
            first_event=first_event,
            staleness_bound=self._mode.staleness_bound,
            gradients_per_update=self._mode.gradients_per_update,
        )

    def turns(self, first_step: int, num_steps: int, *, stops: Sequence[int]) -> Iterator[Turn]:
        """Yields one turn for each wave."""
        count = self.gradients_per_step
        first_event = first_step * count
        waves = asynchronous.waves(
            self._order(first_event, num_steps * count),
            num_workers=self._num_workers,
            first_event=first_event,
            stops=[stop * count for stop in stops],
        )
        for wave in waves:
            plan = {name: getattr(wave.slots, name) for name in self.plan}
            steps = range(wave.first_event // count + 1, wave.next_event // count + 1)
            whole = {"is_whole": wave.next_event % count == 0, "begins_whole": wave.first_event % count == 0}
            yield Turn(steps, wave.slots.batch_index, plan, wave.events, **whole)

    def collector(self, *, seconds: float, measure: Measure) -> Collector:
        """Returns what keeps gradients until those of a step are complete."""
        return _Groups(self.gradients_per_step, seconds=seconds, measure=measure)

    def staleness(self, num_steps: int) -> np.ndarray:
        """Counts the gradients of the first steps by worker and staleness."""
        counts = np.zeros((self._num_workers, 1), np.int64)
        for events, _ in self._order(0, num_steps * self.gradients_per_step):
            part = asynchronous.histogram(events.worker, events.staleness, num_workers=self._num_workers)
            counts = asynchronous.merge(counts, part)
        return counts


class _Groups:
    """Makes the numbers of steps out of those of gradients, which may have come in several waves."""

    def __init__(self, size: int, *, seconds: float, measure: Measure):
        self._size, self._seconds, self._measure = size, seconds, measure
        self._waiting: list[Numbers] = []

    def __call__(self, turn: Turn, metrics: Mapping[str, Any]) -> list[tuple[int, Numbers]]:
        assert turn.arrivals is not None
        complete: list[tuple[int, Numbers]] = []
        for i, staleness in enumerate(turn.arrivals.staleness):
            numbers = {name: float(column[i]) for name, column in metrics["gradients"].items()}
            self._waiting.append({**numbers, "staleness": float(staleness)})
            if len(self._waiting) == self._size:
                update = len(complete)
                of_update = {name: float(column[update]) for name, column in metrics["updates"].items()}
                contributors = float(self._size if of_update["rate"] > 0 else 0)
                time = {"step_seconds": self._lap(turn.arrivals.seconds[i]), "contributors": contributors}
                complete.append((turn.steps[update], {**self._of_step(), **of_update, **time}))
                self._waiting = []
        return complete

    def _lap(self, arrival: float) -> float:
        # Since the sum of all laps, as the tally has it, and not since the arrival before: so resuming keeps the bits.
        lap = float(arrival) - self._seconds
        self._seconds += lap
        return lap

    def _of_step(self) -> Numbers:
        gradients = self._waiting
        total = {name: sum(g[name] for g in gradients) for name in gradients[0]}
        return {
            **{name: float(value) for name, value in self._measure(total).items()},
            "gradient_norm": (total["squared_norm"] / len(gradients)) ** 0.5,  # root mean square, as over workers
            "staleness": total["staleness"] / len(gradients),
        }
