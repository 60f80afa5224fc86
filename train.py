"""Synchronous SGD over workers: flags, the loop, evaluation; ``program`` has what a config stands for, and the step.

    python train.py --config=configs/digits.py --config.reducer.name=sum --workdir=out/mine

A config is the whole experiment; flags are the run: where, on how many devices, from which checkpoint.
"""

import contextlib
import functools
import os
import pathlib
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags

import runs
from configs import flags as config_flags
from data.assumed import make_or_assume
from data.example_order import ExampleOrder
from data.examples import ReadError
from data.feeds import Feeds
from parallel import (
    Lanes,
    Layout,
    Window,
    WorkerTimes,
    configure_cpu_devices,
    over_workers,
    processes,
    resolve_steps_per_dispatch,
    xla,
)
from runs.errors import ConfigError, in_block, refusing
from training import dry_run
from training.evaluate import evaluate_checkpoint, make_evaluation
from training.metric_logger import Journal
from training.nonfinite import NonfiniteError
from training.setup import Program, build
from training.step_plan import dispatches
from training.train_state import canonical, open_checkpoints, params_of, place, restore

flags.DEFINE_string("config", "configs/digits.py", "Config file, with an optional :variant.")
flags.DEFINE_string("workdir", None, "Folder of the run; by default out/<config>/<hash of the config>.")
flags.DEFINE_integer(
    "num_devices",
    None,
    lower_bound=1,
    upper_bound=65536,
    help="Devices to use, of all processes; by default the most that divide num_workers (CPU: up to 8).",
)
flags.DEFINE_integer(
    "steps_per_dispatch",
    None,
    lower_bound=1,
    upper_bound=1024,
    help="Steps, or waves, of one call of the devices, by lax.scan; by default 8 of accelerators that hold the data.",
)
flags.DEFINE_bool(
    "latency_hiding", False, "Of several GPUs: have XLA run collectives beside the backward pass, not after it."
)
flags.DEFINE_bool("fresh", False, "Start over in a new subfolder of the workdir; deletes nothing.")
flags.DEFINE_bool("evaluate_only", False, "Evaluate a checkpoint of the workdir, and stop.")
flags.DEFINE_string("checkpoint", "latest", "Which one to evaluate: latest, best, or a step.")
flags.DEFINE_bool(
    "record_times",
    False,
    "Write seconds[step, worker] to the workdir, as the arrival model trace replays them; workers run one by one.",
)
flags.DEFINE_bool("profile", False, "Trace ten steps into profile/ of the workdir, for Perfetto or TensorBoard.")
flags.DEFINE_string(
    "compilation_cache",
    None,
    f"Folder of compiled programs, which the next run need not compile: {runs.compiled.DEFAULT}; empty for none.",
)
flags.DEFINE_bool("dry_run", False, "Print what would run, and stop.")
flags.DEFINE_integer("dry_run_devices", None, "Of a dry run; need not be here.", lower_bound=1, upper_bound=65536)
flags.DEFINE_string("coordinator", None, "Of several processes: host:port of the first; auto has JAX find it.")
flags.DEFINE_integer(
    "num_processes",
    None,
    lower_bound=1,
    upper_bound=65536,
    help="How many there are; found by itself under SLURM, MPI.",
)
flags.DEFINE_integer("process_id", None, lower_bound=0, help="Which one this is, from 0.")

FLAGS = flags.FLAGS


# ---- the loop ----------------------------------------------------------------------------------------------------


def train(
    program: Program,
    layout: Layout,
    folder: runs.Folder,
    *,
    params: Any = None,
    times: WorkerTimes | None = None,
    profile: pathlib.Path | None = None,
    steps_per_dispatch: int = 1,
) -> dict[str, Any]:
    """Trains from the folder's last checkpoint, or from the start, to the end or to a signal that asks to stop.

    Args:
      program: what to train.
      layout: on what.
      folder: where the run lies.
      params: to begin with, where there is no checkpoint; by default those of the seed.
      times: if given, workers run one by one, and their times are written to the folder.
      profile: folder for a trace of ten steps.
      steps_per_dispatch: or waves, that one call of the devices does; fewer if there are no more before a checkpoint.

    Returns:
      The summary of the run. Its "stopped_by" names the signal, or is None; the state is saved either way.

    Raises:
      ConfigError: if the data cannot be read, or the checkpoint does not fit the code.
      NonfiniteError: if a loss or a gradient was not finite and is to stop the run; the state before it is saved.
    """
    config = program.config
    with processes.together(ConfigError), in_block("data"):
        dataset = program.source.load(config.seed)
    order = ExampleOrder(
        num_examples=dataset.train.num_examples, batch_size=config.batch_size_per_worker, seed=config.seed
    )
    lanes: Lanes = "dispatched" if times else config.lanes
    cadences = (program.eval_every, program.checkpoint_every)
    size = min(steps_per_dispatch, *cadences)  # no call goes across one
    lift = functools.partial(over_workers, program.halves, layout=layout, lift=config.lift, lanes=lanes, times=times)
    train_steps = {count: lift(steps_per_dispatch=count) for count in (1, size)}
    evaluate = make_evaluation(program, layout, dataset.test)

    with contextlib.ExitStack() as stack:
        stack.callback(dataset.close)
        checkpoints = stack.enter_context(open_checkpoints(program, folder.path))
        restored = restore(program, layout, checkpoints)
        start, shared, local, tally = restored or (0, *place(program, layout, params=params), runs.Tally())
        feeds = stack.enter_context(
            Feeds(
                dataset.train,
                order,
                layout=(len(layout.own_devices), layout.lanes),
                workers=layout.own_workers,
                placement=program.source.placement,
                steps_per_call=size,
            )
        )
        resident = layout.put_shared({"train": feeds.resident, "constants": dataset.constants})
        journal = stack.enter_context(Journal(program, layout, folder, start=start, tally=tally, times=times))
        stop = stack.enter_context(runs.catch_stop())
        tracing = stack.enter_context(runs.Profile(profile))
        window = Window(steps_each=size)

        turns = program.timetable.turns(start, program.num_steps, stops=cadences)
        together = dispatches(turns, size=size, stops=cadences)
        for call, (dispatch, feed) in enumerate(feeds.follow(together)):
            turn, count = dispatch.turns[-1], len(dispatch.turns)
            plan = {name: layout.split_turns(column) for name, column in dispatch.plan.items()}
            with tracing.step(dispatch.first_step, num_turns=count, state=shared):
                shared, local, metrics = train_steps[count](shared, local, {**feed, "plan": plan}, resident)
            journal.worker_times(dispatch)
            finished = window.push(dispatch, metrics)
            step, is_last = dispatch.last_step, turn.reaches(program.num_steps)
            asked = stop.asked(call)
            stopped_by = asked if turn.is_whole else None
            at_eval = is_last or turn.reaches(program.eval_every)
            at_checkpoint = is_last or turn.reaches(program.checkpoint_every) or stopped_by is not None
            if at_eval or at_checkpoint:
                finished += window.drain()
            if (bad := journal.dispatches(finished, waited_seconds=feeds.waited_seconds)) is not None:
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
    summary = processes.from_first(journal.summary)
    where = {"num_devices": layout.num_devices, "lanes": layout.lanes, "steps_per_dispatch": size}
    return {"stopped_by": None, **summary, **where}


# ---- the command -------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Runs a command line; returns its exit code: 0, 2 for bad input, 128 + n when signal n asked it to stop,
    1 if data could not be read or the state not be saved, or a number was not finite. Of several processes, one that
    fails ends here."""
    try:
        return run(argv)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except ReadError as error:
        print(f"config.{error}; the same command goes on from the last checkpoint", file=sys.stderr)
    except NonfiniteError as error:
        print(error, file=sys.stderr)
    except runs.SaveError as error:  # a full disk, say; what was saved before is whole
        print(f"{error}; the same command goes on from the checkpoint before", file=sys.stderr)
    except jax.errors.JaxRuntimeError as error:
        if not processes.several():
            raise
        told = str(error).split("\n")[0]
        where = f"process {processes.index()} of {processes.count()}"
        print(f"{where} lost the others ({told}); the same command goes on from the last checkpoint", file=sys.stderr)
    except Exception:
        if not processes.several():
            raise
        traceback.print_exc()
    if processes.several():
        processes.abandon(1)
    return 1


def run(argv: Sequence[str]) -> int:
    """Does what ``main`` does, but for what it refuses.

    Raises:
      ConfigError: one line, with nothing compiled and nothing written.
    """
    config, notes = config_flags.parse(argv)
    if FLAGS.latency_hiding:
        xla.hide_latency()
    if FLAGS.record_times and config.server.name != "synchronous":
        raise ConfigError(f"record_times=True: needs config.server.name='synchronous', not {config.server.name!r}")
    if FLAGS.dry_run or FLAGS.dry_run_devices is not None:
        configure_cpu_devices(config.num_workers, num_devices=FLAGS.num_devices)
        program = build(config, open_data=make_or_assume)
        with refusing():
            print(dry_run.describe(program, num_devices=FLAGS.dry_run_devices or FLAGS.num_devices))
        return 0
    with refusing():
        found = processes.join(
            coordinator=FLAGS.coordinator, num_processes=FLAGS.num_processes, process_id=FLAGS.process_id
        )
    configure_cpu_devices(config.num_workers, num_devices=FLAGS.num_devices, num_processes=found)
    with processes.together(ConfigError):
        program = build(config)
    workdir = runs.default_workdir(FLAGS.config, config.to_dict()) if FLAGS.workdir is None else FLAGS.workdir
    with refusing():
        path = runs.expand(workdir)
        layout = Layout.of(config.num_workers, num_devices=FLAGS.num_devices)
        steps_per_dispatch = resolve_steps_per_dispatch(
            FLAGS.steps_per_dispatch,
            layout=layout,
            lanes="dispatched" if FLAGS.record_times else config.lanes,
            placement=program.source.placement,
        )
    if FLAGS.evaluate_only:
        told = evaluate_checkpoint(program, layout, path, which=FLAGS.checkpoint)
        if processes.index() == 0:
            print(told)
        return 0
    begins = config.init_from and not processes.from_first(lambda: os.path.exists(path / "checkpoints"))
    params = params_of(program, config.init_from) if begins else None
    with refusing():
        devices = [f"{device} {device.device_kind}" for device in layout.devices]
        folder = runs.open_run(workdir, config.to_dict(), start="fresh" if FLAGS.fresh else "resume", devices=devices)
    with processes.together(ConfigError), refusing():
        folder.follow()
    for note in (*notes, *folder.changes):
        print(note, file=sys.stderr)
    with folder:
        with refusing():
            summary = processes.from_first(lambda: folder.summary)
        if summary is not None:
            print(f"{folder.path}: finished before; --fresh starts over", file=sys.stderr)
        else:
            runs.keep_compiled(FLAGS.compilation_cache)
            times = WorkerTimes(layout) if FLAGS.record_times else None
            profile = folder.path / "profile" if FLAGS.profile else None
            summary = train(
                program,
                layout,
                folder,
                params=params,
                times=times,
                profile=profile,
                steps_per_dispatch=steps_per_dispatch,
            )
            if summary["stopped_by"]:
                print(f"stopped by {summary['stopped_by']} at step {summary['step']}; the same command goes on there")
                return 128 + signal.Signals[summary["stopped_by"]]
            folder.finish(summary)
        overrides = config_flags.split(argv)[1]
        command = {"config": config, "spec": FLAGS.config, "overrides": overrides}
        with refusing():
            print(runs.summarise(summary, metric=program.task.best[0], path=folder.path, **command))
    return 0


if __name__ == "__main__":
    app.define_help_flags()
    sys.exit(main(sys.argv))  # not app.run, which answers a wrong flag with two lines and exit code 1
