"""A run while it trains: its checkpoints, metrics, evaluation, stop signals and profiler, over one folder."""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

import asynchronous
import runs
from data import shares
from data.examples import Dataset
from data.feeds import Feeds, NumbersAlone
from data.iterators import Batches
from parallel import Layout, StepsInFlight, processes
from reducers.registry import components
from runs.errors import ConfigError, in_block, refusing
from training import checkpoints as state_checkpoints
from training.evaluate import make_evaluation
from training.metric_logger import MetricLogger
from training.modes import InOrderOfArrival
from training.own_params import evaluates_mean, make_evaluated_params
from training.setup import TrainSetup
from training.step_plan import StepPlan
from training.step_times import ProcessTimes, Recorder
from training.steps import replicas
from training.steps.nonfinite import NonfiniteError
from training.train_state import TrainState, to_host


class Run:
    """Feeds, checkpoints, records and stops the training loop. Leaving its ``with`` block closes everything.

    Attributes:
      step: number of steps done when the run was opened.
      resident: arrays on the devices that every step reads: the training data, if they fit, and their constants.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      folder: the run's folder.
      dataset: the examples.
      steps_per_call: the most steps that one call of the devices takes.
      computes: "this" process computes gradients, or "elsewhere": other processes do, and this one reads no batches.
      recorder: if given, keeps what the run measures.
      process_times: if given, measures what each process does by itself, for the records.
      profile: folder for a trace of ten steps, or None.
      sinks: further places for the records.
    """

    def __init__(
        self,
        setup: TrainSetup,
        layout: Layout,
        folder: runs.Folder,
        *,
        dataset: Dataset,
        steps_per_call: int = 1,
        computes: Literal["this", "elsewhere"] = "this",
        recorder: Recorder | None = None,
        process_times: ProcessTimes | None = None,
        profile: pathlib.Path | None = None,
        sinks: Sequence[runs.Sink] = (),
    ):
        self._setup = setup
        self._layout = layout
        self._folder = folder
        self._dataset = dataset
        self._batches = dataset.train if isinstance(dataset.train, Batches) else None
        self._steps_per_call = steps_per_call
        self._recorder = recorder
        self._process_times = process_times
        self._profile_folder = profile
        self._sinks, self._computes = sinks, computes
        self._in_flight = StepsInFlight(steps_per_call=steps_per_call)
        self._num_calls, self._none_pending = 0, True
        self.step = 0

    def __enter__(self) -> "Run":
        with contextlib.ExitStack() as stack:
            stack.push(self._explain_save_error)
            stack.callback(self._dataset.close)
            order = self._setup.example_order(self._dataset)
            if self._folder.state == "new":  # it has a config before it has checkpoints
                self._begin()
            self._checkpoints = stack.enter_context(
                state_checkpoints.open_checkpoints(self._setup.config, self._setup.task, self._folder.path)
            )
            self._restored = state_checkpoints.restore(self._setup, self._layout, self._checkpoints)
            if self._restored is None:
                if damaged := processes.from_first(self._checkpoints.damaged):  # a new start would empty the records
                    reason = f"all its checkpoints are damaged ({', '.join(damaged)}); --fresh starts over"
                    raise ConfigError(f"workdir={str(self._folder.path)!r}: {reason}")
                counters = state_checkpoints.initial_counters(self._setup)
            else:
                self.step = self._restored.step
                counters = self._restored.counters
            if self._recorder is not None:
                with refusing():
                    self._recorder.go_on(self.step)
            self._begin()
            if isinstance(order, shares.OwnExamples):
                self._folder.write("labels.csv", shares.table(order.shares, shares.labels_of(self._dataset)))
            remark = ""
            if self._batches is not None and self._restored is not None and self.step:
                with processes.together(ConfigError), in_block("data"):
                    remark = self._batches.go_on(self.step, self._restored.batches)
            self._feeds: Feeds | NumbersAlone = NumbersAlone()
            if self._computes == "this":
                self._feeds = stack.enter_context(
                    Feeds(
                        self._dataset.train,
                        order,
                        layout=self._layout.own_places,
                        workers=self._layout.own_workers,
                        placement=self._setup.source.placement,
                        steps_per_call=self._steps_per_call,
                    )
                )
            self.resident = self._layout.put_shared(
                {"train": self._feeds.resident, "constants": self._dataset.constants}
            )
            self._evaluated_params = make_evaluated_params(
                self._layout,
                mapping=self._setup.config.mapping,
                partition=self._setup.partition,
                shapes=self._setup.params,
            )
            self._evaluate = make_evaluation(self._setup, self._layout, self._dataset.test)
            self._logger = stack.enter_context(
                MetricLogger(
                    self._setup,
                    self._layout,
                    self._folder,
                    start=self.step,
                    is_restored=self._restored is not None,
                    counters=counters,
                    process_times=self._process_times,
                    sinks=self._sinks,
                )
            )
            if remark:
                self.message(f"config.data.name={self._setup.config.data.name!r}: {remark}")
            # Processes that compute elsewhere are ended in order, for which a signal has to wait.
            at_first: Literal["end", "wait"] = "end" if self._computes == "this" else "wait"
            self._stop = stack.enter_context(runs.Stop(before_first_call=at_first))
            self._profile = stack.enter_context(contextlib.closing(runs.Profile(self._profile_folder)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)

    def _begin(self) -> None:
        self._folder.begin(step=self.step, log_every_steps=self._setup.log_every)

    def _explain_save_error(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Raises GoneError in place of a failed save if the run's folder is gone."""
        if isinstance(error, runs.SaveError):
            self._folder.check_held()

    def begin(self) -> TrainState:
        """Returns the state of the last checkpoint, or the initial one; to be called once."""
        restored = self._restored
        self._restored = None
        if restored is not None:
            return restored.state
        return state_checkpoints.initial_state(self._setup, self._layout, self._folder, report=self.message)

    def plans(self) -> Iterator[tuple[StepPlan, Any, Any]]:
        """Returns each call's plan with its prefetched batch and its inputs.

        It ends early if a signal asks this process to stop while it waits for a batch, which may never come; ``finish``
        then stops the run.
        """
        made = self._fed_plans()
        return made if self._process_times is None else self._process_times.over(made)

    def _fed_plans(self) -> Iterator[tuple[StepPlan, Any, Any]]:
        plans = self._setup.plans(self.step, steps_per_call=self._steps_per_call)
        for plan, batch in self._feeds.follow(plans, is_to_stop=lambda: self.is_to_stop):
            inputs = {name: self._layout.split_steps(column) for name, column in plan.inputs.items()}
            yield plan, self._layout.for_devices(batch), inputs

    def profile(self, plan: StepPlan, state: TrainState) -> contextlib.AbstractContextManager:
        """Returns a context for one call; the profiler traces the calls that are due."""
        return self._profile.step(plan.first_step, num_steps=len(plan.waves), is_last=plan.is_last, state=state.step)

    def check_replicas(self, plan: StepPlan, state: TrainState) -> None:
        """Compares the devices' copies of the shared state after the first call, and as often as the config asks.

        Raises:
          ConfigError: if they differ after the first call of a run; nothing was recorded or saved.
          PartedError: if they differ later.
        """
        config = self._setup.config
        is_first = self._num_calls == 0
        every = config.check_replicas_every_steps
        is_time = every is not None and plan.last_step // every > (plan.first_step - 1) // every
        if self._layout.num_devices == 1 or not (is_first or is_time):
            return
        leaf = replicas.first_difference(state, self._layout, self._setup.state_axes)
        if leaf is None:
            return
        own = components.names_in([config.reducer, config.communication])
        whose = f"your reducer {own[0]!r} leaves" if own else "the step leaves"
        line = (
            f"config.reducer.name={config.reducer.name!r}: {whose} the shared state different on the devices, first in "
            f"{leaf}, at step {plan.last_step}; what it returns must be the same on all workers, along all of axis_name"
        )
        if is_first and self.step == 0:
            raise ConfigError(line)
        raise replicas.PartedError(f"{line}; the same command goes on from the last checkpoint")

    def stop_requested(self, plan: StepPlan) -> str | None:
        """Returns the name of the signal that asked the run to stop after this call, or None.

        All processes get the same answer. It is also None while gradients wait for others of their step; the run then
        stops after a later call.
        """
        signal = self._stop.asked(self._num_calls)
        self._num_calls = self._num_calls + 1
        self._none_pending = plan.none_pending
        return signal if plan.none_pending else None

    def message(self, text: str) -> None:
        """Shows one line."""
        self._logger.message(text)

    @property
    def is_to_stop(self) -> bool:
        """Whether a signal has asked this process to stop."""
        return self._stop.requested is not None

    def give_up(self, state: TrainState, *, none_pending: bool) -> dict[str, Any]:
        """Stops a run between two calls; returns its summary, whose "step" is the one from which the run will go on.

        Args:
          state: after the call before.
          none_pending: whether the state can be saved, that is, no gradient waits for others of its update.

        Raises:
          NonfiniteError: as in ``log``.
        """
        self._record(self._in_flight.drain(), state)
        if none_pending:
            self.save(int(self._layout.get_shared(state.step)), state)
        self._checkpoints.wait()
        return {"stopped_by": self._stop.requested, "step": self._checkpoints.latest_step() or 0}

    def log(self, plan: StepPlan, metrics: dict[str, Any], state: TrainState, *, drain: bool) -> None:
        """Adds a dispatched call, and records the calls that have finished since.

        Args:
          plan: plan of the call.
          metrics: the call's metrics, perhaps not computed yet.
          state: after the call.
          drain: waits until all calls have finished.

        Raises:
          NonfiniteError: if a number was not finite and must stop the run; the state before it is saved.
        """
        if self._recorder is not None and (line := self._recorder.add(plan)):
            self._logger.message(line)
        finished = self._in_flight.push(plan, metrics)
        if drain or self._computes == "elsewhere":  # its next step needs numbers of this one
            finished += self._in_flight.drain()
        self._record(finished, state)

    def _record(self, finished: Sequence[tuple[StepPlan, Any]], state: TrainState) -> None:
        for done, measured in finished:
            if self._batches is not None:
                self._batches.forget(done.first_step - 1)
            with contextlib.nullcontext() if self._process_times is None else self._process_times.own():
                bad = self._logger.log(done, measured, waited_seconds=self._feeds.waited_seconds)
            if bad is not None:
                self._in_flight.drain()  # later calls have changed nothing, because the state is frozen
                self._logger.flush()
                raise NonfiniteError(self._save_before(*bad, state))

    def _save_before(self, wave: Any, message: str, state: TrainState) -> str:
        """Saves the frozen state, which is the one before the bad step; returns the message with the way to go on."""
        again = "the same command tries it again"
        if not wave.none_was_pending:  # gradients wait for others of their update
            return f"{message}; {again} from the last checkpoint"
        try:
            self.save(wave.steps.start - 1, state)
            self._checkpoints.wait()
        except runs.SaveError as error:
            return f"{message}; {error}; {again} from the checkpoint before"
        return f"{message}; the state before it is saved, and {again}"

    def evaluate(self, plan: StepPlan, state: TrainState) -> dict[str, float]:
        """Evaluates the state after a call, and records it."""
        with self._logger.clock.paused():
            quality = self._evaluate(state, self.resident)
            self._logger.log_evaluation(plan.last_step, quality)
        return quality

    def save(self, step: int, state: TrainState, *, metrics: dict[str, float] | None = None) -> None:
        """Saves a state in the background, in a form that does not depend on the layout.

        Args:
          step: number of steps done.
          state: the state, on the devices.
          metrics: the state's evaluation, which decides whether the checkpoint is the best.
        """
        with self._logger.clock.paused():
            self._folder.check_held()
            self._logger.flush()  # a checkpoint never knows more than the records
            if self._recorder is not None and (line := self._recorder.write()):
                self._logger.message(line)
            tree = {
                "state": to_host(state, self._layout, self._setup.state_axes),
                "counters": self._logger.counters.state(),
            }
            if evaluates_mean(state):
                tree["mean_params"] = self._layout.get_shared(self._evaluated_params(state))
            if self._batches is not None and (of_batches := self._batches.state(step)) is not None:
                tree[state_checkpoints.BATCHES] = state_checkpoints.states_of_batches(of_batches)
            self._checkpoints.save(step, tree, metrics=metrics)

    def finish(self, state: TrainState) -> dict[str, Any]:
        """Waits for the last checkpoint; returns the run's summary: its last evaluation, and its speed.

        If ``plans`` ended early, it stops and saves the run instead, as ``give_up`` does.
        """
        if int(self._layout.get_shared(state.step)) < self._setup.num_steps:
            return self.give_up(state, none_pending=self._none_pending)
        self._checkpoints.wait()
        if processes.from_first(self._has_lost_evaluation):
            self._logger.message("the record of the last evaluation was lost; it is made again")
            self._logger.log_evaluation(self._setup.num_steps, self._evaluate(state, self.resident))
        mode = self._setup.mode
        if isinstance(mode, InOrderOfArrival):
            pairs = [(events.worker, events.staleness) for events in mode.events()]
            worker, staleness = map(np.concatenate, zip(*pairs, strict=True))
            counts = asynchronous.histogram(worker, staleness, num_workers=self._setup.config.num_workers)
            self._folder.write("staleness.csv", asynchronous.table(counts))
        return processes.from_first(self._summary)

    def stopped(self, signal: str, plan: StepPlan) -> dict[str, Any]:
        """Waits for the last checkpoint; returns the summary of a run that a signal stopped."""
        self._checkpoints.wait()
        return {"stopped_by": signal, "step": plan.last_step}

    def _has_lost_evaluation(self) -> bool:
        """Returns whether the evaluation of the last step, which an earlier start made, is not in the records."""
        last = self._logger.last_evaluation
        return last is None or last["step"] < self._setup.num_steps

    def _summary(self) -> dict[str, Any]:
        """Returns the run's summary: its last evaluation, its totals, its speed and its layout."""
        keys = ("step", "epoch", "loss", "wall_seconds", "simulated_seconds", "dropped_examples")
        last = self._logger.last_evaluation
        assert last is not None
        rate = self._logger.clock.steps_per_second()
        examples = None if rate is None else rate * self._logger.used_examples_per_step
        best = self._setup.task.best[0]
        return {
            "stopped_by": None,
            **{key: last[key] for key in (*keys, best)},
            **{key: last[key] for key in ("examples", "sent_bytes", "peak_bytes") if key in last},
            "num_evaluated": self._dataset.test.num_examples,
            "first": self._first(runs.stream(self._folder.metrics)),
            "steps_per_second": rate,
            "examples_per_second": examples,
            "num_processes": processes.count(),
            "num_devices": self._layout.num_devices,
            "lanes": self._layout.lanes,
            "steps_per_dispatch": self._steps_per_call,
        }

    def _first(self, records: Iterable[dict[str, Any]]) -> float | None:
        """Returns the task's metric near the start of the run, which its last evaluation should exceed.

        A training batch's metric is comparable only if the run did not begin with parameters fitted to these batches.
        """
        metric = self._setup.task.best[0]
        start, evaluations = None, []
        for record in records:
            start = start or record
            if record["kind"] == "eval":
                evaluations.append(record)
            if len(evaluations) > 1:
                return evaluations[0][metric]
        return None if self._setup.config.init_from or start is None else start.get(metric)
