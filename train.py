"""Synchronous SGD over workers: flags, the loop, evaluation; ``program`` has what a config stands for, and the step.

    python train.py --config=configs/digits.py --config.reducer.name=sum --workdir=out/mine

A config is the whole experiment; flags are the run: where, on how many devices, from which checkpoint.
"""

import contextlib
import pathlib
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np
from absl import app, flags

import data
import runs
from configs import flags as config_flags
from configs.schema import ConfigError, in_block
from evaluation import make_evaluation
from journal import Journal
from nonfinite import NonfiniteError, step_of
from program import Program, build
from runs import dry_run
from step import Local, Shared
from workers import Lanes, Layout, Window, WorkerTimes, claim_cpu_devices, over_workers

flags.DEFINE_string("config", "configs/digits.py", "Config file, with an optional :variant.")
flags.DEFINE_string("workdir", None, "Folder of the run; by default out/<config>/<hash of the config>.")
flags.DEFINE_integer(
    "num_devices",
    None,
    lower_bound=1,
    help="Devices to use; by default the most that divide num_workers (CPU: up to 8).",
)
flags.DEFINE_bool("fresh", False, "Start over in a new subfolder of the workdir; deletes nothing.")
flags.DEFINE_bool("evaluate_only", False, "Evaluate a checkpoint of the workdir, and stop.")
flags.DEFINE_string("checkpoint", "latest", "Which one to evaluate: latest, best, or a step.")
flags.DEFINE_bool(
    "record_times",
    False,
    "Write seconds[step, worker] to the workdir, as the arrival model trace replays them; workers run one by one.",
)
flags.DEFINE_bool("dry_run", False, "Print what would run, and stop.")
flags.DEFINE_integer("dry_run_devices", None, lower_bound=1, help="Devices to assume in a dry run; need not be here.")

FLAGS = flags.FLAGS


# ---- state and evaluation -----------------------------------------------------------------------------------------


def place(program: Program, layout: Layout, *, params: Any = None) -> tuple[Any, Any]:
    """Returns the initial state on the devices, of the seed or of parameters at hand."""
    shared, local = jax.device_get(jax.jit(lambda params: program.init(params=params))(params))
    local = jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), local)
    return layout.put_shared(shared), layout.put_local(local)


def canonical(shared: Shared, local: Local, tally: runs.Tally, layout: Layout) -> dict[str, Any]:
    """Returns the state in the form that checkpoints have, which does not know the layout."""
    shared = step_of(layout.get_shared(shared))
    return {"shared": shared, "local": layout.get_local(local), "tally": tally.state()}


def abstract(program: Program) -> dict[str, Any]:
    """Returns the shapes of ``canonical``, without a device."""
    shared, local = jax.eval_shape(program.init)
    num_workers = program.config.num_workers
    local = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_workers, *x.shape), x.dtype), local)
    return {"shared": shared, "local": local, "tally": runs.Tally.abstract()}


def open_checkpoints(
    program: Program, folder: pathlib.Path, *, access: Literal["write", "read"] = "write"
) -> runs.Checkpoints:
    """Opens a run's checkpoints; the best is the best by the task's own metric."""
    metric, mode = program.task.best
    keep = program.config.keep_checkpoints
    return runs.Checkpoints(folder / "checkpoints", keep_last=keep, best_metric=metric, best_mode=mode, access=access)


def params_of(program: Program, folder: str) -> Any:
    """Returns the parameters of another run's last checkpoint: its moving average, where it has one.

    Raises:
      ConfigError: if the folder has no checkpoint, or the last is damaged or of another model.
    """
    shapes = jax.eval_shape(program.init)[0].params
    with refusing(), open_checkpoints(program, pathlib.Path(folder), access="read") as checkpoints:
        found, step = None, checkpoints.latest_step()
        if step is not None:
            part = "shared/ema" if checkpoints.holds("shared/ema", step=step) else "shared/params"
            found = checkpoints.restore(shapes, which=step, part=part)
    if found is None:
        raise ConfigError(f"config.init_from={folder!r}: must be the folder of a run with a checkpoint")
    return found[1]


def restore(
    program: Program, layout: Layout, checkpoints: runs.Checkpoints, *, which: Any = "latest"
) -> tuple[int, Any, Any, runs.Tally] | None:
    """Returns (step, shared, local, tally) of a whole checkpoint, "latest", "best" or of a step; None without any."""
    with refusing():
        restored = checkpoints.restore(abstract(program), which=which)
    if restored is None:
        return None
    step, state = restored
    shared, local = layout.put_shared(state["shared"]), layout.put_local(state["local"])
    return step, shared, local, runs.Tally.of(state["tally"])


# ---- the loop ----------------------------------------------------------------------------------------------------


def train(
    program: Program, layout: Layout, folder: runs.Folder, *, params: Any = None, times: WorkerTimes | None = None
) -> dict[str, Any]:
    """Trains from the folder's last checkpoint, or from the start, to the end or to a signal that asks to stop.

    Args:
      program: what to train.
      layout: on what.
      folder: where the run lies.
      params: to begin with, where there is no checkpoint; by default those of the seed.
      times: if given, workers run one by one, and their times are written to the folder.

    Returns:
      The summary of the run. Its "stopped_by" names the signal, or is None; the state is saved either way.

    Raises:
      ConfigError: if the data cannot be read, or the checkpoint does not fit the code.
      NonfiniteError: if a loss or a gradient was not finite and is to stop the run; the state before it is saved.
    """
    config = program.config
    with in_block("data"):
        dataset = program.source.load(config.seed)
    draws = data.Draws(
        num_examples=dataset.train.num_examples, batch_size=config.batch_size_per_worker, seed=config.seed
    )
    lanes: Lanes = "dispatched" if times else config.lanes
    train_step = over_workers(program.halves, layout=layout, lift=config.lift, lanes=lanes, times=times)
    evaluate = make_evaluation(program, layout, dataset.test)

    with contextlib.ExitStack() as stack:
        stack.callback(dataset.close)
        checkpoints = stack.enter_context(open_checkpoints(program, folder.path))
        restored = restore(program, layout, checkpoints)
        start, shared, local, tally = restored or (0, *place(program, layout, params=params), runs.Tally())
        feeds = stack.enter_context(
            data.Feeds(
                dataset.train,
                draws,
                layout=(layout.num_devices, layout.lanes),
                placement=program.source.placement,
            )
        )
        resident = layout.put_shared({"train": feeds.resident, "constants": dataset.constants})
        journal = stack.enter_context(Journal(program, layout, folder, start=start, tally=tally, times=times))
        stop = stack.enter_context(runs.catch_stop())
        window = Window()

        cadences = (program.eval_every, program.checkpoint_every)
        for turn, feed in feeds.follow(program.timetable.turns(start, program.num_steps, stops=cadences)):
            plan = {name: layout.split(column) for name, column in turn.plan.items()}
            shared, local, metrics = train_step(shared, local, {**feed, "plan": plan}, resident)
            journal.worker_times(turn)
            finished = window.push(turn, metrics)
            step, is_last = turn.steps.stop - 1, turn.reaches(program.num_steps)
            stopped_by = stop.requested if turn.is_whole else None
            at_eval = is_last or turn.reaches(program.eval_every)
            at_checkpoint = is_last or turn.reaches(program.checkpoint_every) or stopped_by is not None
            if at_eval or at_checkpoint:
                finished += window.drain()
            if (bad := journal.turns(finished, waited_seconds=feeds.waited_seconds)) is not None:
                window.drain()  # what came after it has changed nothing
                journal.flush()
                raise bad.stop(checkpoints, lambda: canonical(shared, local, tally, layout))  # noqa: B023
            if at_eval or at_checkpoint:
                with journal.clock.paused():
                    quality = evaluate(shared, local, resident) if at_eval else None
                    if quality:
                        journal.evaluation(step, quality)
                    if at_checkpoint:
                        journal.flush()  # a checkpoint never knows more than the records
                        checkpoints.save(step, canonical(shared, local, tally, layout), metrics=quality)
            if stopped_by is not None and not is_last:
                checkpoints.wait()
                return {"stopped_by": stopped_by, "step": step}
        checkpoints.wait()
        journal.staleness()
    return {"stopped_by": None, **journal.summary(), "num_devices": layout.num_devices, "lanes": layout.lanes}


# ---- the command -------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Runs a command line; returns its exit code: 0, 2 for bad input, 128 + n when signal n asked it to stop,
    1 if data could not be read or the state not be saved, or a number was not finite."""
    try:
        return run(argv)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except data.ReadError as error:
        print(f"config.{error}; the same command goes on from the last checkpoint", file=sys.stderr)
        return 1
    except NonfiniteError as error:
        print(error, file=sys.stderr)
        return 1
    except runs.SaveError as error:  # a full disk, say; what was saved before is whole
        print(f"{error}; the same command goes on from the checkpoint before", file=sys.stderr)
        return 1


def run(argv: Sequence[str]) -> int:
    """Does what ``main`` does, but for what it refuses.

    Raises:
      ConfigError: one line, with nothing compiled and nothing written.
    """
    config, notes = config_flags.parse(argv)
    claim_cpu_devices(config.num_workers, num_devices=FLAGS.num_devices)
    dry = FLAGS.dry_run or FLAGS.dry_run_devices is not None
    program = build(config, open_data=data.make_or_assume if dry else data.make)
    if FLAGS.record_times and config.server.name != "synchronous":
        raise ConfigError(f"record_times=True: needs config.server.name='synchronous', not {config.server.name!r}")
    if dry:
        with refusing():
            print(dry_run.describe(program, num_devices=FLAGS.dry_run_devices or FLAGS.num_devices))
        return 0
    workdir = runs.default_workdir(FLAGS.config, config.to_dict()) if FLAGS.workdir is None else FLAGS.workdir
    with refusing():
        layout = Layout.of(config.num_workers, num_devices=FLAGS.num_devices)
    if FLAGS.evaluate_only:
        print(evaluate_checkpoint(program, layout, pathlib.Path(workdir), which=FLAGS.checkpoint))
        return 0
    begins = config.init_from and not (pathlib.Path(workdir) / "checkpoints").exists()
    params = params_of(program, config.init_from) if begins else None
    with refusing():
        devices = [f"{device} {device.device_kind}" for device in layout.devices]
        folder = runs.open_run(workdir, config.to_dict(), start="fresh" if FLAGS.fresh else "resume", devices=devices)
    for note in (*notes, *folder.changes):
        print(note, file=sys.stderr)
    with folder:
        with refusing():
            summary = folder.summary
        if summary is not None:
            print(f"{folder.path}: finished before; --fresh starts over", file=sys.stderr)
        else:
            times = WorkerTimes(layout) if FLAGS.record_times else None
            summary = train(program, layout, folder, params=params, times=times)
            if summary["stopped_by"]:
                print(f"stopped by {summary['stopped_by']} at step {summary['step']}; the same command goes on there")
                return 128 + signal.Signals[summary["stopped_by"]]
            folder.finish(summary)
        overrides = config_flags.split(argv)[1]
        command = {"config": config, "spec": FLAGS.config, "overrides": overrides}
        print(runs.summarise(summary, metric=program.task.best[0], path=folder.path, **command))
    return 0


def evaluate_checkpoint(program: Program, layout: Layout, path: pathlib.Path, *, which: str) -> str:
    """Evaluates a checkpoint on what ``config.data.evaluate_on`` names; writes nothing."""
    if which not in ("latest", "best") and not which.isdecimal():
        raise ConfigError(f"checkpoint={which!r}: must be latest, best or a step")
    with refusing():
        runs.check_same(str(path), program.config.to_dict())
    with open_checkpoints(program, path, access="read") as checkpoints:
        restored = restore(program, layout, checkpoints, which=int(which) if which.isdecimal() else which)
    if restored is None:
        raise ConfigError(f"workdir={str(path)!r}: holds no checkpoint to evaluate")
    step, shared, local, _ = restored
    with in_block("data"):
        dataset = program.source.load(program.config.seed)
    resident = layout.put_shared({"constants": dataset.constants})
    with contextlib.closing(dataset):
        quality = make_evaluation(program, layout, dataset.test)(shared, local, resident)
    split, words = program.config.data.evaluate_on, runs.in_words(quality, names=(program.task.best[0], "loss"))
    return f"step {step}: {split} {words}"


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Makes a ValueError about what the user gave one line with exit code 2."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


if __name__ == "__main__":
    app.define_help_flags()
    sys.exit(main(sys.argv))  # not app.run, which answers a wrong flag with two lines and exit code 1
