"""Nothing is lost when something breaks: disks fill, files are cut, clocks jump, and runs go on as if undisturbed."""

import errno
import io
import json
import os
import pathlib
import shutil
import signal
import sys
import time

import numpy as np
import pytest

import runs
from experiments.execution import results
from experiments.study.run import Run
from reducers.arrivals import foreign_files
from runs import folder
from runs.reporting import records
from tests import ROOT
from tests.in_process import DIGITS, keys
from tests.prepared_sets import shard, write_images
from tests.started import in_namespace
from tests.stepper import act_at, ask_to_stop, end_at
from tests.test_streamed_training import arguments, random_images
from tests.test_train import assert_same_run, command, digits, final_state, uninterrupted, without_clock

__all__ = ["uninterrupted"]  # a fixture

# No compiled programs are kept: what a full disk leaves of one JAX warns of, here and in the tests after it.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ""}


def one_line(said: str, *words: str) -> None:
    """The last line is the error; before it may be what the run said of its progress."""
    *before, last = said.splitlines()
    assert all(word in last for word in words) and "Traceback" not in said, said
    usual = ("step ", "config.")
    assert all(line.startswith(usual) or ": going on at step" in line for line in before), said


def assert_goes_on(workdir, uninterrupted):
    """The same command makes the run, or what is missing of it, as if nothing had disturbed it."""
    assert command(*digits(workdir)) == 0
    assert_same_run(workdir, uninterrupted)


# ---- a full disk -------------------------------------------------------------------------------------------------

SMALL_DISK = """
mount -t tmpfs -o size=$1 tmpfs "$2" || exit 77
shift; place="$1"; shift
"$@"; code=$?
rm -f "$place/filler"
cp -r "$place" "$place.kept"
exit $code
"""


@pytest.mark.parametrize("kilobytes", [600, 200])
def test_a_disk_that_fills_up_loses_nothing(kilobytes, uninterrupted, tmp_path):
    """A disk of its own in a namespace of its own; it fills at the first checkpoint or at a later one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    program = [sys.executable, "train.py", *digits(disk / "run"), "--compilation_cache=", "--num_devices=8"]
    done = in_namespace(SMALL_DISK, f"{kilobytes}k", disk, *program, **ENVIRONMENT)
    assert done.returncode == 1 and done.stdout == "", done
    one_line(done.stderr, "could not be saved", "No space left on device")
    kept = tmp_path / "disk.kept" / "run"
    whole = [int(path.name) for path in (kept / "checkpoints").iterdir() if path.name.isdecimal()]
    assert bool(whole) == (kilobytes >= 600)
    if whole:
        assert final_state(kept)[0] == max(whole), "the one before is whole"
    assert_goes_on(kept, uninterrupted)
    assert not [path for path in (kept / "checkpoints").iterdir() if "damaged" in path.name]


def fill_while_records_are_written(monkeypatch, room):
    class FullAfter(io.FileIO):
        """A file that takes so many bytes and no more; the last write may take a part, as the system's does."""

        left = room

        def write(self, line):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = super().write(line[: self.left])
            self.left -= written
            return written

    monkeypatch.setattr(records.io, "FileIO", FullAfter)


def fill_at_the_very_end(monkeypatch, room):
    write = folder.files.write_atomically

    def full(path, content):
        if path.name == "DONE":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr(folder.files, "write_atomically", full)


FILLS = {
    **{f"records-{room}": (fill_while_records_are_written, room, "metrics.jsonl'") for room in (100, 0, 6000)},
    "the very end": (fill_at_the_very_end, None, "DONE' could not be saved: No space left"),
}


@pytest.mark.parametrize("when", FILLS)
def test_a_disk_that_fills_ends_a_run_which_goes_on(when, uninterrupted, tmp_path, monkeypatch, capsys):
    fill, room, words = FILLS[when]
    with monkeypatch.context() as patch:
        fill(patch, room)
        assert command(*digits(tmp_path)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    one_line(said.err, words, "could not be saved", "the same command goes on")
    assert room is None or len((tmp_path / "metrics.jsonl").read_bytes()) == room
    assert_goes_on(tmp_path, uninterrupted)


# ---- what a stopped run left is cut or changed -------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(uninterrupted, tmp_path_factory):
    """A copy of the finished run as it was before its end, its last checkpoint at step 100."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    shutil.copytree(uninterrupted, path)
    (path / "DONE").unlink()
    shutil.rmtree(path / "checkpoints" / "120")
    return path


@pytest.fixture
def run(stopped, tmp_path):
    return pathlib.Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.mark.parametrize("cut", [1, 0.5, 2, 40])
def test_a_cut_file_of_records_is_mended_on_resume(cut, run, uninterrupted, capsys):
    """The last line is cut somewhere, or half of the file is gone with it: what the checkpoint knows comes again."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    known = b"".join(line for line in lines if json.loads(line)["step"] <= 100)
    size = len(b"".join(lines)) - cut if cut >= 1 else len(known) + 10
    os.truncate(path, size)
    assert_goes_on(run, uninterrupted)
    assert "going on at step 100" in capsys.readouterr().err
    assert path.read_bytes().startswith(known)


# ---- clocks and data ---------------------------------------------------------------------------------------------


def test_clocks_that_jump_do_not_matter(uninterrupted, tmp_path, monkeypatch):
    jumps = np.random.default_rng(0).integers(-48, 48, 100_000) * 3600.0
    clock, calls = time.time, iter(jumps)
    monkeypatch.setattr(time, "time", lambda: clock() + next(calls))
    assert_goes_on(tmp_path, uninterrupted)
    monkeypatch.undo()
    seconds = [record["wall_seconds"] for record in runs.read(tmp_path / "metrics.jsonl")]
    assert seconds == sorted(seconds) and 0 < seconds[-1] < 3600
    assert next(calls) != jumps[0], "somebody has asked for the time"


@pytest.fixture
def images(tmp_path):
    splits = {"train": random_images(80, seed=0), "validation": random_images(30, seed=1)}
    return write_images(tmp_path / "sets", "imagenet2012", splits)


@pytest.mark.parametrize("when", ["between", "before"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_data_files_that_break_are_named_and_the_run_goes_on(when, harm, images, tmp_path, monkeypatch, capsys):
    victim, kept = shard(images, "train", 1), tmp_path / "kept"
    shutil.copy(victim, kept)
    workdir = tmp_path / "run"
    more = keys("checkpoint_every_steps=2 train_steps=6")
    call = arguments(workdir, tmp_path / "sets", *more)

    if when == "between":  # two starts of a run
        end_at(2, lambda: command(*call))
    victim.unlink() if harm == "gone" else os.truncate(victim, victim.stat().st_size // 2)
    capsys.readouterr()
    assert command(*call) in (1, 2)
    if (when, harm) == ("between", "cut"):  # the fingerprint differs, before anything is read
        one_line(capsys.readouterr().err, "config.data: changed or damaged")
    else:
        one_line(capsys.readouterr().err, "config.data.name='imagenet2012'", victim.name)
    shutil.copy(kept, victim)
    assert command(*call) == 0
    assert command(*arguments(tmp_path / "whole", tmp_path / "sets", *more)) == 0
    assert without_clock(workdir) == without_clock(tmp_path / "whole")


# ---- what happens in the folder meanwhile ------------------------------------------------------------------------


@pytest.mark.parametrize("more", [("--evaluate_only",), keys("init_from={run} train_steps=1")])
def test_a_checkpoint_that_is_pruned_while_it_is_read_is_chosen_again(
    more, uninterrupted, tmp_path, monkeypatch, capsys
):
    path = pathlib.Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    sha256, removed = foreign_files.sha256, []

    def prune(file):
        if not removed:
            removed.append(os.rename(path / "checkpoints" / "120", tmp_path / "pruned"))
        return sha256(file)

    monkeypatch.setattr(foreign_files, "sha256", prune)
    workdir = path if more == ("--evaluate_only",) else tmp_path / "new"
    assert command(*digits(workdir, *(flag.format(run=path) for flag in more))) == 0
    said = capsys.readouterr()
    assert removed and "damaged" not in said.err
    assert more != ("--evaluate_only",) or said.out.startswith("step 100: test accuracy")


@pytest.mark.parametrize(
    ("at", "names"), [(30, ["metrics.jsonl"]), (120, ["metrics.jsonl"]), (110, ["config.json", "env.json"])]
)
def test_files_that_are_removed_while_the_run_goes_on_are_put_back(
    at, names, uninterrupted, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        act_at(patch, at, lambda: [(tmp_path / name).unlink() for name in names])
        assert_goes_on(tmp_path, uninterrupted)
    assert command(*digits(tmp_path)) == 0 and "finished before" in capsys.readouterr().err
    assert len(runs.read_starts(tmp_path)) == 1


def replace_records(run):
    (run / "edited").write_bytes((run / "metrics.jsonl").read_bytes())
    os.replace(run / "edited", run / "metrics.jsonl")


def move(run):
    run.rename(run.with_name("moved"))


def move_during_a_save(run):
    move(run)  # Orbax makes the whole path of what it still writes
    (run / "checkpoints" / ".scratch" / "20.orbax-checkpoint-tmp").mkdir(parents=True)


def remove_lock(run):
    (run / "lock").unlink()


def take_lock(run):
    remove_lock(run)
    return runs.open_run(str(run), json.loads((run / "config.json").read_text()))


MOVED = ("was moved or removed", "--workdir the same command goes on from its last check")
UNLOCKED = ("/run' was moved or removed during the run, or its file lock was",)
HAPPENS = {  # in the folder of a run, after a step -> the line that ends it
    "other records": (
        30,
        replace_records,
        ("metrics.jsonl' could not be saved: another file", "the same command goes"),
    ),
    "moved between two saves": (30, move, MOVED),
    "moved during a save": (30, move_during_a_save, MOVED),
    "moved after the last call": (120, move, MOVED),
    "lock removed": (30, remove_lock, UNLOCKED),
    "lock taken": (30, take_lock, UNLOCKED),  # a second run may begin, and must not write beside the first
}


@pytest.mark.parametrize("what", HAPPENS)
def test_what_happens_in_its_folder_ends_a_run_which_goes_on_where_it_is(
    what, uninterrupted, tmp_path, monkeypatch, capsys
):
    at, act, words = HAPPENS[what]
    second = []
    with monkeypatch.context() as patch:
        act_at(patch, at, lambda: second.append(act(tmp_path / "run")))
        assert command(*digits(tmp_path / "run")) == 1
    one_line(capsys.readouterr().err, *words)
    for other in filter(None, second):
        other.close()
    (place,) = tmp_path.iterdir()  # nothing is made where it was
    assert place.name == ("moved" if act in (move, move_during_a_save) else "run")
    assert_goes_on(place, uninterrupted)


def test_a_shell_in_which_another_run_has_begun_is_left_alone(tmp_path, monkeypatch, capsys):
    other = tmp_path / "run"

    def move():
        other.rename(tmp_path / "moved")
        runs.open_run(str(other), {"seed": 5}).close()
        (other / "checkpoints" / ".scratch" / "9").mkdir(parents=True)

    act_at(monkeypatch, 30, move)
    assert command(*digits(other)) == 1
    one_line(capsys.readouterr().err, "was moved or removed", "the same command goes on")
    assert (other / "checkpoints" / ".scratch" / "9").exists() and (other / "config.json").exists()


def test_a_run_whose_checkpoints_are_gone_says_that_it_starts_over(run, uninterrupted, capsys):
    shutil.rmtree(run / "checkpoints")
    assert_goes_on(run, uninterrupted)
    assert "going on at step 0 of 120, because it has no checkpoint" in capsys.readouterr().err


# ---- records that are lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "first"), [("all", 7), ("tail", 49), ("middle", 21)])
def test_records_that_are_lost_are_noted_once(lost, first, run, uninterrupted, tmp_path, monkeypatch, capsys):
    path = run / "metrics.jsonl"
    last = {"all": 98, "tail": 98, "middle": 21}[lost]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if not first <= json.loads(line)["step"] <= last))
    if lost == "all":
        path.unlink()
    act_at(monkeypatch, 110, ask_to_stop)
    assert command(*digits(run)) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert f"metrics.jsonl' has lost its records of steps {first} to {last}" in said
    monkeypatch.undo()
    assert command(*digits(run)) == 0
    assert "has lost" not in capsys.readouterr().err
    whole = without_clock(uninterrupted)
    kept = without_clock(run)
    assert [r for r in kept if r["kind"] == "gap"] == [{"kind": "gap", "step": last, "first_step": first}]
    assert [r for r in kept if r["kind"] != "gap"] == [
        r for r in whole if not (0 if lost == "all" else first) <= r["step"] <= last + (2 if lost == "all" else 0)
    ]
    with pytest.raises(ValueError, match=rf"is not whole .*has lost records up to step {last}"):
        results.row_of(Run(labels={}, spec=DIGITS), run)


def test_the_last_evaluation_is_made_again_if_its_record_is_lost(uninterrupted, tmp_path, capsys):
    path = pathlib.Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    summary = runs.from_json((path / "DONE").read_bytes())
    (path / "DONE").unlink()
    (path / "metrics.jsonl").unlink()
    assert command(*digits(path)) == 0
    said = capsys.readouterr().err
    assert "has lost its records of steps 7 to 120" in said and "it is made again" in said
    again = runs.from_json((path / "DONE").read_bytes())
    assert all(again[key] == summary[key] for key in ("step", "epoch", "accuracy", "loss", "simulated_seconds"))
    assert [(r["kind"], r["step"]) for r in runs.read(path / "metrics.jsonl")] == [("gap", 120), ("eval", 120)]
