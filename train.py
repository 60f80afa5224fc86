"""Trains a model with distributed synchronous SGD over simulated workers: the flags, the loop, the command.

    python train.py --config=configs/digits.py --config.reducer.name=sum --workdir=out/mine

A config is the whole experiment; flags choose its folder, its devices and the checkpoint to start from.
"""

import contextlib
import math
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any, Literal

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

import data.assumed
import live
import parallel
import runs
from configs import dependencies, listing
from configs import flags as config_flags
from data.examples import ReadError
from parallel import Layout, WorkerTimes, processes
from reducers import targets
from runs.errors import ConfigError, refusing
from training import dry_run
from training.checkpoints import check_init_from, evaluate_checkpoint
from training.device_memory import resolve_lanes_at_once
from training.run import Run
from training.setup import TrainSetup, make_setup
from training.step_times import ProcessTimes, StepTimes
from training.steps.async_train_step import make_step
from training.steps.nonfinite import NonfiniteError
from training.steps.replicas import PartedError
from training.steps.worker_mapping import worker_mapping
from training.train_state import TrainState

flags.DEFINE_string(
    "config", "configs/digits.py", "Config file, with an optional :variant; or the config.json of a run."
)
flags.DEFINE_list(
    "trust_module",
    [],
    "Modules and packages outside of this repository that a config.json may run, where --config is one.",
)
flags.DEFINE_string("workdir", None, "Folder of the run. Default: out/<config>/<hash of the config>.")
flags.DEFINE_integer(
    "num_devices",
    None,
    lower_bound=1,
    upper_bound=65536,
    help="Number of devices to use, over all processes. Default: the most that divide num_workers (on CPU no more than "
    "cores, and up to 8).",
)
flags.DEFINE_integer(
    "steps_per_dispatch",
    None,
    lower_bound=1,
    upper_bound=1024,
    help="The most steps (or asynchronous waves) that one call of the devices takes. Default: 8 on accelerators with "
    "device-resident data, else 1.",
)
flags.DEFINE_bool("latency_hiding", False, "Enables XLA's latency-hiding scheduler (multi-GPU).")
flags.DEFINE_bool(
    "keep_freed_memory", False, "Makes glibc keep freed buffers for the next step: faster on CPU, uses more memory."
)
flags.DEFINE_bool("fresh", False, "Starts over in a new subfolder of the workdir; deletes nothing.")
flags.DEFINE_bool(
    "accept_code_change",
    False,
    "Goes on with a run, or evaluates it, although code of your own that it depends on has changed.",
)
flags.DEFINE_bool("evaluate_only", False, "Evaluates a checkpoint of the workdir and exits.")
flags.DEFINE_string("checkpoint", "latest", "Checkpoint for --evaluate_only: latest, best, or a step.")
flags.DEFINE_bool(
    "record_times",
    False,
    "Measures seconds[step, worker] into the workdir, in the format of the arrival model `trace`; runs workers one by "
    "one.",
)
flags.DEFINE_bool(
    "process_times",
    False,
    "Records the seconds of a step in which each process works by itself: its input and its records.",
)
flags.DEFINE_bool("profile", False, "Traces ten steps into profile/ of the workdir, for Perfetto or TensorBoard.")
flags.DEFINE_string(
    "compilation_cache",
    None,
    f"Folder that keeps compiled programs for later runs. Default: {runs.compiled.DEFAULT}; empty for none.",
)
flags.DEFINE_multi_string(
    "sink",
    [],
    "wandb, mlflow, or module:attribute of a sink for the records, called with the run's folder and config. May be "
    "repeated.",
)
flags.DEFINE_bool(
    "helpconfig", False, "Prints the keys of the config: values, types, ranges, defaults, meanings; and exits."
)
flags.DEFINE_bool("dry_run", False, "Prints what would run, on num_devices devices, present or not, and exits.")
flags.DEFINE_bool("dry_run_compile", True, "Whether a dry run compiles the step, which takes minutes for large models.")
flags.DEFINE_string(
    "dry_run_target",
    None,
    "Devices that a dry run compiles for, although they are not here: v5e:4x4 or v5e-16 (also v4, v5p, v6e), h100:8 "
    "(also a100), h100:2x8 for two hosts of eight. Needs requirements-compilers.txt.",
)
flags.DEFINE_string("dry_run_program", None, "File for the optimized program that a dry run compiles for a target.")
flags.DEFINE_string("dry_run_json", None, "File for the numbers of a dry run for a target, as JSON.")
flags.DEFINE_string("coordinator", None, "Multi-process: host:port of process 0, or auto to let JAX find it.")
flags.DEFINE_integer(
    "num_processes",
    None,
    lower_bound=1,
    upper_bound=65536,
    help="Multi-process: number of processes. Found automatically under SLURM and MPI.",
)
flags.DEFINE_integer("process_id", None, lower_bound=0, help="Multi-process: index of this process, from 0.")

flags.DEFINE_bool("live", False, "Runs workers as processes, in wall-clock time; needs requirements-live.txt.")
flags.DEFINE_integer(
    "workers_per_process",
    1,
    lower_bound=1,
    help="Live: workers of one process, which arrive together; divides num_workers.",
)
flags.DEFINE_integer(
    "devices_per_process",
    1,
    lower_bound=1,
    help="Live: devices of one process, virtual ones on CPUs; divides workers_per_process.",
)
flags.DEFINE_string(
    "delays",
    None,
    "Live: how long workers take at least: a trace (.csv, .npz), the name of an arrival model, or its block as JSON.",
)
flags.DEFINE_float("patience", 300.0, "Live: seconds to wait while too few workers are alive; above 0.")
flags.DEFINE_string("ray_address", None, "Live: address of a running Ray cluster. Default: processes on this machine.")

FLAGS = flags.FLAGS
LIVE_FLAGS = ("workers_per_process", "devices_per_process", "delays", "patience", "ray_address")
# Flags about devices and processes; a live run has its own.
NOT_LIVE = (
    "num_devices",
    "steps_per_dispatch",
    "latency_hiding",
    "record_times",
    "process_times",
    "profile",
    "dry_run",
    "coordinator",
    "num_processes",
    "process_id",
)
TO_TRAIN = ("fresh", "record_times", "process_times", "profile")
# Flag -> the flags that must be left out with it; flag -> the flags that need it.
NOT_WITH = {
    "live": NOT_LIVE,
    "evaluate_only": (*TO_TRAIN, "sink"),
    "dry_run": (*TO_TRAIN, "evaluate_only", "coordinator", "num_processes", "process_id"),
    "dry_run_target": ("num_devices",),
}
ONLY_WITH = {
    "live": LIVE_FLAGS,
    "evaluate_only": ("checkpoint",),
    "dry_run": ("dry_run_compile", "dry_run_target"),
    "dry_run_target": ("dry_run_program", "dry_run_json"),
}
# All processes of a run must have the same values of these, because they decide which programs the devices run.
SHARED_FLAGS = (
    "workdir",
    "num_devices",
    "steps_per_dispatch",
    "latency_hiding",
    "fresh",
    "evaluate_only",
    "checkpoint",
    "record_times",
    "process_times",
)


# ---- the loop ----------------------------------------------------------------------------------------------------


def train(
    setup: TrainSetup,
    layout: Layout,
    folder: runs.Folder,
    *,
    steps_per_call: int = 1,
    lanes_at_once: int | None = None,
    worker_times: WorkerTimes | None = None,
    process_times: ProcessTimes | None = None,
    profile: pathlib.Path | None = None,
    sinks: Sequence[runs.Sink] = (),
) -> dict[str, Any]:
    """Trains from the folder's last checkpoint, or from the start, to the end or until a signal asks to stop.

    Args:
      setup: the run's setup.
      layout: where the workers are.
      folder: the run's folder.
      steps_per_call: the most steps that one call of the devices takes; no call crosses an evaluation or checkpoint.
      lanes_at_once: the most lanes of a device whose gradients are computed at once; None resolves it.
      worker_times: if given, workers run one by one and their seconds are written to the folder.
      process_times: if given, measures what each process does by itself in a step, for the records.
      profile: folder for a trace of ten steps, or None.
      sinks: further places for the records, beside metrics.jsonl and TensorBoard.

    Returns:
      The summary of the run. Its "stopped_by" names the signal that stopped it, or is None; the state is saved in
      either case.

    Raises:
      ConfigError: if the data cannot be read, or the checkpoint does not fit the code.
      NonfiniteError: if a loss or gradient was not finite and must stop the run; the state before it is saved.
      PartedError: if the devices' copies of the shared state have become different.
    """
    with processes.together(ConfigError):
        dataset = setup.load_data(num_workers=math.prod(layout.own_places))
    steps_per_call = min(steps_per_call, setup.eval_every, setup.checkpoint_every)
    mapping = worker_mapping(
        setup, layout, steps_per_call=steps_per_call, lanes_at_once=lanes_at_once, worker_times=worker_times
    )
    step = make_step(setup, layout, map_workers=mapping)
    times = None
    if worker_times is not None:
        times = StepTimes(folder.path, layout, measured=lambda: {"seconds": worker_times.seconds}, compiles=True)

    with Run(
        setup,
        layout,
        folder,
        dataset=dataset,
        steps_per_call=steps_per_call,
        recorder=times,
        process_times=process_times,
        profile=profile,
        sinks=sinks,
    ) as run:
        return loop(run, step, run.begin())


def loop(run: Run, step: parallel.Step, state: TrainState) -> dict[str, Any]:
    """Takes the remaining steps of a run; returns its summary."""
    for plan, batch, inputs in run.plans():
        with run.profile(plan, state):
            state, metrics = step(state, batch, run.resident, inputs)
        run.check_replicas(plan, state)
        stop = run.stop_requested(plan)
        save = plan.checkpoint or stop is not None
        run.log(plan, metrics, state, drain=plan.evaluate or save)
        quality = run.evaluate(plan, state) if plan.evaluate else None
        if save:
            run.save(plan.last_step, state, metrics=quality)
        if stop is not None and not plan.is_last:
            return run.stopped(stop, plan)
    return run.finish(state)


# ---- the command -------------------------------------------------------------------------------------------------


# Errors that end a run early -> the last line printed. Earlier checkpoints and records are whole.
FAILURES: dict[type[Exception], str] = {
    ReadError: "config.{}; the same command goes on from the last checkpoint",
    NonfiniteError: "{}",
    PartedError: "{}",
    live.MissingError: "{}",
    runs.GoneError: "{}",
    runs.SaveError: "{}; the same command goes on from the checkpoint before",  # a full disk, say
}


def main(argv: Sequence[str]) -> int:
    """Executes a command line; returns the exit code, which ``runs.exit_codes`` explains.

    It may be called several times in a process, as in a notebook: flags of an earlier call are reset.
    """
    for flag in FLAGS.get_flags_for_module(__name__):
        flag.unparse()
    return runs.exit_code(lambda: run(argv), failures=FAILURES)


def run(argv: Sequence[str]) -> int:
    """Executes a command line, and returns the exit code; ``main`` turns the errors into exit codes, too.

    Raises:
      ConfigError: one line; nothing was compiled, and nothing written except perhaps the run's description.
    """
    config, notes = read_config(argv)
    if FLAGS.helpconfig:
        print(*listing.of_config(config), sep="\n")
        return 0
    check_flags(config)
    if FLAGS.latency_hiding:
        parallel.enable_latency_hiding()
    if FLAGS.keep_freed_memory:
        parallel.keep_freed_memory()
    if FLAGS.dry_run:
        print(describe(config))
        return 0
    workdir = folder_name(config)
    num_devices = 1 if FLAGS.live else FLAGS.num_devices  # a live run's server computes no gradient
    start_processes(config, num_devices=num_devices)
    with processes.together(ConfigError):
        setup = make_setup(config)
        if FLAGS.live:
            check_live(setup)
        with refusing():
            inputs = runs.Inputs(dependencies.describe(config), setup.source.info.fingerprint)
    with refusing():
        path = runs.expand(workdir)
        cache = FLAGS.compilation_cache and str(runs.expand(FLAGS.compilation_cache, key="compilation_cache"))
        if cache and os.path.exists(cache) and not os.path.isdir(cache):
            raise ConfigError(f"compilation_cache={FLAGS.compilation_cache!r}: is not a folder")
        layout = Layout.of(config.num_workers, num_devices=num_devices, devices_per_worker=config.devices_per_worker)
        check_same_inputs(setup, inputs)
    if FLAGS.evaluate_only:
        known = None if FLAGS.accept_code_change else inputs.code
        line = evaluate_checkpoint(setup, layout, path, which=FLAGS.checkpoint, code=known)
        if processes.index() == 0:
            print(line)
        return 0
    folder = open_folder(setup, layout, workdir, inputs=inputs)
    for note in (*notes, *folder.changes):
        print(note, file=sys.stderr)
    with folder, runs.keep_compiled(cache), contextlib.ExitStack() as stack:
        with refusing():
            summary = processes.from_first(lambda: folder.summary)
        if summary is not None:
            if FLAGS.accept_code_change:  # records the accepted code
                folder.begin()
            print(f"{folder.path}: finished before; --fresh starts over", file=sys.stderr)
        else:
            sinks = open_sinks(folder, config, stack=stack)
            summary = train_in(folder, setup, layout, inputs=inputs, sinks=sinks)
            if summary["stopped_by"]:
                print(f"stopped by {summary['stopped_by']} at step {summary['step']}; the same command goes on there")
                return 128 + signal.Signals[summary["stopped_by"]]  # as shells define it
            folder.finish(summary)
        metric, mode = setup.task.best
        with refusing():
            print(
                runs.summarise(
                    summary,
                    metric=metric,
                    mode=mode,
                    chance=setup.task.chance,
                    config=config,
                    path=folder.path,
                    live=FLAGS.live,
                )
            )
    return 0


def read_config(argv: Sequence[str]) -> tuple[ConfigDict, list[str]]:
    """Parses a command line; returns the config, and a line for each block or duration that a flag replaced."""
    try:
        here = os.getcwd()
    except OSError as error:
        raise ConfigError(f"working folder: {error.strerror}; change to a folder that is there") from None
    with contextlib.chdir(here):  # a config file may change the folder, but paths in flags are the shell's
        return config_flags.parse(argv)


def start_processes(config: ConfigDict, *, num_devices: int | None) -> None:
    """Joins the processes of the run, starts JAX, and refuses processes with different configs, flags or software."""
    with refusing():
        num_processes = processes.join(
            coordinator=FLAGS.coordinator, num_processes=FLAGS.num_processes, process_id=FLAGS.process_id
        )
    parallel.configure_cpu_devices(
        config.num_workers,
        num_devices=num_devices,
        num_processes=num_processes,
        devices_per_worker=config.devices_per_worker,
    )
    with refusing():
        parallel.start_backend()
        runs.environment.check_agreement(config.to_dict(), flags={name: FLAGS[name].value for name in SHARED_FLAGS})


def check_live(setup: TrainSetup) -> None:
    """Raises ConfigError if the config or the flags do not suit a live run."""
    live.check(setup, workers_per_process=FLAGS.workers_per_process, devices_per_process=FLAGS.devices_per_process)
    live.delays.make(FLAGS.delays, setup)
    live.ray_engine.check(FLAGS.ray_address)


def check_same_inputs(setup: TrainSetup, inputs: runs.Inputs) -> None:
    """Raises ValueError unless all processes have the same examples, own code and number of steps."""
    info = setup.source.info
    processes.check_same(
        {
            **{f"code.{module}": file["sha256"] for module, file in inputs.code.items()},
            "data.num_train": info.num_train,
            "data.num_test": info.num_test,
            "data.fingerprint": inputs.data,
            "train_steps": setup.num_steps,
            "steps_per_dispatch": steps_per_call(setup),
        }
    )


def open_folder(setup: TrainSetup, layout: Layout, workdir: str, *, inputs: runs.Inputs) -> runs.Folder:
    """Opens the folder of a new or resumed run.

    Raises:
      ConfigError: one line, if the run cannot use the folder; a run in the folder then stays as it was.
    """
    start: Literal["fresh", "resume"] = "fresh" if FLAGS.fresh else "resume"
    path = runs.expand(workdir)
    check_init_from(setup, path, start=start)
    with processes.together(ConfigError):
        if not FLAGS.fresh:
            check_longer(setup, path)
        if not FLAGS.live:  # its workers take real time
            setup.mode.check_durations()
    with refusing():
        folder = runs.open_run(
            workdir,
            setup.config.to_dict(),
            start=start,
            devices=[f"{device} {device.device_kind}" for device in layout.devices],
            resolve=lambda: {"lanes_at_once": resolve_lanes_at_once(setup, layout)},
            inputs=inputs,
            code_change="accept" if FLAGS.accept_code_change else "refuse",
            begin="later",  # so that a refused run changes nothing in the folder
        )
    with processes.together(ConfigError), refusing():
        folder.follow()
    return folder


def open_sinks(folder: runs.Folder, config: ConfigDict, *, stack: contextlib.ExitStack) -> list[runs.Sink]:
    """Opens the sinks of ``--sink``, in the first process alone; ``stack`` closes them."""
    sinks: list[runs.Sink] = []
    with processes.together(ConfigError):
        for name in FLAGS.sink if folder.process == 0 else ():
            sink = runs.reporting.sinks.make(name, folder.path, config.to_dict(), run_id=folder.id)
            sinks.append(stack.enter_context(contextlib.closing(sink)))
    return sinks


def train_in(
    folder: runs.Folder, setup: TrainSetup, layout: Layout, *, inputs: runs.Inputs, sinks: Sequence[runs.Sink]
) -> dict[str, Any]:
    """Trains in a folder, live or simulated; returns the summary of the run."""
    if not FLAGS.live:
        return train(
            setup,
            layout,
            folder,
            steps_per_call=steps_per_call(setup),
            lanes_at_once=setup.config.lanes_at_once or folder.resolved.get("lanes_at_once"),
            worker_times=WorkerTimes(layout) if FLAGS.record_times else None,
            process_times=ProcessTimes() if FLAGS.process_times else None,
            profile=folder.path / "profile" if FLAGS.profile else None,
            sinks=sinks,
        )
    per_process = FLAGS.workers_per_process
    engine = live.ray_engine.RayEngine(
        setup.config.to_dict(),
        workers_per_process=per_process,
        devices_per_process=FLAGS.devices_per_process,
        address=FLAGS.ray_address,
        inputs=inputs,
    )
    delay = live.delays.make(FLAGS.delays, setup)
    workers = live.Workers(engine, per_process=per_process, patience=FLAGS.patience, delay=delay)
    return live.train(setup, layout, folder, workers=workers, loop=loop, sinks=sinks)


def check_longer(setup: TrainSetup, path: pathlib.Path) -> None:
    """Refuses to make a run longer if the steps that it has taken depended on its length.

    Raises:
      ConfigError: one line, if the learning rate of an earlier step or the shape of the state would differ.
    """
    saved = path / "config.json"
    with refusing():
        before = runs.identity.read_object(saved, way_out=runs.identity.WAY_OUT)
    if before is None or not runs.identity.is_longer(before, setup.config.to_dict()):
        return
    trusted = dependencies.modules_of(setup.config)  # a shorter run's config names the same ones
    earlier = make_setup(config_flags.load(str(saved), trusted=trusted))
    steps = np.arange(earlier.num_steps)
    planned, now = (np.broadcast_to(jax.vmap(one.learning_rate)(steps), steps.shape) for one in (earlier, setup))
    if not np.array_equal(planned, now):
        depends = f"the learning rate of config.schedule.name={setup.config.schedule.name!r}"
    elif earlier.worker_shapes != setup.worker_shapes:
        depends = f"the state of config.server.name={setup.config.server.name!r}"
    else:
        return
    what = f"workdir={str(path)!r}: was to have {earlier.num_steps} steps, not {setup.num_steps}, on which"
    raise ConfigError(f"{what} {depends} depends; use another --workdir, or --fresh")


def folder_name(config: ConfigDict) -> str:
    """Returns the folder of ``--workdir``, or the config's default folder."""
    if FLAGS.workdir is not None:
        return FLAGS.workdir
    return runs.default_workdir(FLAGS.config, config.to_dict(), below="out/live" if FLAGS.live else "out")


def check_flags(config: ConfigDict) -> None:
    """Raises ConfigError, one line, if a flag does not suit the config or the other flags."""
    if not 0 < FLAGS.patience < math.inf:
        raise ConfigError(f"patience={FLAGS.patience}: must be a finite number of seconds above 0")
    if FLAGS.record_times:
        if config.server.name != "synchronous":
            raise ConfigError(f"record_times=True: needs config.server.name='synchronous', not {config.server.name!r}")
        if config.lanes_at_once is not None:
            raise ConfigError(f"record_times=True: needs config.lanes_at_once=None, not {config.lanes_at_once}")
        if config.devices_per_worker > 1:
            raise ConfigError(f"record_times=True: needs config.devices_per_worker=1, not {config.devices_per_worker}")
        if config.lanes == "vmap":
            raise ConfigError("record_times=True: needs config.lanes='auto' or 'dispatched', not 'vmap'")
    for way, flags_by_other in (("with", NOT_WITH), ("without", ONLY_WITH)):
        for other, names in flags_by_other.items():
            given = [name for name in names if FLAGS[name].present]
            if given and bool(FLAGS[other].value) == (way == "with"):
                raise ConfigError(f"{given[0]}={FLAGS[given[0]].value}: must be left out {way} --{other}")
    for name in FLAGS.sink:
        runs.reporting.sinks.find(name)


def describe(config: ConfigDict) -> str:
    """Describes the run that would start; reads only the checkpoint of ``config.init_from``, and trains nothing."""
    name = FLAGS.dry_run_target
    with contextlib.ExitStack() as stack:
        with refusing():
            workers = {"num_workers": config.num_workers, "devices_per_worker": config.devices_per_worker}
            target = None if name is None else dry_run.find_target(name, **workers)
            files = {key: output_file(f"dry_run_{key}") for key in ("program", "json")}
        parallel.configure_cpu_devices(**workers, num_devices=None)
        with refusing():
            parallel.start_backend()
            described = () if target is None else stack.enter_context(target.compiling())
        setup = make_setup(config, open_data=data.assumed.make_or_assume)
        setup.mode.check_durations()
        with refusing():
            check_init_from(setup, runs.expand(folder_name(config)), start="resume")
            return dry_run.describe(
                setup,
                num_devices=FLAGS.num_devices if target is None else target.num_devices,
                steps_per_call=steps_per_call(setup),
                compiled="if present" if FLAGS.dry_run_compile else "never",
                target=target,
                described=described,
                program=files["program"],
                numbers=files["json"],
            )


def output_file(flag: str) -> pathlib.Path | None:
    """Returns the path of a flag that names a file, which can be written in a folder that exists."""
    value = FLAGS[flag].value
    if value is None:
        return None
    path = runs.expand(value, key=flag)
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{flag}={value!r}: must be a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{flag}={value!r}: must be a file that can be written")
    return path


def steps_per_call(setup: TrainSetup) -> int:
    """Returns the most steps that one call of the devices takes, from --steps_per_dispatch or its default."""
    return parallel.resolve_steps_per_call(
        FLAGS.steps_per_dispatch,
        platform=targets.platform(),
        lanes="dispatched" if FLAGS.record_times else setup.config.lanes,
        placement=setup.source.placement,
    )


if __name__ == "__main__":
    app.define_help_flags()
    code = main(sys.argv)  # not app.run, which answers a wrong flag with two lines and exit code 1
    if runs.reporting.sinks.any_waits() and not processes.several():
        processes.abandon(code)  # the hooks of libraries would wait for the same server
    sys.exit(code)
