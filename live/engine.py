"""The interface between the server and the processes of its workers, which Ray or a test implements."""

from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from training.train_state import TrainState


class Task(NamedTuple):
    """A gradient of each worker of a process.

    Attributes:
      number: number of the step, counted from 0.
      shared: the part of the state that all workers get, NumPy; the same object for all processes of a step.
      worker, snapshot: the workers' own rows of the state, NumPy, [k, ...] a leaf.
      batch_index: [k] int64, the number of each worker's batch.
      least_seconds: least duration of the task; the workers sleep for the rest of it.
    """

    number: int
    shared: Any  # TrainState
    worker: Any
    snapshot: Any
    batch_index: np.ndarray
    least_seconds: float = 0.0

    @property
    def state(self) -> TrainState:
        """The state as the workers see it."""
        return self.shared._replace(worker=self.worker, snapshot=self.snapshot)


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


class Raised(NamedTuple):
    """A process's own code raised an exception; the process is gone."""

    process: int
    kind: str  # the exception's type, such as "MemoryError"
    message: str


Event: TypeAlias = Ready | Done | Died | Raised


class Engine(Protocol):
    """Runs worker processes. ``start`` and ``give`` do not fail: ``wait`` reports failures."""

    def clock(self) -> float:
        """Returns the seconds of a clock that only grows, by which gradients arrive."""

    def start(self, process: int) -> None:
        """Starts a process, or starts it again; ``wait`` returns ``Ready``, ``Died`` or ``Raised`` later."""

    def give(self, process: int, task: Task) -> None:
        """Gives a process that is ready a task, without waiting; ``wait`` returns ``Done``, ``Died`` or ``Raised``."""

    def wait(self, seconds: float) -> list[Event]:
        """Waits for events, at most so many seconds; returns those that have come, perhaps none."""

    def end(self) -> None:
        """Ends all processes."""
