"""What steps measured, as records, progress and a summary."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import asynchronous
import runs
from parallel import Layout, WorkerTimes, processes
from training import nonfinite
from training.setup import Program
from training.step_plan import Dispatch, Turn

_MAX_SKIPPED_TOLD = 5  # of the steps that are skipped, one line each


class Bad(NamedTuple):
    """A turn that met what is not finite, and says so in one line."""

    turn: Turn
    line: str

    def stop(self, checkpoints: runs.Checkpoints, state: Callable[[], dict[str, Any]]) -> nonfinite.NonfiniteError:
        """Saves the state before it, where there is one to begin with; returns what a run is to raise."""
        again = "the same command tries it again"
        if not self.turn.begins_whole:  # gradients wait for others of their update
            return nonfinite.NonfiniteError(f"{self.line}; {again} from the last checkpoint")
        try:
            checkpoints.save(self.turn.steps.start - 1, state())
            checkpoints.wait()
        except runs.SaveError as error:
            return nonfinite.NonfiniteError(f"{self.line}; {error}; {again} from the checkpoint before")
        return nonfinite.NonfiniteError(f"{self.line}; the state before it is saved, and {again}")


class Journal:
    """Turns what steps measured into records and progress."""

    def __init__(
        self,
        program: Program,
        layout: Layout,
        folder: runs.Folder,
        *,
        start: int,
        tally: runs.Tally,
        times: WorkerTimes | None,
    ):
        self._program, self._layout, self._folder, self._tally = program, layout, folder, tally
        self._times, self._trace = times, runs.TraceRecorder(num_workers=layout.num_workers)
        self._first_step = start + 1
        self._records: runs.Records | None = None  # the first process alone keeps them
        if folder.process == 0:
            self._records = runs.Records(folder.metrics, tensorboard=folder.tensorboard, resume_step=start or None)
        self._collect = program.timetable.collector(seconds=tally.simulated_seconds, measure=program.task.metrics)
        self._last: dict[str, float] = {}
        self._num_skipped = 0
        self._progress = runs.Progress(program.num_steps, start_step=start)
        self.clock = runs.Clock(wall_seconds=self._records.wall_seconds if self._records else 0.0, step=start)
        if start:
            self._progress.message(f"{folder.path}: going on at step {start} of {program.num_steps}")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._num_skipped:
            self._progress.message(f"{self._num_skipped} steps were skipped since the start at step {self._first_step}")
        self._progress.close()
        if self._records:
            self._records.close()

    def dispatches(self, finished: Sequence[tuple[Dispatch, Any]], *, waited_seconds: float) -> Bad | None:
        """Adds the steps of all finished turns to the tally, and records those that the log wants.

        Returns:
          The first turn that is to stop the run, with which the records end before it; None without any.
        """
        for dispatch, metrics in finished:
            evidence = metrics.pop("evidence", None)
            if evidence is not None and np.any(self._layout.get_shared(evidence.is_bad)):
                metrics["evidence"] = evidence  # seldom, and read only then
            rates: dict[str, float] = {}  # the same for all steps of a dispatch, which come together
            for turn, measured in dispatch.each(self._layout.get_shared(metrics)):
                evidence = measured.pop("evidence", None)
                if evidence is not None and evidence.is_bad:
                    if self._program.config.on_nonfinite == "stop":
                        return Bad(turn, self._describe(turn, evidence))
                    self._num_skipped += 1
                    if self._num_skipped <= _MAX_SKIPPED_TOLD:
                        self._progress.message(f"{self._describe(turn, evidence)}; the step is skipped")
                for step, numbers in self._collect(turn, measured):
                    self._last = numbers
                    time = {name: numbers[name] for name in ("step_seconds", "contributors")}
                    self._tally.add(num_workers=self._program.timetable.gradients_per_step, **time)
                    if step % self._program.log_every == 0 or step == self._program.num_steps:
                        rates = rates or self._lap(dispatch.last_step, waited_seconds)
                        self._progress.update(step, self._record("train", step, {**numbers, **rates}))
        return None

    def _lap(self, step: int, waited_seconds: float) -> dict[str, float]:
        return self.clock.lap(step, num_examples=self._program.examples_per_step, waited_seconds=waited_seconds)

    def _describe(self, turn: Turn, evidence: nonfinite.Evidence) -> str:
        first, last = turn.steps.start, max(turn.steps.start, turn.steps.stop - 1)
        where = f"step {first}" if first == last else f"steps {first} to {last}"
        workers = range(self._layout.num_workers) if turn.arrivals is None else turn.arrivals.worker
        layers = list(runs.flatten(jax.eval_shape(self._program.init)[0].params))
        return f"{where}: {nonfinite.describe(evidence, workers=list(workers), layers=layers)}"

    def worker_times(self, dispatch: Dispatch) -> None:
        """Keeps how long each worker took; not of the first step, in which programs are compiled."""
        if self._times is not None and dispatch.first_step > self._first_step:
            self._trace.add(self._layout.gather(self._times.seconds))

    def flush(self) -> None:
        """Puts on disk what was recorded so far."""
        if self._records:
            self._records.flush()
            if self._trace.num_steps:
                self._trace.write(self._folder.path / f"worker_seconds-{self._first_step + 1}.npz")
                if processes.several():
                    self._progress.message(runs.slowest_process(self._trace.seconds, num_processes=processes.count()))

    def evaluation(self, step: int, quality: dict[str, float]) -> None:
        """Records an evaluation, with what the step before it measured."""
        self._record("eval", step, {**self._last, **quality})

    def staleness(self) -> None:
        """Writes how stale the gradients of each worker were, where they can be."""
        counts = self._program.timetable.staleness(self._program.num_steps)
        if counts is not None:
            self._folder.write("staleness.csv", asynchronous.table(counts))

    def summary(self) -> dict[str, Any]:
        """What a run comes to: its last evaluation, and its speed since it was started last."""
        keys = ("step", "epoch", "loss", "wall_seconds", "simulated_seconds", "dropped_examples")
        last = [record for record in runs.read(self._folder.metrics) if record["kind"] == "eval"][-1]
        rate = self.clock.steps_per_second()
        examples = None if rate is None else rate * self._program.examples_per_step
        best = self._program.task.best[0]
        return {**{key: last[key] for key in (*keys, best)}, "steps_per_second": rate, "examples_per_second": examples}

    def _record(self, kind: str, step: int, measured: dict[str, float]) -> dict[str, Any]:
        tally, batch_size = self._tally, self._program.config.batch_size_per_worker
        examples = tally.num_counted * batch_size
        record = {
            "kind": kind,
            "step": step,
            "epoch": examples / self._program.source.info.num_train,
            "examples": examples,
            "dropped_examples": tally.num_dropped * batch_size,
            "wall_seconds": self.clock.wall_seconds(),
            "simulated_seconds": tally.simulated_seconds,
            **measured,
            "bytes_per_worker": self._program.traffic.bytes_per_worker,
        }
        if self._records:
            self._records.append(record)
        return record
