"""Nothing is lost when something breaks: disks fill, files are cut, clocks jump, and runs go on as if undisturbed."""

import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import runs
from benchmarks.prepared_sets import shard, write_images
from runs import folder
from tests.test_streamed_training import arguments, random_images
from tests.test_train import ROOT, assert_same_run, command, digits, final_state, uninterrupted, without_clock

__all__ = ["uninterrupted"]  # a fixture

# No compiled programs are kept: what a full disk leaves of one JAX warns of, here and in the tests after it.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ""}


def contents(path: pathlib.Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def one_line(said: str, *words: str) -> None:
    """The last line is the error; before it may be what the run said of its progress."""
    *before, last = said.splitlines()
    assert all(word in last for word in words) and "Traceback" not in said, said
    usual = ("step ", "config.")
    assert all(line.startswith(usual) or ": going on at step" in line for line in before), said


# ---- a full disk -------------------------------------------------------------------------------------------------

# A child of limited file size or on a small disk of its own, on 8 devices as in the tests.
CHILD = """
import resource, sys, signal
limit = int(sys.argv.pop(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails with EFBIG
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
import train
sys.exit(train.main([*sys.argv, "--compilation_cache=", "--num_devices=8"]))
"""


def child(*arguments: str, limit: int = 0) -> subprocess.CompletedProcess:
    program = [sys.executable, "-c", CHILD, str(limit), *arguments]
    return subprocess.run(program, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_files_that_may_not_grow_end_a_run_which_goes_on_when_they_may(uninterrupted, tmp_path):
    """A quota on the size of a file: the first checkpoint's array files are larger."""
    done = child(*digits(tmp_path), limit=50_000)
    assert done.returncode == 1 and done.stdout == "", done
    one_line(done.stderr, "checkpoint 20 could not be saved", "the same command goes on")
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.name.isdecimal()]
    assert command(*digits(tmp_path)) == 0
    assert_same_run(tmp_path, uninterrupted)


SMALL_DISK = """
mount -t tmpfs -o size=$1 tmpfs "$2" || exit 77
shift; place="$1"; shift
"$@"; code=$?
rm -f "$place/filler"
cp -r "$place" "$place.kept"
exit $code
"""


@pytest.mark.parametrize("kilobytes", [600, pytest.param(200, marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_loses_nothing(kilobytes, uninterrupted, tmp_path):
    """A disk of its own in a namespace of its own; it fills at the first checkpoint or at a later one."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs leave to make a user namespace with a mount of its own")
    disk, small = tmp_path / "disk", ["unshare", "-rm", "bash", "-c", SMALL_DISK, "bash", f"{kilobytes}k"]
    disk.mkdir()
    program = [sys.executable, "-c", CHILD, "0", *digits(disk / "run")]
    done = subprocess.run(
        [*small, str(disk), *program], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=240
    )
    if done.returncode == 77:
        pytest.skip("needs leave to mount a tmpfs")
    assert done.returncode == 1 and done.stdout == "", done
    one_line(done.stderr, "could not be saved", "No space left on device")
    kept = tmp_path / "disk.kept" / "run"
    whole = [int(path.name) for path in (kept / "checkpoints").iterdir() if path.name.isdecimal()]
    assert bool(whole) == (kilobytes >= 600)
    if whole:
        assert final_state(kept)[0] == max(whole), "the one before is whole"
    assert command(*digits(kept)) == 0
    assert not [path for path in (kept / "checkpoints").iterdir() if "damaged" in path.name]
    assert_same_run(kept, uninterrupted)


class FullAfter:
    """A file that takes so many bytes and no more; the last write may take a part, as the system's does."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, line):
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = line[: self._room]
        self._room -= len(part)
        return self._file.write(part)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


@pytest.mark.parametrize("room", [100, *(pytest.param(room, marks=pytest.mark.slow) for room in (0, 6000))])
def test_a_disk_that_fills_while_records_are_written(room, uninterrupted, tmp_path, monkeypatch, capsys):
    opened = runs.Records.__init__

    def opens(self, *arguments, **options):
        opened(self, *arguments, **options)
        self._file = FullAfter(self._file, room)

    monkeypatch.setattr(runs.Records, "__init__", opens)
    assert command(*digits(tmp_path)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    one_line(said.err, "metrics.jsonl' could not be saved", "the same command goes on")
    assert len((tmp_path / "metrics.jsonl").read_bytes()) == room
    monkeypatch.undo()
    assert command(*digits(tmp_path)) == 0
    assert_same_run(tmp_path, uninterrupted)


def test_a_disk_that_fills_at_the_very_end(uninterrupted, tmp_path, monkeypatch, capsys):
    write = folder.files.write_atomically

    def full(path, content):
        if path.name == "DONE":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr(folder.files, "write_atomically", full)
    assert command(*digits(tmp_path)) == 1
    one_line(capsys.readouterr().err, "DONE' could not be saved: No space left")
    monkeypatch.undo()
    assert command(*digits(tmp_path)) == 0
    assert_same_run(tmp_path, uninterrupted)


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


def test_a_truncated_checkpoint_is_passed_over(run, stopped, uninterrupted, capsys):
    newest = max(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal())
    victim = max((p for p in (run / f"checkpoints/{newest}").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(victim, victim.stat().st_size // 2)
    assert command(*digits(run)) == 0
    said = capsys.readouterr().err
    assert f"checkpoint {newest}" in said and "bytes instead of" in said and f"moved to {newest}.damaged" in said
    assert_same_run(run, uninterrupted)


@pytest.mark.parametrize("cut", [1, 0.5, *(pytest.param(cut, marks=pytest.mark.slow) for cut in (2, 40))])
def test_a_cut_file_of_records_is_mended_on_resume(cut, run, uninterrupted, capsys):
    """The last line is cut somewhere, or half of the file is gone with it: what the checkpoint knows comes again."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    known = b"".join(line for line in lines if json.loads(line)["step"] <= 100)
    size = len(b"".join(lines)) - cut if cut >= 1 else len(known) + 10
    os.truncate(path, size)
    assert command(*digits(run)) == 0
    assert "going on at step 100" in capsys.readouterr().err
    assert path.read_bytes().startswith(known)
    assert_same_run(run, uninterrupted)


def test_records_damaged_in_the_middle_are_refused_and_left_alone(run, capsys):
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"\x00" * 40 + b"\n", *lines[3:]]))
    before = contents(run)
    assert command(*digits(run)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "metrics.jsonl': line 4 is damaged" in said, said
    assert contents(run) == before


def test_the_second_of_two_runs_in_one_folder_is_refused(run, capsys):
    config = json.loads((run / "config.json").read_text())
    with runs.open_run(str(run), config):
        before = contents(run)
        assert command(*digits(run)) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"in use by another run (process {os.getpid()})" in said
        assert contents(run) == before


# ---- clocks and data ---------------------------------------------------------------------------------------------


def test_clocks_that_jump_do_not_matter(uninterrupted, tmp_path, monkeypatch):
    jumps = np.random.default_rng(0).integers(-48, 48, 100_000) * 3600.0
    clock, calls = time.time, iter(jumps)
    monkeypatch.setattr(time, "time", lambda: clock() + next(calls))
    assert command(*digits(tmp_path)) == 0
    monkeypatch.undo()
    assert_same_run(tmp_path, uninterrupted)
    seconds = [record["wall_seconds"] for record in runs.read(tmp_path / "metrics.jsonl")]
    assert seconds == sorted(seconds) and 0 < seconds[-1] < 3600
    assert next(calls) != jumps[0], "somebody has asked for the time"


@pytest.fixture
def images(tmp_path):
    splits = {"train": random_images(80, seed=0), "validation": random_images(30, seed=1)}
    return write_images(tmp_path / "sets", "imagenet2012", splits)


BREAKS = [("between", "cut"), ("between", "gone"), ("before", "cut"), ("before", "gone")]


@pytest.mark.parametrize(
    ("when", "harm"), BREAKS[:1] + [pytest.param(*row, marks=pytest.mark.slow) for row in BREAKS[1:]]
)
def test_data_files_that_break_are_named_and_the_run_goes_on(when, harm, images, tmp_path, monkeypatch, capsys):
    victim, kept = shard(images, "train", 1), tmp_path / "kept"
    shutil.copy(victim, kept)
    workdir = tmp_path / "run"
    more = ("--config.checkpoint_every_steps=2", "--config.train_steps=6")
    call = arguments(workdir, tmp_path / "sets", *more)

    if when == "between":  # two starts of a run
        save = runs.Checkpoints.save

        def saves(self, step, *rest, **options):
            save(self, step, *rest, **options)
            signal.raise_signal(signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(runs.Checkpoints, "save", saves)
            assert command(*call) == 128 + signal.SIGTERM
        assert (workdir / "checkpoints/2").exists()
    victim.unlink() if harm == "gone" else os.truncate(victim, victim.stat().st_size // 2)
    capsys.readouterr()
    assert command(*call) in (1, 2)
    one_line(capsys.readouterr().err, "config.data.name='imagenet2012'", victim.name)
    shutil.copy(kept, victim)
    assert command(*call) == 0
    assert command(*arguments(tmp_path / "whole", tmp_path / "sets", *more)) == 0
    assert without_clock(workdir) == without_clock(tmp_path / "whole")
