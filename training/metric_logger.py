"""Turns the metrics of steps into records, progress and counters."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import runs
from parallel import Layout
from training import noise_scale
from training.setup import TrainSetup
from training.step_plan import PlannedWave, StepPlan
from training.step_times import ProcessTimes
from training.steps import nonfinite

Numbers = dict[str, float]

_MAX_SKIPPED_SHOWN = 5  # skipped steps that get a line each


class MetricLogger(contextlib.AbstractContextManager["MetricLogger"]):
    """Turns the metrics of finished calls into run counters, records and progress, in the order of the steps.

    Attributes:
      counters: sums and averages over all steps so far; part of every checkpoint.
      clock: the host's clock of the run.
      last_evaluation: the last record of an evaluation; None before the first one. Processes other than the first know
        only the evaluations of this start.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      folder: the run's folder; the first process keeps the records.
      start: steps that were done before this start of the run.
      is_restored: whether the run resumed from a checkpoint, perhaps that of step 0.
      counters: the run's totals so far.
      process_times: if given, what each process does by itself is in the records; every lap ends in all of them.
      sinks: further places for the records of the first process.
    """

    def __init__(
        self,
        setup: TrainSetup,
        layout: Layout,
        folder: runs.Folder,
        *,
        start: int,
        is_restored: bool,
        counters: runs.RunCounters,
        process_times: ProcessTimes | None = None,
        sinks: Sequence[runs.Sink] = (),
    ):
        self.counters = counters
        self._setup = setup
        self._layout = layout
        self._start = start
        self._process_times = process_times
        self._numbers = StepNumbers(setup, simulated_seconds=counters.simulated_seconds)
        self._last: Numbers = {}
        self._num_skipped = 0
        self._records: runs.Records | None = None
        self._sinks: list[runs.GuardedSink] = []
        self.last_evaluation: dict[str, Any] | None = None
        wall_seconds, lost = 0.0, []
        if folder.process == 0:
            cadences = runs.environment.cadences(folder.starts) or [(0, setup.log_every)]
            due = [*runs.reporting.records.due(cadences, start)]
            if start == setup.num_steps:
                due.append(start)
            self._sinks = [runs.reporting.sinks.guard(sink, report=self.message) for sink in sinks]
            self._records = records = runs.Records(
                folder.metrics,
                tensorboard=folder.path / "tensorboard",
                sinks=self._sinks,
                resume_step=start or None,
                logged_steps=due,
            )
            self.last_evaluation = records.last_evaluation
            wall_seconds = records.wall_seconds
            lost = records.lost_steps
        self.clock = runs.Clock(wall_seconds=wall_seconds, step=start)
        self._progress = runs.Progress(setup.num_steps, start_step=start)
        if is_restored or folder.state == "resumed":
            reason = "" if is_restored else ", because it has no checkpoint"
            self.message(f"{folder.path}: going on at step {start} of {setup.num_steps}{reason}")
        if lost:
            self.message(
                f"{str(folder.metrics)!r} has lost its records of steps {lost[0]} to {lost[-1]}; a record notes it"
            )

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._num_skipped:
            self.message(f"{self._num_skipped} steps were skipped since the start at step {self._start + 1}")
        self._progress.close()
        if self._records:
            for sink in self._sinks:
                sink.ending = self._ending(error)
            self._records.close()

    def _ending(self, error: BaseException | None) -> runs.Ending:
        if isinstance(error, Exception):
            return "failed"
        evaluated = self.last_evaluation is not None and self.last_evaluation["step"] == self._setup.num_steps
        return "finished" if error is None and evaluated else "stopped"

    def message(self, text: str) -> None:
        """Shows one line."""
        self._progress.message(text)

    def log(self, plan: StepPlan, metrics: dict[str, Any], *, waited_seconds: float) -> tuple[PlannedWave, str] | None:
        """Counts the steps of a finished call, and records those that ``config.log_every_*`` asks for.

        Args:
          plan: plan of the call.
          metrics: metrics that the call returned.
          waited_seconds: seconds that the loop has waited for data so far.

        Returns:
          The first wave with a number that is not finite, and a line that locates it, if the run must stop there; later
          waves are not counted. Otherwise None.
        """
        report = metrics.pop("nonfinite", None)
        if report is not None and np.any(self._layout.get_shared(report.is_bad)):
            metrics["nonfinite"] = report  # seldom, and read only then
        rates: Numbers = {}  # the same for all steps of a call, which finish together
        for wave, measured in plan.split(self._layout.get_shared(metrics)):
            report = measured.pop("nonfinite", None)
            is_bad = report is not None and report.is_bad
            if is_bad:
                where = self._describe(wave, report)
                if self._setup.config.on_nonfinite == "stop":
                    return wave, where
                self._num_skipped += 1
                if self._num_skipped <= _MAX_SKIPPED_SHOWN:
                    self.message(f"{where}; the step is skipped")
            for step, numbers in self._numbers.add(wave, measured):
                self._last = numbers
                decided = round(numbers.get("steps_decided", 1))
                contributors = numbers["contributors"]
                if is_bad:  # the step is undone, so that a round goes on without it
                    decided, contributors = 1, 0.0
                self.counters.add(
                    num_gradients=decided * self._setup.gradients_per_step,
                    contributors=decided * contributors,
                    step_seconds=numbers["step_seconds"],
                    sent_bytes=self._sent_bytes(numbers),
                )
                noise_scale.add_step(self.counters.averages, numbers)
                if step % self._setup.log_every == 0 or step == self._setup.num_steps:
                    rates = rates or self._lap(plan.last_step, waited_seconds=waited_seconds)
                    self._progress.update(step, self._record("train", step, {**numbers, **rates}))
        return None

    def _lap(self, step: int, *, waited_seconds: float) -> Numbers:
        """Ends a lap at a step; returns its rates and, if they are measured, its times of the processes."""
        rates = self.clock.lap(step, num_examples=self.used_examples_per_step, waited_seconds=waited_seconds)
        return rates if self._process_times is None else rates | self._process_times.lap()

    def log_evaluation(self, step: int, quality: Numbers) -> None:
        """Records an evaluation, with the metrics of the step before it."""
        self.last_evaluation = self._record("eval", step, {**self._last, **quality})
        self._progress.evaluation(step, quality, split=self._setup.split)

    @property
    def used_examples_per_step(self) -> float:
        """Mean number of examples per step that entered an update, over the steps so far."""
        counted = self.counters.num_counted
        dropped = self.counters.num_dropped
        return self._setup.examples_per_step * (counted / (counted + dropped) if dropped else 1)

    def flush(self) -> None:
        """Puts all records so far on disk."""
        if self._records:
            self._records.flush()

    def _sent_bytes(self, numbers: Numbers) -> float:
        """Returns the bytes that a worker sent in a step, which may have no communication, or several."""
        return self._bytes_per_worker(numbers) * numbers.get("communications", 1)

    def _bytes_per_worker(self, numbers: Numbers) -> float:
        """Returns the bytes that the reducer reports, or else the traffic of the traced program."""
        return numbers.get("bytes_per_worker", self._setup.traffic.bytes_per_worker)

    def _describe(self, wave: PlannedWave, report: nonfinite.NonfiniteReport) -> str:
        first = wave.steps.start
        last = max(wave.steps.start, wave.steps.stop - 1)
        where = f"step {first}" if first == last else f"steps {first} to {last}"
        workers = range(self._layout.num_workers) if wave.arrivals is None else wave.arrivals.worker
        layers = list(runs.flatten(self._setup.worker_shapes.params))
        return f"{where}: {nonfinite.describe(report, workers=list(workers), layers=layers)}"

    def _record(self, kind: str, step: int, measured: Numbers) -> dict[str, Any]:
        """Appends a record of a step: its own numbers, and the totals of the run so far; returns the record."""
        counters = self.counters
        batch_size = self._setup.config.batch_size_per_worker
        examples = counters.num_counted * batch_size
        sent_bytes = counters.sent_bytes
        if sent_bytes is None:  # all steps send as much
            sent_bytes = step * self._sent_bytes({})
        record = {
            "kind": kind,
            "step": step,
            "epoch": examples / self._setup.source.info.num_train,
            "examples": examples,
            "dropped_examples": counters.num_dropped * batch_size,
            "wall_seconds": self.clock.wall_seconds(),
            "simulated_seconds": counters.simulated_seconds,
            "bytes_per_worker": _whole(self._bytes_per_worker(measured)),
            "sent_bytes": _whole(sent_bytes),
        }
        if counters.peak_bytes is not None:
            record["peak_bytes"] = _whole(counters.peak_bytes)
        record |= noise_scale.noise_scales(counters.averages, batch_size=batch_size)
        record |= {name: value for name, value in measured.items() if name != "bytes_per_worker"}
        if "batch_steps" in measured:
            record["batch_examples"] = measured["batch_steps"] * self._setup.examples_per_step
        if self._records:
            self._records.append(record)
        return record


def _whole(num_bytes: float) -> float:
    """Rounds bytes to a whole number, because float32 measurements are slightly off."""
    return round(num_bytes) if math.isfinite(num_bytes) else num_bytes


class StepNumbers:
    """Turns the metrics of waves, on the host, into the numbers of steps.

    A synchronous wave is a step. The gradients of an asynchronous step may come in several waves.

    Args:
      setup: the run's setup.
      simulated_seconds: the run's clock at its start.
    """

    def __init__(self, setup: TrainSetup, *, simulated_seconds: float = 0.0):
        self._size = setup.gradients_per_step
        self._measure = setup.task.metrics
        self._seconds = simulated_seconds
        self._waiting: list[Numbers] = []  # of gradients that wait for others of the same step

    def add(self, wave: PlannedWave, metrics: Mapping[str, Any]) -> list[tuple[int, Numbers]]:
        """Returns the steps that a wave completes, each with its numbers."""
        if wave.arrivals is None:
            return [(wave.steps[-1], {name: float(value) for name, value in metrics.items()})]
        complete: list[tuple[int, Numbers]] = []
        columns = {**metrics["gradients"], **wave.known}
        for i, seconds in enumerate(wave.arrivals.seconds):
            self._waiting.append({name: float(column[i]) for name, column in columns.items()})
            if len(self._waiting) == self._size:
                update = len(complete)
                numbers = self._of_gradients(wave.known)
                numbers |= {name: float(column[update]) for name, column in metrics["updates"].items()}
                # From the sum of all laps, not from the arrival before, so that a resumed run has the same bits.
                lap = float(seconds) - self._seconds
                self._seconds += lap
                numbers["step_seconds"] = lap
                numbers["contributors"] = sum(gradient["workers"] for gradient in self._waiting)
                complete.append((wave.steps[update], numbers))
                self._waiting = []
        return complete

    def _of_gradients(self, known: Iterable[str]) -> Numbers:
        gradients = self._waiting
        total = {name: sum(g[name] for g in gradients) for name in gradients[0]}
        numbers = {name: float(value) for name, value in self._measure(total).items()}
        numbers["gradient_norm"] = (total["squared_norm"] / len(gradients)) ** 0.5  # root mean square, as over workers
        return numbers | {name: total[name] / len(gradients) for name in known}
