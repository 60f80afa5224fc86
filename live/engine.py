"""The interface between the server and the processes of its workers: four verbs, which Ray or a test implements."""

from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from training.train_state import TrainState


class Task(NamedTuple):
    """A gradient of each worker of a process.

    Attributes:
      number: of the step, counted from 0.
      shared: what all workers are given of the state, NumPy; the same object for all processes of a step.
      own: the workers' own rows of the state, [k, ...] a leaf.
      batch_index: [k] int64, the number of each worker's batch.
      least_seconds: how long the workers take at least; they sleep for what is left.
    """

    number: int
    shared: Any  # TrainState
    own: TrainState
    batch_index: np.ndarray
    least_seconds: float = 0.0

    @property
    def state(self) -> TrainState:
        """The state as the workers see it."""
        return self.shared._replace(worker=self.own.worker, snapshot=self.own.snapshot)


class Ready(NamedTuple):
    """A process has started, and compiled its program."""

    process: int


class Done(NamedTuple):
    """A process has finished the task of a step."""

    process: int
    number: int
    work: Any  # WorkerGradient, [k, ...] a leaf


class Died(NamedTuple):
    """A process is gone, and with it what it was computing."""

    process: int
    reason: str


Event: TypeAlias = Ready | Done | Died


class Engine(Protocol):
    """Runs worker processes."""

    def clock(self) -> float:
        """Returns the seconds of a clock that only grows, by which gradients arrive."""

    def start(self, process: int) -> None:
        """Starts a process, or starts it again; ``wait`` returns ``Ready`` or ``Died`` of it later."""

    def give(self, process: int, task: Task) -> None:
        """Gives a process that is ready a task, without waiting for it; ``wait`` returns ``Done`` or ``Died`` later."""

    def wait(self, seconds: float) -> list[Event]:
        """Waits for events, at most so many seconds; returns those that have come, perhaps none.

        Raises:
          Exception: what a worker's own code raised.
        """

    def end(self) -> None:
        """Ends all processes."""
