"""The server of worker processes: it hands out the tasks of a step, and ends the step by the reducer's own rule."""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from live.engine import Died, Done, Engine, Event, Raised, Ready, Task
from runs.errors import ConfigError, one_line

_LONGEST_WAIT = 0.5  # seconds; then the server checks whether it must stop
_SOME_TIME = 1e30  # seconds, finite
_LONG_SILENCE = 20.0  # seconds without any event; or three times the longest silence so far
_MOST_FAILURES = 5  # exceptions of a process in a row, without a gradient between them


class Missing(Exception):
    """Too few workers to end the step have been alive for too long; the state is the one before the step."""


class Stopped(Exception):
    """A signal asked to stop while the step waited for workers; the state is the one before the step."""


class Gathered(NamedTuple):
    """The gradients that came in a step; times are counted from its beginning.

    Attributes:
      seconds: [W] float32, when each worker's gradient came; infinite if it did not.
      began: [W] float32, when each worker began it: 0 for an idle worker, whose time includes handing out the task;
        infinite for a worker that was late with an earlier step and did not begin.
      work: the work of each process that came.
    """

    seconds: np.ndarray
    began: np.ndarray
    work: dict[int, Any]


class Server:
    """Hands out tasks, and receives gradients and news of processes that died or started.

    A process that is late with an earlier step works on; its late gradient is dropped, and it gets the task of the open
    step, so that it begins this step late. A process that dies, or whose code raises an exception, is started again.
    One that hangs counts as late.

    Differs from a simulated run in: in a simulation all workers begin each step together.

    Args:
      engine: runs the processes.
      num_processes: P.
      workers_per_process: k; worker w belongs to process w // k.
      patience: seconds after which a step with too few living processes is given up.
      is_to_stop: returns whether a waiting step must be given up.
      report: called with a line about a process that died.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        num_processes: int,
        workers_per_process: int = 1,
        patience: float,
        is_to_stop: Callable[[], bool] = lambda: False,
        report: Callable[[str], Any] = lambda line: None,
    ):
        self._engine = engine
        self._num_processes = num_processes
        self._per_process = workers_per_process
        self._patience = patience
        self._is_to_stop = is_to_stop
        self._report = report
        self._working_on: dict[int, int] = {}  # process -> number of its task
        self._idle: set[int] = set()
        self._why_dead: dict[int, str] = {}  # process that is being restarted -> reason
        self._num_failures = collections.Counter[int]()  # exceptions of each process since its last gradient
        self._failed: str | None = None  # why the run must be given up
        self._were_ready: set[int] = set()
        self._lacking_since: float | None = None
        self._silent_since = engine.clock()
        self._longest_silence = 0.0
        self._is_reported = False
        self._arrived: collections.deque[tuple[int, Any]] = collections.deque()  # gradients that no step has taken yet
        for process in range(num_processes):
            engine.start(process)

    def wait_until_ready(self) -> None:
        """Waits until all processes have started.

        Raises:
          Missing: if one has not started within the patience.
          Stopped: if asked to.
        """
        while len(self._idle) < self._num_processes:
            self._hear(_LONGEST_WAIT)
            self._check_patience(enough=len(self._idle) == self._num_processes)
        self._lacking_since = None

    def gather(
        self, number: int, task_of: Callable[[int], Task], step_seconds: Callable[[np.ndarray], float]
    ) -> Gathered:
        """Takes a step, which ends when the reducer's rule has enough gradients.

        Args:
          number: number of the step.
          task_of: returns the task of a process; called when the process begins it.
          step_seconds: the reducer's rule: [W] seconds, infinite for workers that have not arrived -> the time at
            which the step ends, infinite if that is not known yet.

        Raises:
          Missing: if fewer processes than the rule needs are alive for longer than the patience, or a process keeps
            raising exceptions.
          Stopped: if asked to.
        """
        seconds, began = np.full((2, self._num_processes * self._per_process), np.inf, np.float32)
        end = float(step_seconds(seconds))  # compiles the rule, the first time
        work: dict[int, Any] = {}
        start = self._engine.clock()

        def begin(process: int, *, at: float) -> None:
            began[self._workers(process)] = at
            self.give(process, task_of(process))

        for process in sorted(self._idle):
            begin(process, at=0.0)
        while (left := end - (self._engine.clock() - start)) > 0:
            for event in self._hear(min(left, _LONGEST_WAIT)):
                if isinstance(event, Done) and event.number == number:
                    work[event.process] = event.work
                    seconds[self._workers(event.process)] = self._engine.clock() - start
                elif isinstance(event, Done | Ready):  # it is late with another step, or has just started
                    begin(event.process, at=self._engine.clock() - start)
            end = float(step_seconds(seconds))
            hoped = seconds.copy()
            for process in self._working_on:
                hoped[self._workers(process)] = _SOME_TIME
            self._check_patience(enough=bool(np.isfinite(end) or np.isfinite(step_seconds(hoped))))
        self._lacking_since = None
        return Gathered(seconds, began, work)

    def next_arrival(self, task_of: Callable[[int], Task], *, may_stop: bool) -> tuple[int, Any]:
        """Waits for the next gradient of an asynchronous run; returns its process and the work.

        Args:
          task_of: returns the last task of a process, which is repeated if the process died during it.
          may_stop: whether a state can be saved now; if not, a request to stop waits while any process computes.

        Raises:
          Missing: if no process has computed for longer than the patience, or a process keeps raising exceptions.
          Stopped: if asked to.
        """
        while not self._arrived:
            for event in self._hear(_LONGEST_WAIT):
                if isinstance(event, Done):
                    self._arrived.append((event.process, event.work))
                elif isinstance(event, Ready):
                    self.give(event.process, task_of(event.process))
            someone = bool(self._working_on or self._arrived)
            self._check_patience(enough=someone, may_stop=may_stop or not someone)
        return self._arrived.popleft()

    def give(self, process: int, task: Task) -> None:
        """Gives an idle process a task."""
        self._idle.discard(process)
        self._working_on[process] = task.number
        self._engine.give(process, task)

    def _workers(self, process: int) -> slice:
        return slice(process * self._per_process, (process + 1) * self._per_process)

    def _hear(self, seconds: float) -> Sequence[Event]:
        """Waits for events; marks processes that are ready or done as idle, and restarts dead ones."""
        events = self._engine.wait(seconds)
        self._report_silence(is_over=bool(events))
        for event in events:
            self._working_on.pop(event.process, None)
            match event:
                case Died(process, reason):
                    self._start_again(process, reason, f"died ({reason})")
                case Raised(process, "ConfigError", message) if process not in self._were_ready:
                    raise ConfigError(message)  # no step was taken
                case Raised(process, kind, message):
                    reason = one_line(f"{kind}: {message}")
                    self._num_failures[process] += 1
                    if self._num_failures[process] >= _MOST_FAILURES:
                        self._failed = f"{self._name(process)}: {reason}, {_MOST_FAILURES} times in a row"
                        self._why_dead[process] = reason
                    else:
                        self._start_again(process, reason, f"raised {reason}")
                case Ready(process):
                    self._idle.add(process)
                    self._were_ready.add(process)
                    if self._why_dead.pop(process, ""):
                        self._report(f"{self._name(process)} is back")
                case Done(process):
                    self._idle.add(process)
                    self._num_failures[process] = 0
        return events

    def _report_silence(self, *, is_over: bool) -> None:
        """Reports once, after a long silence, the workers whose gradients have not come."""
        now = self._engine.clock()
        silence = now - self._silent_since
        if is_over:
            self._longest_silence = max(self._longest_silence, silence)
            self._silent_since = now
            self._is_reported = False
        elif self._working_on and not self._is_reported and silence >= max(_LONG_SILENCE, 3 * self._longest_silence):
            names = ", ".join(map(self._name, sorted(self._working_on)))
            self._report(f"{names}: at work, and nobody's gradient has come for {silence:.0f} s")
            self._is_reported = True

    def _start_again(self, process: int, reason: str, happened: str) -> None:
        self._idle.discard(process)
        self._why_dead[process] = reason
        self._report(f"{self._name(process)} {happened}, and is started again")
        self._engine.start(process)

    def _check_patience(self, *, enough: bool, may_stop: bool = True) -> None:
        """Raises Stopped if asked to stop, and Missing if there were not ``enough`` workers for too long."""
        if may_stop and self._is_to_stop():
            raise Stopped
        if may_stop and self._failed is not None:
            raise Missing(self._failed)
        now = self._engine.clock()
        if enough:
            self._lacking_since = None
        elif self._lacking_since is None:
            self._lacking_since = now
        elif now - self._lacking_since >= self._patience:
            gone = [p for p in range(self._num_processes) if p not in self._idle and p not in self._working_on]
            reasons = {self._why_dead[p] for p in gone if p in self._why_dead}
            why = f" ({'; '.join(sorted(reasons))})" if reasons else ""
            names = ", ".join(self._name(p) for p in gone)
            raise Missing(f"{names}: not there for {self._patience:g} s{why}, and too few workers are left")

    def _name(self, process: int) -> str:
        workers = range(self._num_processes * self._per_process)[self._workers(process)]
        return f"worker {workers[0]}" if self._per_process == 1 else f"workers {workers[0]} to {workers[-1]}"
