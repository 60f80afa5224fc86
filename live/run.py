"""A live run: the loop of train.py, with a step whose gradients other processes compute."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import runs
from live import delays
from live.arrivals import LiveArrivals
from live.delays import Delay
from live.engine import Engine
from live.server import Missing, Server, Stopped
from live.step import LiveSteps
from parallel import Layout
from runs.errors import ConfigError
from training.modes import Decentralised, WithServer
from training.run import Run
from training.setup import TrainSetup
from training.step_times import Recorder, StepTimes
from training.steps.async_train_step import make_step
from training.train_state import TrainState

Loop = Callable[[Run, Any, TrainState], dict[str, Any]]


class Workers(NamedTuple):
    """The processes that compute gradients.

    Attributes:
      engine: runs them; they end with the call of ``train``.
      per_process: k, the number of workers of a process.
      patience: seconds after which a step with too few living workers is given up.
      delay: (step, worker) -> least seconds of the worker's task.
    """

    engine: Engine
    per_process: int = 1
    patience: float = 300.0
    delay: Delay = delays.none


class MissingError(Exception):
    """Too few workers have been alive for too long; the state is saved."""


def check(setup: TrainSetup, *, workers_per_process: int = 1, devices_per_process: int = 1) -> None:
    """Raises ConfigError for a config that worker processes cannot run."""
    config, mode = setup.config, setup.mode
    if isinstance(mode, Decentralised):
        raise ConfigError("config.server.name='decentralised': must be synchronous or asynchronous for real workers")
    if setup.reducer.local_workers != "never":
        where = f"config.reducer.name={config.reducer.name!r}"
        raise ConfigError(f"{where}: must emit every update, for real workers, which keep nothing from step to step")
    if setup.source.reads == "in_order":
        where = f"config.data.name={config.data.name!r}"
        raise ConfigError(f"{where}: must give its examples by index, for real workers, which read their own batches")
    if config.devices_per_worker > 1:
        raise ConfigError(f"config.devices_per_worker={config.devices_per_worker}: must be 1 for real workers")
    if config.num_workers % workers_per_process:
        allowed = f"must divide config.num_workers={config.num_workers}"
        raise ConfigError(f"workers_per_process={workers_per_process}: {allowed}")
    if workers_per_process % devices_per_process:
        allowed = f"must divide workers_per_process={workers_per_process}"
        raise ConfigError(f"devices_per_process={devices_per_process}: {allowed}")
    if isinstance(mode, WithServer):
        if workers_per_process > 1:
            allowed = "must be 1 with config.server.name='asynchronous'"
            raise ConfigError(f"workers_per_process={workers_per_process}: {allowed}")
        if mode.options.order is not None:
            allowed = "must be None for real workers; train.py takes it"
            raise ConfigError(f"config.server.order={config.server.order!r}: {allowed}")


def train(
    setup: TrainSetup,
    layout: Layout,
    folder: runs.Folder,
    *,
    workers: Workers,
    loop: Loop,
    sinks: Sequence[runs.Sink] = (),
) -> dict[str, Any]:
    """Trains from the folder's last checkpoint, or from the start, to the end or until it has to stop.

    Args:
      setup: the run's setup.
      layout: the server's layout: all workers as lanes of one device.
      folder: the run's folder.
      workers: the processes.
      loop: takes the remaining steps of a run.
      sinks: further places for the records.

    Returns:
      The summary of the run, as in ``train.train``.

    Raises:
      ConfigError: if the data cannot be read, or the checkpoint does not fit the code.
      MissingError: if too few workers are alive for longer than the patience; the state is saved.
    """
    engine = workers.engine
    dataset = setup.load_data()
    try:
        steps: LiveSteps | LiveArrivals
        recorder: Recorder
        mode = setup.mode
        if isinstance(mode, WithServer):
            steps = recorder = LiveArrivals(engine, folder.path / "events.npz", mode, delay=workers.delay)
            recorded = dataclasses.replace(mode, options=mode.options._replace(order=steps))
            setup = dataclasses.replace(setup, mode=recorded)
        else:
            steps = times = LiveSteps(setup, workers_per_process=workers.per_process, delay=workers.delay)
            recorder = StepTimes(folder.path, layout, measured=lambda: times.measured, compiles=False)
        with Run(setup, layout, folder, dataset=dataset, computes="elsewhere", recorder=recorder, sinks=sinks) as run:
            server = Server(
                engine,
                num_processes=layout.num_workers // workers.per_process,
                workers_per_process=workers.per_process,
                patience=workers.patience,
                is_to_stop=lambda: run.is_to_stop,
                report=run.message,
            )
            step = make_step(setup, layout, map_workers=steps.map_workers)
            state = run.begin()
            steps.open(server, state)
            try:
                server.wait_until_ready()
                return loop(run, step, state)
            except (Missing, Stopped) as reason:
                summary = run.give_up(steps.before, none_pending=steps.none_pending)
                if isinstance(reason, Stopped):
                    return summary
                raise MissingError(
                    f"{reason}; step {summary['step']} is saved, and the same command goes on there"
                ) from None
    finally:
        engine.end()
