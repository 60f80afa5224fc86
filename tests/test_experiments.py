"""The machinery of experiments: a queue that loses nothing, rows, selections, reports, sweeps, the command."""

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

import runs as run_folders
from experiments import __main__ as command_line
from experiments.execution import queue, results
from experiments.execution.finish import Shard, finish
from experiments.study.run import Run
from launch import children
from reducers.arrivals import foreign_files
from runs import lock
from tests import ROOT
from tests.refused import line_of
from tests.started import wait_for

# A run that takes a while: it says so in a file of its own, and counts its beginnings.
SCRIPT = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import runs
folder, config, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
with runs.open_run(folder, config) as held:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    with open(held.path / "begun", "a") as file:
        file.write("x")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
    if stopped:
        (held.path / "saved").write_text("x"); sys.exit(143)
    with open(held.path / "ended", "a") as file:
        file.write("x")
    held.write("cores", str(sorted(os.sched_getaffinity(0))))
    held.write("row.jsonl", json.dumps({{"value": config["measure"]["seed"] * 2.0}}) + "\\n")
    held.finish({{"wall_seconds": 0.1}})
"""


def made_up(count=3, **others):
    return [Run(labels={"seed": seed, **others}) for seed in range(count)]


def command(seconds):
    return lambda run, folder: [sys.executable, "-c", SCRIPT, str(folder), json.dumps(run.config), str(seconds)]


def at_once(failing=()):
    """The same runs, which are over as they start: this process writes their folders, and theirs imports nothing."""

    def of(run, folder):
        if run.labels["seed"] in failing:
            return [sys.executable, "-S", "-c", "import sys; print('first line\\nconfig.x=3: is refused'); sys.exit(2)"]
        with run_folders.open_run(str(folder), run.config) as held:
            for name in ("begun", "ended"):
                with open(held.path / name, "a") as file:
                    file.write("x")
            held.write("row.jsonl", json.dumps({"value": run.config["measure"]["seed"] * 2.0}) + "\n")
            held.finish({"wall_seconds": 0.1})
        return [sys.executable, "-S", "-c", "pass"]

    return of


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of three finished runs; to be copied where it is changed."""
    root = tmp_path_factory.mktemp("done")
    assert queue.execute(made_up(), root=root, command=at_once()) == []
    return root


def counts(root, name):
    return sorted((path.parent.name.split("-")[0], len(path.read_text())) for path in root.glob(f"*/{name}"))


# ---- the queue ---------------------------------------------------------------------------------------------------


def test_what_is_finished_is_never_run_again(done, tmp_path):
    root = shutil.copytree(done, tmp_path / "root")
    assert queue.execute(made_up(4), root=root, command=at_once()) == []
    assert counts(root, "ended") == counts(root, "begun") == [(f"seed={seed}", 1) for seed in range(4)]
    rows = results.finished(made_up(4), root=root)
    assert [row["value"] for row in rows] == [0.0, 2.0, 4.0, 6.0] and rows[0]["origin"]["fingerprint"]


def test_a_run_that_fails_is_reported_and_does_not_stop_the_rest(tmp_path, capsys):
    (failure,) = queue.execute(made_up(), root=tmp_path, command=at_once(failing={1}), title="mine")
    counted = ("0 of 3 runs", "1 of 3 runs", "1 of 3 runs, 1 failed", "2 of 3 runs, 1 failed")
    assert capsys.readouterr().err.splitlines() == [f"mine: {count}" for count in counted]
    assert failure.run.name == "seed=1" and failure.reason == "exit code 2: config.x=3: is refused"
    assert [row["seed"] for row in results.finished(made_up(), root=tmp_path)] == [0, 2]
    assert queue.execute(made_up(), root=tmp_path, command=at_once()) == []  # mended: only it is run
    assert counts(tmp_path, "ended") == [("seed=0", 1), ("seed=1", 1), ("seed=2", 1)]


def test_runs_at_once_share_the_cores_out(tmp_path):
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    queue.execute(made_up(2), root=tmp_path, command=command(seconds=0.5), jobs=2)
    first, second = (set(json.loads(path.read_text())) for path in tmp_path.glob("*/cores"))
    assert first and second and not first & second and first | second == cores


def test_a_run_has_as_many_cores_as_it_asks_for(tmp_path):
    runs = [dataclasses.replace(run, cores=1) for run in made_up(1)]
    queue.execute(runs, root=tmp_path, command=command(seconds=0))
    (path,) = tmp_path.glob("*/cores")
    assert json.loads(path.read_text()) == sorted(os.sched_getaffinity(0))[:1]


def test_two_runs_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two are named 'seed=0'"):
        queue.execute([*made_up(1), *made_up(1)], root=tmp_path, command=command(0.0))


DRIVER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from experiments.execution import queue
from tests.test_experiments import command, made_up
try:
    queue.execute(made_up(3), root=Path(sys.argv[1]), command=command(seconds=float(sys.argv[2])))
except queue.Interrupted as signal:
    print("stopped by", signal)
    sys.exit(9)
"""


def drive(root, seconds):
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(root), str(seconds)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("moment", [0.3, 0.0, 1.2])
def test_a_queue_that_is_killed_loses_nothing_and_runs_nothing_twice(tmp_path, moment):
    killed = drive(tmp_path, 0.5)
    wait_for(lambda: counts(tmp_path, "begun"))
    time.sleep(moment)
    killed.kill()
    killed.communicate()
    again = drive(tmp_path, 0.5)  # the run that the killed queue left behind is waited for, not begun a second time
    again.communicate(timeout=60)
    assert again.returncode == 0
    assert counts(tmp_path, "ended") == counts(tmp_path, "begun") == [("seed=0", 1), ("seed=1", 1), ("seed=2", 1)]


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_and_runs_save(tmp_path, number):
    driver = drive(tmp_path, 60)
    wait_for(lambda: counts(tmp_path, "begun"))
    time.sleep(0.3)  # until the run listens
    driver.send_signal(number)
    out, _ = driver.communicate(timeout=30)
    assert driver.returncode == 9 and out.strip() == f"stopped by {number.name}"
    assert [path.parent.name.split("-")[0] for path in tmp_path.glob("*/saved")] == ["seed=0"]
    assert len(counts(tmp_path, "begun")) == 1 and not counts(tmp_path, "ended")


class OnceBegun(float):
    """A time that has come as soon as a run in a folder has begun."""

    def __new__(cls, root):
        made = super().__new__(cls, "inf")
        made.root = root
        return made

    def __le__(self, now):
        return any(self.root.glob("*/begun"))


def test_when_the_time_is_up_runs_save_and_the_same_command_goes_on(tmp_path, capsys):
    def go_on(of, **options):
        return finish("mine", lambda rows: made_up(3), root=tmp_path, command=of, **options)

    assert go_on(command(60), shard=Shard(until=OnceBegun(tmp_path))) == []
    assert counts(tmp_path, "saved") == counts(tmp_path, "begun") == [("seed=0", 1)]
    said = "mine: the time is up; 0 of 3 runs are finished; the same command goes on"
    assert said in capsys.readouterr().err.splitlines()
    for folder in tmp_path.glob("seed*"):
        shutil.rmtree(folder)
    assert go_on(at_once()) == [] and len(counts(tmp_path, "ended")) == 3
    assert go_on(command(60), shard=Shard(until=-math.inf)) == []
    assert "the time is up" not in capsys.readouterr().err


def test_a_run_that_fails_when_the_time_is_up_is_a_failure(tmp_path):
    def of(run, folder):
        _, _, script, *arguments = command(60)(run, folder)
        return [sys.executable, "-c", script.replace("sys.exit(143)", "sys.exit(1)"), *arguments]

    (failure,) = queue.execute(made_up(2), root=tmp_path, command=of, until=OnceBegun(tmp_path))
    assert failure.reason.startswith("exit code 1") and len(counts(tmp_path, "begun")) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "convergence_constants", "--scale=smoke"],
        ["reproduce", "convergence_constants", "--scale=smoke"],
        ["sweep", "--config=configs/digits.py", "--grid=num_workers=2"],
    ],
)
def test_minutes_that_are_over_at_once_start_nothing(argv, tmp_path, capsys):
    assert command_line.main([*argv, f"--out={tmp_path}", "--minutes=1e-9"]) == 0
    assert "the time is up; 0 of 1 runs are finished; the same command goes on" in capsys.readouterr().err
    assert not list(tmp_path.rglob("output.log"))


def test_data_that_are_missing_stop_all_before_a_run_unless_others_stand_in(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    argv = ["run", "rate_tradeoff", f"--out={tmp_path / 'out'}", "--minutes=1e-9"]
    assert command_line.main(argv) == 2
    said = capsys.readouterr().err
    assert "run `python -m data.prepare mnist`, or take digits instead by --data=digits" in said
    assert said.count("\n") == 1 and not (tmp_path / "out").exists()
    assert command_line.main([*argv, "--data=digits"]) == 0


def test_a_run_that_another_queue_starts_is_waited_for_at_the_end(tmp_path, capsys):
    """The other queue's lock is held as long as the process that it started, which here ends without a result."""
    first, *_ = made_up(3)
    folder = results.folder_of(first, tmp_path)
    folder.mkdir()
    claim = lock.take(str(folder), folder, name=lock.QUEUE)
    order = []

    def of(run, at):
        order.append(run.labels["seed"])
        return at_once()(run, at)

    def release():
        wait_for(lambda: len(order) == 2 and "waiting: " in said())
        claim.release()

    def said():
        lines.extend(capsys.readouterr().err.splitlines())
        return "\n".join(lines)

    lines = []
    thread = threading.Thread(target=release)
    thread.start()
    assert queue.execute(made_up(3), root=tmp_path, command=of, title="mine") == []
    thread.join()
    assert order == [1, 2, 0] and counts(tmp_path, "ended") == [(f"seed={seed}", 1) for seed in range(3)]
    (line,) = (line for line in lines if line.startswith("mine: 2 of 3 runs, waiting: "))
    assert repr(str(folder)) in line and f"process {os.getpid()}" in line


def test_only_one_of_two_queues_starts_a_run(tmp_path, monkeypatch):
    """Both see it as new, and the other one takes it first."""
    taken = []

    def quicker(workdir, path, *, name=lock.RUN):
        if not taken:
            taken.append(take(workdir, path, name=name))
            threading.Timer(0.5, taken[0].release).start()
        return take(workdir, path, name=name)

    take = lock.take
    monkeypatch.setattr(lock, "take", quicker)
    assert queue.execute(made_up(1), root=tmp_path, command=at_once()) == []
    assert counts(tmp_path, "ended") == [("seed=0", 1)]


def test_a_run_that_meets_a_process_of_no_queue_is_waited_for(tmp_path, monkeypatch):
    """It begins between the look of the queue and that of the run, which is refused; also where it ends the run."""
    (run,) = made_up(1)
    folder = results.folder_of(run, tmp_path)
    held = []

    def of(run, at):
        if not held:
            held.append(run_folders.open_run(str(at), run.config))
            threading.Timer(0.5, held[0].close).start()
            return [sys.executable, "-S", "-c", "print('in use'); raise SystemExit(2)"]
        return at_once()(run, at)

    assert queue.execute([run], root=tmp_path, command=of) == []
    assert counts(tmp_path, "ended") == [("seed=0", 1)]
    monkeypatch.setattr(queue, "_failure", lambda job: (folder / "DONE").touch() or queue.Failure(run, folder, "late"))
    (folder / "DONE").unlink()
    assert queue.execute([run], root=tmp_path, command=at_once(failing={0})) == []


@pytest.mark.parametrize("name", [lock.RUN, lock.QUEUE])
def test_a_file_that_is_no_lock_is_not_waited_for(name, tmp_path):
    (run,) = made_up(1)
    folder = results.folder_of(run, tmp_path)
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(ValueError, match="must be the file of a run's lock"):
        queue.execute([run], root=tmp_path, command=at_once())
    assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("where", ["folder", "log", "process"])
def test_a_full_disk_names_each_run_and_its_file(where, tmp_path, monkeypatch, capsys):
    """So does the command, whose own table has no room either."""

    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(queue, "train_command", lambda run, at: [sys.executable, "-S", "-c", "raise SystemExit(2)"])
    if where == "folder":
        monkeypatch.setattr(lock, "take", lambda workdir, path, **_: full(path / lock.QUEUE))
    elif where == "log":
        monkeypatch.setattr(foreign_files, "opened_to_append", full)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=0))
    monkeypatch.setattr(os, "fsync", lambda _: full(None))
    argv = ["sweep", "--config=configs/digits.py", "--grid=num_workers=2,4", f"--out={tmp_path}"]
    assert command_line.main(argv) == 2
    said = capsys.readouterr().err.splitlines()
    failed = [line for line in said if line.startswith("failed: ")]
    for line, name in zip(failed, ("num_workers=2,seed=0", "num_workers=4,seed=0"), strict=True):
        assert line.startswith(f"failed: {name}: ") and str(tmp_path) in line
        assert ("bytes left" if where == "process" else "No space left") in line
    assert said[-1].startswith("experiments: ")
    assert "table.md" in said[-1]
    assert "No space left" in said[-1]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import shutil, sys; shutil.rmtree(sys.argv[1]); sys.exit(3)", "exit code 3: it said nothing"),
        (f"print('x' * {2 * children.TAIL_BYTES}); print('the reason'); exit(1)", "exit code 1: the reason"),
    ],
)
def test_a_folder_that_vanishes_or_a_long_log_is_a_failure_and_not_the_end(script, reason, tmp_path):
    def of(run, folder):
        return [sys.executable, "-c", script, str(folder)] if run.labels["seed"] == 0 else at_once()(run, folder)

    (failure,) = queue.execute(made_up(2), root=tmp_path, command=of)
    assert failure.reason == reason and counts(tmp_path, "ended") == [("seed=1", 1)]


def test_a_shard_must_be_one_of_them():
    assert [run.labels["seed"] for run in Shard.parse("2/2").own(made_up(5))] == [1, 3]
    for text in ("0/2", "3/2", "1", "a/b", "1/0", f"1/{'9' * 5000}"):
        with pytest.raises(ValueError, match="must be i/n"):
            Shard.parse(text)


# ---- rows --------------------------------------------------------------------------------------------------------


def test_rows_survive_their_file_numbers_that_json_lacks_too(tmp_path):
    rows = [{"run": "a", "loss": [1.0, math.inf], "origin": {"seconds": -math.inf}}]
    results.write_rows(tmp_path / "rows.jsonl", rows)
    assert results.read_rows(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize("missing", ["row.jsonl", "env.json", "config.json"])
def test_a_folder_that_is_half_copied_is_refused_in_a_line(done, tmp_path, missing):
    root = shutil.copytree(done, tmp_path / "root")
    (run,) = made_up(1)
    (results.folder_of(run, root) / missing).unlink()
    with pytest.raises(ValueError, match=r"run='seed=0': '.*' has DONE but is not whole \(.*\); copy it again"):
        results.finished([run], root=root)


def test_a_measurement_with_the_name_of_a_label_is_refused(tmp_path):
    runs = made_up(1, value=3)
    queue.execute(runs, root=tmp_path, command=at_once())
    with pytest.raises(ValueError, match="run='seed=0,value=3': measures 'value', which is one of its labels"):
        results.finished(runs, root=tmp_path)


@pytest.mark.parametrize("value", ["🙂" * 80, "a\x1b[2J\nb", "\0", "x" * 300, "/a/b", "../x"])
def test_a_folder_can_have_any_value_in_its_name(value, tmp_path):
    folder = results.folder_of(Run(labels={"of": value}), tmp_path)
    folder.mkdir()
    assert folder.name.isprintable() and folder.parent == tmp_path


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "nothing"], "name='nothing': must be one of"),
        (["run", "convergence_constants", "--scale=paper"], "scale='paper': convergence_constants has smoke, laptop"),
        (["publish", "convergence_constants", "--scale=gpu"], "scale='gpu': convergence_constants has smoke, laptop"),
        (["save", "convergence_constants", "--scale=smoke"], "0 of 1 runs at scale smoke are finished; run it first"),
        (["run", "convergence_constants", "--shard=3/2"], "experiments: shard='3/2': must be i/n"),
        (["run", "convergence_constants", "--jobs=0"], "jobs=0: must be in [1, inf)"),
        (["run", "convergence_constants", "--minutes=0"], "minutes=0: must be in (0, inf)"),
        (["run", "lenet_workers", "--data=cifar10"], "invalid choice: 'cifar10'"),
        (["publish", "lenet_workers", "--data=digits"], "unrecognized arguments: --data=digits"),
        (["verify", "nothing"], "name='nothing': must be one of"),
        (["verify", "staleness", "--rows=0"], "rows=0: must be in [1, inf)"),
        (["verify", "staleness/x"], "row='staleness/x': no published row of that name; see `python -m experiments l"),
        (["figure", "nothing"], "name='nothing': must be one of"),
        (["figure", "adam_bound", "--columns=3"], "argument --columns: invalid choice: 3"),
        (["list", "--out=~nobody-of-this-name/x"], "out='~nobody-of-this-name/x'"),
        (["report"], "the following arguments are required: name"),
        (["publish", "convergence_constants", "--scale=smoke"], "0 of 1 runs at scale smoke are finished"),
        (["sweep", "--config=configs/digits.py"], "has no sweep()"),
        (["sweep", "--config=configs/none.py", "--grid=seed=1"], "no such file"),
        (["sweep", "--config=configs/digits.py", "--grid=sede=1"], "did you mean 'seed'?"),
        (["sweep", "--config=configs/digits.py", "--grid=seed"], "must be key=value,value"),
        (["sweep", "--config=configs/digits.py", "--grid=seed=1", "--seeds=0"], "seeds=0"),
        (["sweep", "--config=configs/digits.py", "--grid=seed=1", "--metric=los"], "metric='los': is not evaluated"),
        (["sweep", "--config=configs/digits.py", "--grid=seed=1", "--goal=most"], "argument --goal: invalid choice"),
        (["sweep", "--config=configs/digits.py", "--grid=seed=1", "--name=a/b"], "name='a/b': must be the name of one"),
    ],
)
def test_bad_input_is_one_line(argv, said, tmp_path, capsys):
    command, *options = argv
    assert command_line.main([command, f"--out={tmp_path}", *options]) == 2
    assert said in line_of(capsys) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("count", "points"), [(1, 234), (2, 486)])
def test_published_rows_are_drawn_for_a_page_of_one_or_two_columns(count, points, tmp_path, capsys):
    for ending in ("svg", "pdf"):
        argv = ["figure", "adam_bound", f"--columns={count}", f"--format={ending}", f"--out={tmp_path}"]
        assert command_line.main(argv) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'adam_bound'}.{ending}\n"
    assert f'width="{points}pt"' in (tmp_path / "adam_bound.svg").read_text()
    assert f"/MediaBox [ 0 0 {points} ".encode() in (tmp_path / "adam_bound.pdf").read_bytes()
