"""A folder holds one experiment, run by one process; what is refused is refused in one line and leaves no trace."""

import errno
import fcntl
import json
import math
import os
import subprocess
import time
from pathlib import Path

import jax
import pytest

from runs import Inputs, environment, lock
from runs.folder import holder, open_run
from runs.identity import differences
from tests.refused import refused
from tests.saved import contents

CONFIG = {"seed": 0, "reducer": {"name": "mean"}, "data": {"name": "digits", "dir": "/a"}, "sizes": (3, 4)}


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has begun; nobody is at work in it."""
    open_run(str(tmp_path), CONFIG).close()
    return tmp_path


def _refused(workdir, config=CONFIG, **options) -> str:
    """Opens a run, which must be refused in one line and leave the folder as it is."""
    before = contents(workdir)
    with refused(ValueError, "^workdir=") as caught:
        open_run(str(workdir), config, **options)
    assert contents(workdir) == before
    return str(caught.value)


def test_new_folder_then_resumed(tmp_path):
    workdir = tmp_path / "a" / "b"
    with open_run(str(workdir), CONFIG, devices=["cpu:0", "cpu:1"]) as folder:
        assert folder.state == "new" and folder.path == workdir and folder.changes == ()
        assert json.loads((workdir / "config.json").read_text()) == {**CONFIG, "sizes": [3, 4]}
        assert (workdir / "config.json").read_text().startswith('{\n  "data"'), "sorted and indented, for people"
    with open_run(str(workdir), CONFIG, devices=["cpu:0"]) as folder:
        assert folder.state == "resumed"
        assert folder.changes == ("devices was ['cpu:0', 'cpu:1'], is ['cpu:0']",)
        starts = json.loads((workdir / "env.json").read_text())["starts"]
        assert folder.metrics.parent == workdir
    assert [start["devices"] for start in starts] == [["cpu:0", "cpu:1"], ["cpu:0"]]
    assert starts[0]["packages"].keys() == set(environment.PACKAGES)
    assert all(starts[0]["packages"].values())
    assert {"started", "command", "python", "platform", "commit", "tree"} <= starts[0].keys()
    assert sorted(p.name for p in workdir.iterdir()) == ["config.json", "env.json", "lock"]


X86 = (
    "processor\t: 0\nmodel name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17\ncache size\t: 1024 KB\n\nprocessor\t: 1\n"
)
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("info", "said"),
    [(X86, "AMD EPYC, family 25, model 17, cache 1024 KB"), (ARM, "implementer 0x41, part 0xd0c")],
)
def test_a_start_records_the_model_of_the_cpu(info, said, tmp_path):
    (tmp_path / "cpuinfo").write_text(info)
    assert environment.processor(tmp_path / "cpuinfo") == said
    assert environment.processor(tmp_path / "none")
    assert environment.describe()["cpu"] == environment.processor()
    before = {**environment.describe(), "cpu": "another"}
    (change,) = environment.changes(before, environment.describe())
    assert change == f"cpu was 'another', is {environment.processor()!r}"


def test_a_recorded_input_stays_where_the_environment_is_put_back(tmp_path):
    file = {"path": "there/5/manifest.json", "sha256": "0" * 64}
    with open_run(str(tmp_path), {"seed": 0}) as folder:
        folder.record_input("init_from", file)
        (tmp_path / "env.json").unlink()
        folder.check_held()
    with open_run(str(tmp_path), {"seed": 0}) as again:
        assert again.recorded_input("init_from") == file


def tree_with(path):
    """The mark of the checkout while it has a file that is not tracked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("1")
    found = environment.describe()["tree"]
    path.unlink()
    return found


def test_commit_and_dirty_mark(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "environment.py").write_text("1")
    (tmp_path / ".gitignore").write_text("/out/\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.describe()["commit"] is None
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *arguments], check=True)
    clean = environment.describe()
    assert len(clean["commit"]) == 40 and clean["tree"] == "clean"
    for name in ("out/mine.py", "mine.py", "notes/mine.md", ".venv/lib/mine.py", "experiments/claims/mine/rows.jsonl"):
        assert tree_with(tmp_path / name) == "clean", name
    for name in ("experiments/claims/mine/claim.py", "models/mine.py", "configs/mine.py", "reducers/a/b/c.py"):
        assert tree_with(tmp_path / name) == "dirty", name
    (tmp_path / "environment.py").write_text("2")
    assert environment.describe()["tree"] == "dirty"


def test_another_config_is_refused(begun):
    line = _refused(begun, {**CONFIG, "reducer": {"name": "sum"}, "seed": 1})
    assert line == (
        f"workdir={str(begun)!r}: holds a run with another config: reducer.name='mean' in the folder, 'sum' now; "
        "seed=0 in the folder, 1 now; use another --workdir, or --fresh"
    )


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": (1, 2)}, {"a": [1, 2]}, []),
        ({"a": 1}, {}, ["a=1 in the folder, absent now"]),
        ({}, {"a": {"b": None}}, ["a.b=absent in the folder, None now"]),
        ({"a": True}, {"a": 1}, ["a=True in the folder, 1 now"]),
        ({"a": {}}, {"a": {"b": 1}}, ["a={} in the folder, absent now", "a.b=absent in the folder, 1 now"]),
        ({"data": {"dir": "x"}}, {"data": {"dir": "y"}}, []),
        ({"data": {"dir": "x"}}, {"data": {}}, ["data=absent in the folder, {} now"]),
        (  # a name speaks for its own block only
            {"r": {"name": "x", "k": 1}, "rs": 1},
            {"r": {"name": "y", "j": 1}, "rs": 2},
            ["r.name='x' in the folder, 'y' now", "rs=1 in the folder, 2 now"],
        ),
    ],
)
def test_differences(there, here, expected):
    assert differences(there, here) == expected


def test_many_differences_are_counted(tmp_path):
    open_run(str(tmp_path), {f"k{n}": n for n in range(8)}).close()
    line = _refused(tmp_path, {f"k{n}": -1 for n in range(8)})
    assert "k4=4 in the folder, -1 now and 3 more;" in line and "k5" not in line


def test_other_examples_are_refused(begun):
    for _ in range(2):
        open_run(str(begun), CONFIG, inputs=Inputs({}, "0a1b")).close()
    open_run(str(begun), CONFIG, inputs=Inputs({}, "4e5f")).close()  # no step was taken with the others
    open_run(str(begun), CONFIG, inputs=Inputs({}, "0a1b")).close()
    (begun / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    line = _refused(begun, inputs=Inputs({}, "2c3d"))
    assert "fingerprint 2c3d, and had 0a1b when" in line
    assert line.endswith("use another --workdir, or --fresh")


def test_settings_that_change_numbers_are_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    open_run(str(tmp_path), CONFIG).close()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with jax.threefry_partitionable(False), open_run(str(tmp_path), CONFIG) as folder:
        assert folder.changes == (
            "XLA_FLAGS was '--xla_cpu_enable_fast_math=false', is '--xla_cpu_enable_fast_math=true'",
            "jax_threefry_partitionable was True, is False",
        )


@pytest.mark.parametrize(("key", "value"), [("packages", [1]), ("settings", "x")])
def test_damaged_environments_are_refused(key, value, begun):
    env = json.loads((begun / "env.json").read_text())
    env["starts"][-1][key] = value
    (begun / "env.json").write_text(json.dumps(env))
    assert f"env.json is damaged ({key}={value!r})" in _refused(begun)
    assert not holder(begun)


def test_records_damaged_in_the_middle_are_refused(begun):
    (begun / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n\0\0\n{"kind": "train", "step": 3}\n')
    with refused(ValueError, "metrics.jsonl': line 2 is damaged"):
        open_run(str(begun), CONFIG)


def test_fresh_takes_the_first_free_subfolder(begun):
    (begun / "fresh-2").mkdir()
    before = contents(begun)
    for expected in ("fresh-1", "fresh-3"):
        with open_run(str(begun), {"seed": 7}, start="fresh") as folder:
            assert folder.path == begun / expected and folder.state == "new"
    after = contents(begun)
    assert {name: after[name] for name in before} == before
    with open_run(str(begun / "fresh-3"), {"seed": 7}) as folder:
        assert folder.state == "resumed"


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints"])
def test_run_without_config_is_refused(tmp_path, name):
    (tmp_path / name).mkdir() if name == "checkpoints" else (tmp_path / name).touch()
    assert f"holds {name} of a run but no config.json" in _refused(tmp_path)


@pytest.mark.parametrize("start", ["resume", "fresh"])
def test_folder_that_cannot_be(tmp_path, start):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = contents(tmp_path)
    for workdir, reason in [
        (str(tmp_path / "file"), "is not a folder"),
        (str(tmp_path / "file" / "x" / "y"), "is not a folder"),
        (str(tmp_path / "dangling"), "is not a folder"),
        ("/proc/x/y", "'/proc"),  # /proc lets nobody make a folder, root included
        ("/proc", "'/proc"),
        (str(tmp_path / ("n" * 300)), "File name too long"),
        ("nul\0", "NUL"),
        ("", "must name a folder"),
    ]:
        with refused(ValueError, f"^workdir=.*{reason}"):
            open_run(workdir, CONFIG, start=start)
    assert contents(tmp_path) == before


def test_second_run_is_refused_until_the_first_lets_go(tmp_path):
    with open_run(str(tmp_path), CONFIG) as first:
        assert f"in use by another run (process {os.getpid()})" in _refused(tmp_path)
        open_run(str(tmp_path), CONFIG, start="fresh").close()
        first.close()  # and __exit__ closes once more, harmlessly
        open_run(str(tmp_path), CONFIG).close()


def test_a_look_at_the_lock_is_no_run(begun, monkeypatch):
    """Experiments ask whether a run has its folder just when another process asks, or when the run begins."""
    looking = os.open(begun / "lock", os.O_RDWR)
    flock = fcntl.flock

    def looks(lock, kind):
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(lock, kind)
        found.append(holder(begun))

    found = []
    monkeypatch.setattr(fcntl, "flock", looks)
    assert holder(begun) == "" and found == [""]
    flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: flock(looking, fcntl.LOCK_UN))
    with open_run(str(begun), CONFIG):
        assert holder(begun)
    os.close(looking)


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_what_a_lock_leads_to_is_not_written(make, tmp_path):
    target = tmp_path / "theirs"
    target.write_text("precious\n")
    (tmp_path / "run").mkdir()
    make(target, tmp_path / "run" / "lock")
    assert "lock" in _refused(tmp_path / "run")
    assert target.read_text() == "precious\n"
    target.unlink()
    if make is os.symlink:  # which now leads nowhere
        assert "/lock'" in _refused(tmp_path / "run") and not target.exists()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_folder_without_flock_is_refused(number, tmp_path, monkeypatch):
    """As on some mounts of Lustre; two runs could write into it at once."""

    def no_flock(lock, kind):
        raise OSError(number, os.strerror(number))

    open_run(str(tmp_path), CONFIG).close()
    monkeypatch.setattr(fcntl, "flock", no_flock)
    assert "its file system has no flock" in _refused(tmp_path) and not holder(tmp_path)


def test_config_written_between_look_and_lock_is_seen(tmp_path, monkeypatch):
    """Two runs start at once in a new folder; the slower one looks again once it has the lock."""
    take = lock.take

    def take_late(workdir, path):
        monkeypatch.setattr(lock, "take", take)
        open_run(workdir, {"seed": 1}).close()
        return take(workdir, path)

    monkeypatch.setattr(lock, "take", take_late)
    with refused(ValueError, "seed=1 in the folder, 0 now"):
        open_run(str(tmp_path / "w"), {"seed": 0})
    open_run(str(tmp_path / "w"), {"seed": 1}).close()  # the refused one let go of the lock


def test_runs_that_begin_together_below_a_missing_folder(tmp_path, monkeypatch):
    """Others begin whenever the first one makes a folder."""
    mkdir, others = os.mkdir, iter("bcd")

    def make_late(path, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", mkdir)
            if other := next(others, None):
                open_run(str(tmp_path / "out" / other), CONFIG).close()
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", make_late)
    open_run(str(tmp_path / "out" / "a"), CONFIG).close()
    assert {"a", "b"} <= {path.name for path in (tmp_path / "out").iterdir()} <= {*"abcd"}


def test_a_finished_run_keeps_its_summary_even_of_a_diverged_one(tmp_path):
    with open_run(str(tmp_path), {"seed": 0}) as folder:
        assert folder.summary is None
        folder.finish({"accuracy": 0.1, "loss": float("nan"), "stopped_by": None})
    with open_run(str(tmp_path), {"seed": 0}) as folder:
        summary = folder.summary
    assert summary["accuracy"] == 0.1 and math.isnan(summary["loss"]) and summary["stopped_by"] is None
    (tmp_path / "DONE").write_text("{")
    with pytest.raises(ValueError, match="DONE is damaged"):
        open_run(str(tmp_path), {"seed": 0})


PLACES = {  # what has the name of a file or folder of a run -> names
    Path.touch: ("checkpoints", "tensorboard"),
    os.mkfifo: ("config.json", "env.json", "metrics.jsonl", "DONE"),  # reading it would wait
    Path.mkdir: ("lock", "config.json"),
}


@pytest.mark.parametrize(("make", "name"), [(make, name) for make, names in PLACES.items() for name in names])
def test_files_and_folders_in_each_others_place(make, name, begun):
    (begun / name).unlink(missing_ok=True)
    make(begun / name)
    assert name in _refused(begun)
