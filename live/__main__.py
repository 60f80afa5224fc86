"""Trains with workers that are processes: a step ends when the reducer's rule is content with who is really there.

    python -m live --config=configs/digits.py --config.reducer.name=backup_workers --config.reducer.num_required=3 \
        --config.num_workers=4 --config.arrivals.name=constant --delays=shifted_exponential

Config, records, checkpoints, resuming and exit codes are those of train.py. Arrival times are measured, and written to
the workdir as worker_seconds-1.npz, which train.py replays: --config.arrivals.name=trace --config.arrivals.path=FILE.
"""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np
from absl import app, flags

import runs
import train as command
from live import run as live_run
from reducers import arrivals
from reducers.arrivals.traces import SUFFIXES
from runs.errors import ConfigError, in_block
from training.setup import TrainSetup

flags.DEFINE_integer(
    "workers_per_process", 1, lower_bound=1, help="Workers of one process, which arrive together; divides num_workers."
)
flags.DEFINE_string(
    "delays",
    None,
    "How long workers take at least: a trace (.csv, .npz), the name of an arrival model, or its block as JSON.",
)
flags.DEFINE_float(
    "patience", 300.0, lower_bound=0.0, help="Seconds to wait for workers that died, where too few are left to go on."
)
flags.DEFINE_string("ray_address", None, "A Ray cluster that is there; default: processes on this machine.")

FLAGS = flags.FLAGS
# Flags of train.py that have no meaning for real workers.
REFUSED = (
    "num_devices",
    "steps_per_dispatch",
    "latency_hiding",
    "record_times",
    "profile",
    "dry_run",
    "dry_run_devices",
    "coordinator",
    "num_processes",
    "process_id",
)
FAILURES = {**command.FAILURES, live_run.MissingError: "{}"}


def main(argv: Sequence[str]) -> int:
    """Does what a command line asks for; returns the exit code, which ``runs.exit_codes`` explains."""
    for module in (command.__name__, __name__):
        for flag in FLAGS.get_flags_for_module(module):
            flag.unparse()
    FLAGS["num_devices"].value = 1  # the server's own
    return runs.exit_code(lambda: command.run(argv, train=train, check=check, below="out/live"), failures=FAILURES)


def check(setup: TrainSetup) -> None:
    """Raises ConfigError for flags or a config that real workers cannot run."""
    from live import ray_engine

    for name in REFUSED:
        if FLAGS[name].present:
            raise ConfigError(f"{name}={FLAGS[name].value}: is not for workers that are processes; train.py takes it")
    live_run.check(setup, workers_per_process=FLAGS.workers_per_process)
    delays(FLAGS.delays, setup)
    ray_engine.check()


def delays(text: str | None, setup: TrainSetup) -> Callable[[int, int], float]:
    """Returns (step, worker) -> seconds that a worker takes at least, from the flag ``--delays``.

    Raises:
      ConfigError: one line, for a file or model that cannot be used.
    """
    if text is None:
        return lambda step, worker: 0.0
    if text.endswith(SUFFIXES):
        block: Any = {"name": "trace", "path": text}
    else:
        try:
            block = json.loads(text) if text.startswith("{") else {"name": text}
        except json.JSONDecodeError as error:
            raise ConfigError(f"delays={text!r}: is no JSON: {error}") from None
    with in_block("delays"):
        model = arrivals.make(**block)
        key = jax.random.key(setup.config.seed)
        of_step = jax.jit(lambda step: model(key, step, setup.config.num_workers))
        jax.eval_shape(of_step, 0)

    @functools.lru_cache(maxsize=2)
    def row(step: int) -> np.ndarray:
        return np.asarray(of_step(step))

    return lambda step, worker: float(row(step)[worker])


def train(setup: TrainSetup, layout: Any, folder: runs.Folder, *, sinks: Sequence[Any], **options: Any) -> Any:
    """Trains with Ray's processes, as ``live.run.train``."""
    from live import ray_engine

    del options  # of devices
    engine = ray_engine.RayEngine(
        setup.config.to_dict(), workers_per_process=FLAGS.workers_per_process, address=FLAGS.ray_address
    )
    return live_run.train(
        setup,
        layout,
        folder,
        loop=command.loop,
        engine=engine,
        workers_per_process=FLAGS.workers_per_process,
        patience=FLAGS.patience,
        delay=delays(FLAGS.delays, setup),
        sinks=sinks,
    )


if __name__ == "__main__":
    app.define_help_flags()
    sys.exit(main(sys.argv))
