"""Several processes are one run: the numbers of one process, and nothing lost when one of them ends."""

import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import runs
from configs import flags
from launch import local
from parallel import processes
from planning import sources as planning_sources
from runs import environment as environment_of_runs
from runs import traces
from tests import ROOT, slow_input, two_hosts
from tests.data_folders import random_examples, write_set
from tests.in_process import DIGITS, keys, train_py
from tests.started import signals_of, start, wait_for
from tests.stepper import checkpoint_of, records, without_clock
from training.checkpoints import restore_params
from training.setup import make_setup

STEPS = keys(
    "train_epochs=None train_steps=30 eval_every_steps=15 eval_every_epochs=None "
    "checkpoint_every_steps=15 checkpoint_every_epochs=None log_every_steps=1 num_workers=8 "
    "model.hidden_sizes=(16,) ema_decay=None optimizer.learning_rate=0.02"  # rounding differs, and grows with the rate
)
ADASUM = ("--config.reducer.name=adasum",)
LATE = keys("reducer.name=backup_workers reducer.num_required=6 arrivals.name=shifted_exponential")
RUNS = {
    "mean": ("--config.reducer.name=mean",),
    "several steps a call": ("--config.reducer.name=mean", "--steps_per_dispatch=4"),
    "adasum": (*ADASUM, *keys("reducer_on=updates lanes=dispatched")),
    "backup_workers": (*LATE, "--config.mapping=shard_map"),
    "delayed": keys(
        "reducer.name=local_sgd reducer.every_steps=4 reducer.delay_steps=2 reducer_on=updates arrivals.name=lognormal"
    ),
    "gossip": keys("reducer.name=gossip reducer_on=updates arrivals.name=lognormal"),
    "hierarchical_adasum": (*ADASUM, *keys("reducer.group_size=4 reducer.within=mean")),
}
MANY_SECONDS = 400
ON_CPU = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def arguments(name, workdir, *more):
    return [f"--config={DIGITS}", f"--workdir={workdir}", *STEPS, *RUNS[name], *more]


def train_several(folder, *, processes, devices, argument_lists, code=0):
    """Makes the runs as several processes, each with its devices and argument lists; returns what each says."""
    command = [sys.executable, "-m", "tests.several", f"127.0.0.1:{local.free_port()}", processes]
    started = []
    for index in range(processes):
        listed = folder / f"runs-{index}.json"
        listed.write_text(json.dumps(argument_lists[index]))
        started.append(start([*command, index, devices[index], listed, code], **ON_CPU))
    said = [process.communicate(timeout=MANY_SECONDS)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes, said
    return said


def train_alone(argument_list, *, devices):
    assert train_py(*argument_list, f"--num_devices={devices}") == 0


def final_state(overrides, workdir):
    overrides = [f for f in (*STEPS, *overrides) if f.startswith("--config.")]
    return checkpoint_of(workdir, make_setup(flags.load(DIGITS, overrides)))


def assert_same_run(overrides, workdir, expected):
    step, found = final_state(overrides, workdir)
    expected_step, there = final_state(overrides, expected)
    assert step == expected_step == 30
    for ours, theirs in zip(*(jax.tree.leaves(tree["state"]) for tree in (found, there)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    ours, theirs = (runs.read(path / "metrics.jsonl") for path in (workdir, expected))
    assert [r["step"] for r in ours] == [r["step"] for r in theirs] and len(ours) == 32
    for name in ("loss", "accuracy", "simulated_seconds", "contributors"):
        np.testing.assert_allclose([r[name] for r in ours], [r[name] for r in theirs], rtol=1e-4, atol=1e-5)


IN_PARTS = keys("mapping=shard_map schedule.name=constant reducer.name=adasum reducer_on=updates optimizer.name=lamb")


@pytest.mark.parametrize(
    ("processes", "devices", "each", "partition"),
    [(2, 2, 4, "state"), (2, 2, 2, "parameters"), (4, 1, 2, "none"), (4, 1, 2, "state")],
)
def test_a_node_of_one_process_or_of_several(processes, devices, each, partition, tmp_path):
    """It gives the numbers of one device, from where one process goes on."""
    of_node = keys(f"devices_per_worker={each} partition={partition}")
    first, whole = keys("train_steps=15"), tmp_path / "alone"
    several = [f"--config={DIGITS}", f"--workdir={tmp_path / 'several'}", *STEPS, *IN_PARTS]
    argument_lists = [[[*several, *of_node, *first]]] * processes
    train_several(tmp_path, processes=processes, devices=[devices] * processes, argument_lists=argument_lists)
    train_alone(several, devices=1)
    train_alone([f"--config={DIGITS}", f"--workdir={whole}", *STEPS, *IN_PARTS], devices=1)
    one, other = (final_state(IN_PARTS, folder)[1]["state"] for folder in (tmp_path / "several", whole))
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


SERVED = keys("arrivals.name=shifted_exponential server.name=asynchronous")
LAYOUTS = [(2, 2, ("adasum",)), (2, 2, tuple(name for name in RUNS if name != "adasum")), (4, 1, ("adasum",))]


@pytest.mark.parametrize(("processes", "devices", "names"), LAYOUTS)
def test_several_processes_give_the_numbers_of_one(tmp_path, processes, devices, names):
    several, alone = tmp_path / "several", tmp_path / "alone"
    several.mkdir()
    argument_lists = [[arguments(name, several / name) for name in names]] * processes
    train_several(several, processes=processes, devices=[devices] * processes, argument_lists=argument_lists)
    for name in names:
        train_alone(arguments(name, alone / name), devices=processes * devices)
        assert_same_run(RUNS[name], several / name, alone / name)
        logs = {f"process-{i}.log" for i in range(1, processes)}
        assert {path.name for path in (several / name).glob("process-*.log")} == logs
        assert "step 30/30" in (several / name / "process-1.log").read_text()


@pytest.mark.parametrize(("num_workers", "devices"), [(8, 2), (4, 1)])  # with 4, a process is idle in the first wave
def test_an_asynchronous_run_of_several_processes(num_workers, devices, tmp_path):
    served = (*SERVED, f"--config.num_workers={num_workers}")
    several, alone = (arguments("mean", tmp_path / name, *served) for name in ("several", "alone"))
    train_several(tmp_path, processes=2, devices=[devices] * 2, argument_lists=[[several]] * 2)
    train_alone(alone, devices=2 * devices)
    assert_same_run((*RUNS["mean"], *served), tmp_path / "several", tmp_path / "alone")
    assert (tmp_path / "several/staleness.csv").read_text() == (tmp_path / "alone/staleness.csv").read_text()


def test_times_of_all_processes_are_recorded_and_replayed(tmp_path):
    recorded = arguments("mean", tmp_path / "recorded", "--record_times", "--config.lanes=dispatched")
    said = train_several(tmp_path, processes=2, devices=[2, 2], argument_lists=[[recorded]] * 2)
    assert re.search(r"^slowest process: [01] of 2; its last worker takes [\d.e-]+ s a step", said[0], re.MULTILINE)
    (path,) = (tmp_path / "recorded").glob("worker_seconds-*.npz")
    with np.load(path) as trace:
        seconds = trace["seconds"]
    assert seconds.shape == (29, 8) and (seconds > 0).all()  # in the first step programs are compiled
    replay = ("--config.arrivals.name=trace", f"--config.arrivals.path={path}")
    train_alone(arguments("mean", tmp_path / "replayed", *replay), devices=4)
    took = [record["step_seconds"] for record in records(tmp_path / "replayed")]
    np.testing.assert_allclose(took[:29], seconds.max(axis=1), rtol=1e-6)


def test_the_records_name_the_process_whose_input_is_slow(tmp_path, capsys):
    """Process 1 sleeps before each batch; process 0 waits for it where its devices do, which is not counted."""
    short = keys("data.name=tests.slow_input:digits train_steps=16 eval_every_steps=16 checkpoint_every_steps=16")
    slow = arguments("mean", tmp_path / "slow", *short, "--process_times")
    train_several(tmp_path, processes=2, devices=[1, 1], argument_lists=[[slow]] * 2)
    found = [record for record in runs.read(tmp_path / "slow/metrics.jsonl") if record["kind"] == "train"]
    named = [record["slowest_process"] for record in found if "slowest_process" in record]
    assert len(named) >= 4 and np.median(named) == 1
    own = [[record[f"host_seconds_{p}"] for record in found if "slowest_process" in record] for p in range(2)]
    assert np.median(own[1]) > slow_input.SECONDS / 2 > np.median(own[0])
    events = b"".join(path.read_bytes() for path in (tmp_path / "slow/tensorboard").iterdir())
    assert b"train/host_seconds_1" in events and b"train/slowest_process" in events
    capsys.readouterr()
    planning_sources.read([str(tmp_path / "slow")])
    assert re.search(r"slow: process 1 of 2 works .* s a step by itself", capsys.readouterr().err)


def params_of(workdir):
    return restore_params(workdir, checkpoint="latest", trusted=["tests.split_batches"])


BATCHES = keys("data.name=tests.split_batches:digits reducer.name=adasum mapping=shard_map schedule.name=constant")


@pytest.mark.parametrize(
    ("processes", "own"),
    [
        (2, ""),
        (4, "num_workers=2 batch_size_per_worker=64 devices_per_worker=2 data.parts=nodes"),
    ],
)
def test_each_process_reads_batches_of_its_own_workers(processes, own, tmp_path, capsys):
    """Those of a node read the same ones; a run of another number can evaluate, and cannot go on."""
    overrides = (*BATCHES, *keys(own))
    several, alone = (arguments("mean", tmp_path / name, *overrides) for name in ("several", "alone"))
    train_several(tmp_path, processes=processes, devices=[1] * processes, argument_lists=[[several]] * processes)
    train_alone(alone, devices=processes)
    ours, theirs = (params_of(tmp_path / name) for name in ("several", "alone"))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6), ours, theirs)
    losses = [[record["loss"] for record in records(tmp_path / name)] for name in ("several", "alone")]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    capsys.readouterr()
    assert train_py(*several, "--evaluate_only") == 0
    assert train_py(*several, "--config.train_steps=40") == 2
    assert f"num_processes=1: must be {processes}, since checkpoint 30 has the places of" in capsys.readouterr().err


# ---- being stopped and killed ------------------------------------------------------------------------------------


LONG = (
    f"--config={DIGITS}",
    *keys(
        "train_epochs=None train_steps=1500 eval_every_epochs=None eval_every_steps=1500 "
        "checkpoint_every_epochs=None checkpoint_every_steps=100 log_every_steps=10 num_workers=2 "
        "model.hidden_sizes=(16,)"
    ),
    "--num_devices=2",
)


class Launched:
    """Two processes of one run, by the launcher."""

    def __init__(self, workdir, *more):
        self.workdir = workdir
        command = [sys.executable, "-m", "launch", "--processes=2", *LONG, f"--workdir={workdir}", *more]
        self.launcher = start(command, stderr=subprocess.PIPE, **ON_CPU)

    def pid(self, process):
        """The process id of one of the two, found by its flag."""
        children = pathlib.Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()
        flag = f"--process_id={process}".encode()
        (found,) = [int(pid) for pid in children if flag in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        return found

    def wait_for_step(self, step):
        while self.launcher.poll() is None:
            with contextlib.suppress(FileNotFoundError, IndexError):
                if runs.read(self.workdir / "metrics.jsonl")[-1]["step"] >= step:
                    return
            time.sleep(0.01)
        raise AssertionError(self.launcher.communicate()[1])

    def ended(self):
        said = self.launcher.communicate(timeout=MANY_SECONDS)[1]
        return self.launcher.returncode, said


def bits(workdir):
    """Everything in the last checkpoint."""
    setup = make_setup(flags.load(DIGITS, [flag for flag in LONG if flag.startswith("--config.")]))
    step, found = checkpoint_of(workdir, setup)
    return step, [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert Launched(workdir).ended()[0] == 0
    return bits(workdir)


def test_stopped_then_killed_then_gone_on(undisturbed, tmp_path):
    run = Launched(tmp_path / "run")
    run.wait_for_step(200)
    os.kill(run.pid(1), signal.SIGTERM)  # any one: all save, and stop
    code, said = run.ended()
    stopped_at = int(re.search(r"stopped by SIGTERM at step (\d+)", (tmp_path / "run/process-1.log").read_text())[1])
    assert code == 128 + signal.SIGTERM and bits(tmp_path / "run")[0] == stopped_at >= 200

    run = Launched(tmp_path / "run")
    run.wait_for_step(stopped_at + 200)
    killed = time.monotonic()
    os.kill(run.pid(1), signal.SIGKILL)
    code, said = run.ended()
    assert code == 128 + signal.SIGKILL
    assert time.monotonic() - killed < 60  # the others stop by themselves
    last = "process 1 of 2 was killed by SIGKILL; the same command goes on from the last checkpoint"
    assert said.rstrip().endswith(last)

    assert Launched(tmp_path / "run").ended()[0] == 0
    assert bits(tmp_path / "run") == undisturbed
    assert [record["step"] for record in records(tmp_path / "run")] == list(range(10, 1501, 10))


TIMED = "batch_size_per_worker=64 data.seconds=0.02 train_steps=150 eval_every_steps=150 checkpoint_every_steps=20"
SHORT = (*BATCHES, *keys(TIMED))


def test_iterators_of_killed_processes_go_on_from_their_places(tmp_path):
    """Or read past what was used, if they have none."""
    code, said = Launched(tmp_path / "undisturbed", *SHORT).ended()
    assert code == 0 and "proxy" not in said
    for kind in ("place", "generator"):
        given = (*SHORT, f"--config.data.kind={kind}")
        run = Launched(tmp_path / kind, *given)
        run.wait_for_step(60)
        os.kill(run.pid(1), signal.SIGKILL)
        assert run.ended()[0] == 128 + signal.SIGKILL
        code, said = Launched(tmp_path / kind, *given).ended()
        assert code == 0 and re.search(r"going on at step (20|40|60|80|100|120) of 150", said), said
        assert ("reads past" in said) == (kind == "generator")
        assert without_clock(tmp_path / kind) == without_clock(tmp_path / "undisturbed")
        jax.tree.map(np.testing.assert_array_equal, *map(params_of, (tmp_path / kind, tmp_path / "undisturbed")))


def test_a_process_whose_batches_end_names_its_log(tmp_path):
    code, said = Launched(tmp_path / "run", *SHORT, "--config.data.ends=30").ended()
    log = tmp_path / "run/process-1.log"
    assert code == 1
    assert f"process 1 of 2 ended with exit code 1: the output of process 1 goes on in {log}; the same command" in said
    assert "data.train: ends after 30 batches" in log.read_text().splitlines()[-1]


def test_a_process_that_waits_in_vain_ends(tmp_path):
    """The other process lives, but does not come to the same step."""
    ready = tmp_path / "ready"
    where = f"127.0.0.1:{local.free_port()}"
    waiting = [start([sys.executable, "-c", WAITS, where, index, ready], **ON_CPU) for index in (0, 1)]
    try:
        wait_for(lambda: ready.exists() or waiting[0].poll() is not None, MANY_SECONDS)
        waiting[0].send_signal(signal.SIGTERM)
        said = waiting[0].communicate(timeout=MANY_SECONDS)[0].splitlines()
        assert waiting[0].returncode == 143, said
        assert said[-1] == "stopped by SIGTERM while it waited for the other processes of the run"
    finally:
        for process in waiting:
            process.kill()
            process.communicate()


WAITS = """
import sys, time
from launch import command
command.begin()
import numpy as np
from parallel import processes
from runs import Stop
processes.join(coordinator=sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
processes.gather(np.ones(1))
if sys.argv[2] == "1":
    time.sleep(600)
with Stop(seconds_to_agree=1.0):
    open(sys.argv[3], "w").close()
    processes.gather(np.ones(1))
"""


def test_a_signal_to_one_process_during_the_start_ends_all(tmp_path):
    run = Launched(tmp_path / "run")

    def listens():  # process 1 has begun, and now imports
        with contextlib.suppress(ValueError, FileNotFoundError):
            return signal.SIGTERM in signals_of(run.pid(1), "SigCgt")

    wait_for(listens, MANY_SECONDS)
    os.kill(run.pid(1), signal.SIGTERM)
    code, said = run.ended()
    assert code == 143 and said.count("stopped by SIGTERM") == 1


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_second_run_in_the_folder_is_refused(tmp_path):
    first = Launched(tmp_path / "run")
    first.wait_for_step(10)
    code, said = Launched(tmp_path / "run").ended()
    assert code == 2 and said.count("in use by another run") == 1
    first.launcher.send_signal(signal.SIGINT)
    assert first.ended()[0] == 128 + signal.SIGTERM


def test_what_is_not_finite_stops_all(tmp_path):
    code, said = Launched(tmp_path / "run", "--config.optimizer.learning_rate=1e30").ended()
    saved = r"^step \d+: .* the state before it is saved, and the same command"
    assert code == 1 and re.search(saved, said, re.MULTILINE)
    step, _ = bits(tmp_path / "run")
    assert f"step {step + 1}: " in said and "Traceback" not in said
    assert f"step {step + 1}: " in (tmp_path / "run/process-1.log").read_text()


def test_what_cannot_be_laid_out_is_refused_by_all(tmp_path):
    code, said = Launched(tmp_path / "run", "--config.num_workers=3").ended()
    assert code == 2 and "num_workers=3: must be a multiple of the number of processes, 2" in said
    assert not (tmp_path / "run").exists()


def test_processes_that_would_run_something_else_are_refused_by_all(tmp_path):
    same = [f"--config={DIGITS}", f"--workdir={tmp_path}/run", *STEPS]
    differ = {
        "config.seed=1, which is 0 in process 0": ["--config.seed=1"],
        "config.optimizer.learning_rate=0.5, which is 0.02 in": ["--config.optimizer.learning_rate=0.5"],
        "config.train_steps=31, which is 30 in process 0": ["--config.train_steps=31"],
        "config.lanes_at_once=1, which is None in process 0": ["--config.lanes_at_once=1"],
        "config.on_nonfinite='skip', which is 'stop' in process 0": ["--config.on_nonfinite=skip"],
        "num_devices=2, which is None in process 0": ["--num_devices=2"],
        "fresh=True, which is False in process 0": ["--fresh"],
        "config.reducer.name='sum', which is 'mean' in process 0": ["--config.reducer.name=sum"],
    }
    argument_lists = [[same] * len(differ), [same + more for more in differ.values()]]
    for arguments, count in zip(argument_lists, (30, 20), strict=True):  # a folder of data of its own is allowed
        splits = {"train": random_examples(count), "test": random_examples(10)}
        write_set(tmp_path / f"{count}", "my_own", splits)
        arguments.append([*same, "--config.data.name=my_own", f"--config.data.dir={tmp_path}/{count}"])
    differences = [*differ, "data.num_train=20, which is 30 in process 0"]
    for said in train_several(tmp_path, processes=2, devices=(1, 2), argument_lists=argument_lists, code=2):
        lines = [line for line in said.splitlines() if line.startswith("process 1 of 2 runs something else")]
        assert len(lines) == len(differences)
        for line, difference in zip(lines, differences, strict=True):
            assert difference in line
    assert not (tmp_path / "run").exists()


def test_what_processes_must_have_in_common(tmp_path, monkeypatch):
    facts = runs.environment.facts({"seed": 0, "data": {"dir": "here"}}, flags={})
    assert facts == runs.environment.facts({"seed": 0, "data": {"dir": "there"}}, flags={})
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --xla_dump_to=somewhere")
    assert facts == runs.environment.facts({"seed": 0}, flags={})
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    changed = runs.environment.facts({"seed": 0}, flags={"num_devices": 1})
    assert {key for key in changed if changed[key] != facts.get(key)} == {"XLA_FLAGS", "num_devices"}
    assert facts["jax"] == jax.__version__
    source = tmp_path / "runs" / "one.py"
    source.parent.mkdir()
    hashes = set()
    for text in ("x = 1", "x = 2"):
        source.write_text(text)
        hashes.add(environment_of_runs.code(tmp_path))
    source.rename(source.with_name("two.py"))
    hashes.add(environment_of_runs.code(tmp_path))
    assert len(hashes) == 3


def test_a_port_that_another_program_uses_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"coordinator='{where}': port .* choose another one"):
            processes.join(coordinator=where, num_processes=2, process_id=0)


JOINS = """
import sys
import numpy as np
from parallel import processes
processes.join(coordinator=sys.argv[1], num_processes=int(sys.argv[2]), process_id=int(sys.argv[3]))
print("joined", processes.gather(np.array([processes.index()])).ravel().tolist(), flush=True)
"""


@pytest.fixture
def no_join(monkeypatch):
    """Keeps the arguments with which JAX's runtime would begin; without launchers in the environment."""
    kept = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **options: kept.update(options, given=given))
    for name in os.environ:
        if name.startswith(("OMPI_", "PMIX_", "SLURM_")):
            monkeypatch.delenv(name)
    return kept


@pytest.mark.parametrize("launcher", [{}, {"SLURM_STEP_NUM_TASKS": "2"}])  # mpirun has started its daemons by srun
def test_processes_of_mpirun_are_found_or_told_how(launcher, no_join, monkeypatch):
    for name, value in {"OMPI_COMM_WORLD_SIZE": "4", **launcher}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^coordinator: Open MPI 5 does not say .*; give --coordinator=HOST:PORT"):
        processes.join()
    assert processes.join(coordinator="node-1:9999", num_processes=4, process_id=3) == 4
    assert no_join["given"] == ("node-1:9999", 4, 3)
    assert no_join["cluster_detection_method"] == "deactivate"
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1:34911")
    assert processes.join() == 4 and no_join["given"] == (None, 4, None)  # JAX reads it


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_mpirun(tmp_path):
    joins = f'"$0" -c "$1" 127.0.0.1:{local.free_port()} $OMPI_COMM_WORLD_SIZE $OMPI_COMM_WORLD_RANK'
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    command = [*mpirun, "bash", "-c", joins, sys.executable, JOINS]
    process = start(command, **ON_CPU)
    said = process.communicate(timeout=MANY_SECONDS)[0]
    assert process.returncode == 0 and said.count("joined [0, 1, 2]") == 3, said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "here"}, "must be given together"),
        ({"num_processes": 2, "process_id": 0}, "must be given together"),
        ({"coordinator": "here", "num_processes": 2, "process_id": 0}, "coordinator='here': must be host:port"),
        ({"coordinator": "here:99999", "num_processes": 2, "process_id": 0}, "must be host:port"),
        ({"coordinator": "here:1", "num_processes": 0, "process_id": 0}, "num_processes=0: must be at least 1"),
        ({"coordinator": "here:1", "num_processes": 2, "process_id": 2}, r"process_id=2: must be in \[0, 1\]"),
    ],
)
def test_senseless_flags_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        processes.join(**given)


def test_one_process_starts_no_runtime():
    assert processes.join(coordinator="127.0.0.1:1", num_processes=1, process_id=0) == 1
    assert not processes.several() and processes.count() == 1 and processes.index() == 0


def test_the_slowest_process_is_named():
    seconds = np.full((5, 4), 0.5)
    seconds[:, 2] = 2.0
    said = traces.slowest_process(seconds, num_processes=2)
    assert said.startswith("slowest process: 1 of 2; its last worker takes 2 s")


# ---- two hosts -------------------------------------------------------------------------------------------------------


def test_two_hosts_survive_delay_and_a_cut_link(tmp_path):
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    run = tmp_path / "run"
    few = keys("train_steps=150 eval_every_steps=150")
    assert Launched(tmp_path / "undisturbed", *few).ended()[0] == 0
    with two_hosts.TwoHosts() as hosts:
        flags = [f"--coordinator={hosts.addresses[0]}:8476", "--num_processes=2", f"--workdir={run}"]
        command = [sys.executable, "train.py", *LONG, *few, *flags]
        started = [start(hosts.inside(host, [*command, f"--process_id={host}"]), **ON_CPU) for host in (0, 1)]
        while not (run / "metrics.jsonl").exists() or len(runs.read(run / "metrics.jsonl")) < 5:
            assert [process.poll() for process in started] == [None, None], started[0].communicate()
            time.sleep(0.1)
        hosts.cut(3.0)
        said = [process.communicate(timeout=MANY_SECONDS)[0] for process in started]
        assert [process.returncode for process in started] == [0, 0], said
        assert hosts.frames_lost > 0 and hosts.frames_passed > 1000
    assert bits(run) == bits(tmp_path / "undisturbed")
