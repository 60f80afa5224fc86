"""Files from elsewhere: whatever they hold is refused in one line or taken for damaged, and nothing in them is run."""

import hashlib
import io
import json
import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import runs
import train
from experiments.execution import results
from reducers.arrivals.traces import read_trace
from runs import identity, saved_runs
from runs.checkpoints import Checkpoints
from runs.folder import check_workdir, open_run
from tests import ROOT
from tests.test_architecture import SOURCES, package_of
from tests.test_train import command

SHORT = ("--config.train_steps=2", "--config.log_every_steps=1", "--config.eval_every_steps=2")


def digits(workdir, *more: str) -> tuple[str, ...]:
    config = f"--config={ROOT}/configs/digits.py"
    return (config, *SHORT, "--config.checkpoint_every_steps=2", f"--workdir={workdir}", *more)


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return (pathlib.Path.touch, (self._path,))


# ---- nothing that could run what it reads ------------------------------------------------------------------------

EXECUTES = re.compile(
    r"^\s*(import|from) (pickle|dill|cloudpickle|joblib|marshal|shelve)\b"
    r"|allow_pickle\s*=\s*True|(?<![\w.])(eval|exec)\(|yaml\.(unsafe_|full_)?load\b|np\.load\((?!.*allow_pickle=False)",
    re.MULTILINE,
)


def executing(sources: dict[str, str]) -> list[str]:
    """Configs are Python and are run, as docs/configs.md says; by ``exec_module``, of the file that was named."""
    return [
        f"{path}: {found[0].strip()}"
        for path, text in sources.items()
        if package_of(path) != "tests"
        for found in EXECUTES.finditer(text)
    ]


def test_no_source_unpickles_or_evaluates():
    assert executing(SOURCES) == []
    for line in ("import pickle", "x = eval(y)", "np.load(p, allow_pickle=True)", "np.load(p)", "yaml.load(f)"):
        assert executing({"runs/one.py": line}), line
    assert not executing({"runs/one.py": "jax.eval_shape(f)\nmodel.eval()\nnp.load(p, allow_pickle=False)"})


# ---- traces ------------------------------------------------------------------------------------------------------


def npy(array, *, allow_pickle=False) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=allow_pickle)
    return content.getvalue()


def npy_of(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def npz(member: bytes, *, name: str = "seconds.npy") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, member)
    return content.getvalue()


GOOD = np.ones((3, 8), np.float32)


def shaped(shape: str, descr: str = "'<f4'") -> bytes:
    return npz(npy_of(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"))


TRACES = {
    "terabytes.npz": shaped("(1000000, 1000000)"),
    "negative.npz": shaped("(-1, 8)"),
    "overflow.npz": shaped("(9223372036854775807, 9223372036854775807)"),
    "digits.npz": shaped(f"({'9' * 5000}, 8)"),
    "deep.npz": npz(npy_of("(" * 5000)),
    "header.npz": npz(npy_of("{" + " " * 100_000 + "}")),
    "structured.npz": npz(npy(np.ones(3, [("a", "f4"), ("b", "f4")]))),
    "complex.npz": npz(npy(GOOD.astype(complex))),
    "text.npz": npz(npy(np.array([["a"]]))),
    "bool.npz": npz(npy(GOOD > 0)),
    "empty.npz": npz(npy(np.ones((0, 8)))),
    "flat.npz": npz(npy(np.ones(8))),
    "cube.npz": npz(npy(np.ones((2, 2, 2)))),
    "nan.npz": npz(npy(GOOD * np.nan)),
    "inf.npz": npz(npy(GOOD * np.inf)),
    "minus.npz": npz(npy(-GOOD)),
    "zero.npz": npz(npy(GOOD * 0)),
    "beyond.npz": npz(npy(np.full((3, 8), 1e300))),
    "cut.npz": npz(npy(GOOD))[:-30],
    "short.npz": npz(npy(GOOD)[:-10]),
    "other.npz": npz(npy(GOOD), name="others.npy"),
    "outside.npz": npz(npy(GOOD), name="../seconds.npy"),
    "nothing.npz": b"",
    "noise.npz": bytes(range(256)) * 10,
    "array.npz": npy(GOOD),
    "pickle.npz": pickle.dumps([1.0]),
    "nothing.csv": b"",
    "comment.csv": b"# seconds\n",
    "nul.csv": b"1,\0,2\n",
    "utf16.csv": "1,2".encode("utf-16"),
    "latin.csv": b"1,\xff\n",
    "words.csv": b"a,b\n",
    "ragged.csv": b"1,2\n3\n",
    "nan.csv": b"1,nan\n",
    "inf.csv": b"1,1e999\n",
    "minus.csv": b"1,-2\n",
    "long.csv": b"9" * 100_000 + b"x\n",
    "code.csv": b"__import__('os').getpid()\n",
}


@pytest.mark.parametrize("name", TRACES)
def test_hostile_traces(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(TRACES[name])
    with pytest.raises(ValueError, match=re.escape(f"path={str(path)!r}")) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
    late = ("--config.arrivals.name=trace", f"--config.arrivals.path={path}", "--dry_run")
    assert command(*digits(tmp_path / "run", *late)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("config.arrivals.path=") and len(said) <= 401


def test_a_trace_is_not_unpickled(tmp_path):
    bombs = np.empty((1, 1), object)
    bombs[0, 0] = Bomb(tmp_path / "ran")
    (tmp_path / "a.npz").write_bytes(npz(npy(bombs, allow_pickle=True)))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_trace(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists(), "it would have"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
def test_a_trace_that_is_no_file(kind, tmp_path):
    path = tmp_path / "a.csv"
    {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path),
    }[kind]()
    with pytest.raises(ValueError, match="path=") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


# ---- checkpoints -------------------------------------------------------------------------------------------------

MANIFEST = "manifest.json"
STATE = {"x": np.arange(6.0, dtype=np.float32), "y": {"z": np.ones((2, 2), np.int32)}}


@pytest.fixture
def saved(tmp_path):
    """Checkpoints of steps 10 and 20."""
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, STATE, metrics={"accuracy": 0.5})
    return tmp_path / "checkpoints"


def forge(folder: pathlib.Path, change) -> None:
    """Changes a manifest and makes its hash right again, as anybody can."""
    body = json.loads((folder / MANIFEST).read_text())
    body.pop("sha256")
    body = change(body) or body
    claimed = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({**body, "sha256": claimed}))


def test_a_forged_manifest_is_damage(saved):
    """One kind is enough: a folder of one's own is no threat."""
    forge(saved / "20", lambda body: body.pop("files") and None)
    lines = []
    with Checkpoints(saved, report=lines.append) as checkpoints:
        assert checkpoints.restore(STATE, which="best")[0] == checkpoints.restore(STATE)[0] == 10
    assert len(lines) == 1 and "checkpoint 20" in lines[0] and "is not a checkpoint manifest" in lines[0], lines


def test_a_forged_leaf_is_refused_before_it_is_read(saved):
    forge(saved / "20", lambda body: body["leaves"].update(x={"shape": [10**6, 10**6, 10], "dtype": "float32"}))
    with Checkpoints(saved, access="read") as checkpoints:
        assert checkpoints.restore(STATE["y"], part="y")[0] == 20
        with pytest.raises(ValueError, match=r"checkpoint 20 in .*does not fit the model") as caught:
            checkpoints.restore(STATE)
    assert "\n" not in str(caught.value)


NO_JSON = {
    "nothing": b"",
    "cut": b'{"a": ',
    "list": b"[]",
    "number": b"3",
    "null": b"null",
    "deep lists": b"[" * 100_000,
    "deep": b'{"a":' * 40 + b"1" + b"}" * 40,
    "deeper": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "integer": b'{"seed": ' + b"9" * 400 + b"}",
    "nan": b'{"seed": NaN}',
    "infinity": b'{"seed": -Infinity}',
    "overflow": b'{"seed": 1e999}',
    "overflow below": b'{"seed": [{"a": -1.5E+400}]}',
    "overflow of digits": b'{"seed": ' + b"9" * 400 + b".0}",
    "nul": b'{"seed": 1}\0',
    "utf-8": b'{"a": "\xff"}',
    "utf-16": b"\xff\xfe{\x00",
    "html": b"<html>",
    "pickle": pickle.dumps({"seed": 1}),
}


def test_a_manifest_that_is_not_json_is_damage(saved):
    (saved / "20" / MANIFEST).write_bytes(NO_JSON["cut"])
    lines = []
    with Checkpoints(saved, report=lines.append) as checkpoints:
        assert checkpoints.restore(STATE, which="best")[0] == checkpoints.restore(STATE)[0] == 10
    assert len(lines) == 1 and "manifest.json is not readable" in lines[0]


def test_names_that_are_no_steps(saved):
    for name in ("٣", "007", "1e3", "30.damaged", "9" * 40, "-1", " 5"):
        (saved / name).mkdir()
    (saved / "99").write_text("a file")
    lines = []
    with Checkpoints(saved, report=lines.append) as checkpoints:
        assert checkpoints.steps() == [10, 20, 99] and checkpoints.restore(STATE, which="best")[0] == 10
        assert checkpoints.restore(STATE)[0] == 20
    assert len(lines) == 1 and "checkpoint 99" in lines[0]


def test_scratch_that_is_a_file(saved):
    (saved / ".scratch").rmdir()
    (saved / ".scratch").write_text("")
    with pytest.raises(runs.SaveError, match="could not be saved"):
        Checkpoints(saved)


# ---- the other files of a run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "env.json"])
@pytest.mark.parametrize("content", NO_JSON)
def test_hostile_files_of_a_run(name, content, tmp_path):
    open_run(str(tmp_path), {"seed": 0}).close()
    (tmp_path / name).write_bytes(NO_JSON[content])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for entrance in (open_run, check_workdir):
        with pytest.raises(ValueError, match=f"{name} is damaged") as caught:
            entrance(str(tmp_path), {"seed": 0})
        assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_byte_order_mark_is_no_damage(tmp_path):
    open_run(str(tmp_path), {"seed": 0}).close()
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    identity.check_same(str(tmp_path), {"seed": 0})


@pytest.mark.parametrize("content", [*NO_JSON.values(), b"{}", b'{"step": "x"}', b'{"loss": [1], "step": {}}'])
def test_hostile_mark_of_the_end(content, tmp_path, capsys):
    config = train.config_flags.load(digits("")[0].removeprefix("--config="), digits("")[1:-1])
    open_run(str(tmp_path), config.to_dict()).close()
    (tmp_path / "DONE").write_bytes(content)
    capsys.readouterr()
    assert command(*digits(tmp_path)) == 2
    said = capsys.readouterr()
    assert said.out == "" and "DONE is damaged" in said.err.splitlines()[-1] and "Traceback" not in said.err


@pytest.mark.parametrize("content", [c for c in NO_JSON.values() if c and b"\n" not in c])
def test_hostile_records_and_rows(content, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1}\n' + content + b'\n{"kind": "train", "step": 3}\n')
    with pytest.raises(ValueError, match="line 2 is damaged") as caught:
        runs.read(path)
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="line 2"):
        saved_runs.read(str(tmp_path))
    path.write_bytes(b'{"kind": "train", "step": 1}\n')
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        saved_runs.read(str(tmp_path))
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"loss": 1.0}\n' + content + b"\n")
    with pytest.raises(ValueError, match="line 2 is "):
        results.read_rows(rows)


# ---- paths -------------------------------------------------------------------------------------------------------


NAMES = ["with spaces ' \"", "link", "ключ-🙂", "-dash", "n" * 200, "a=b,c;$(x)", "slash/"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:2] + [pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:]])
def test_folders_of_any_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if name == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "link").symlink_to("elsewhere")
    assert command(*digits(name)) == 0
    assert command(*digits(tmp_path / name, "--evaluate_only")) == 0
    assert command(*digits(name)) == 0
    assert "finished before" in capsys.readouterr().err
    assert (tmp_path / name / "DONE").exists() and (tmp_path / name / "checkpoints/2").exists()


@pytest.mark.slow
def test_a_config_of_any_name(tmp_path, capsys):
    path = tmp_path / "-my  ключ '🙂.py"
    path.write_text((ROOT / "configs/digits.py").read_text())
    assert command(f"--config={path}", *digits(tmp_path / "run")[1:], "--dry_run") == 0


@pytest.mark.slow
def test_a_folder_under_home(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command(*digits("~/run")) == 0 and (tmp_path / "run" / "DONE").exists()
    assert command(*digits("~/run", "--evaluate_only")) == 0
    assert command(*digits("~/other", "--config.init_from=~/run")) == 0
    assert not (tmp_path / "~").exists()
    capsys.readouterr()
    for more in ((), ("--evaluate_only",), ("--config.init_from=x",)):
        assert command(*digits("~nobody-of-this-name/run", *more)) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "workdir='~nobody-of-this-name/run'" in said


@pytest.mark.parametrize("more", [("--evaluate_only",), ("--config.init_from={long}",), ("--config.init_from={file}",)])
@pytest.mark.parametrize("workdir", ["{long}", "{file}", "{file}/x", "/proc/x"])
def test_folders_that_cannot_be(more, workdir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    places = {"file": tmp_path / "file", "long": tmp_path / ("n" * 300)}
    assert command(*digits(workdir.format(**places), *(m.format(**places) for m in more))) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and len(said) <= 401


FLAGS_WITH_A_FOLDER = [
    ("workdir", ("--workdir={}",)),
    ("workdir", ("--workdir={}", "--evaluate_only")),
    ("config.init_from", ("--config.init_from={}",)),
    ("compilation_cache", ("--compilation_cache={}",)),
]


@pytest.mark.parametrize(("key", "flags"), FLAGS_WITH_A_FOLDER)
@pytest.mark.parametrize(
    ("folder", "message"), [(b"\xff", "must be UTF-8; .*PYTHONUTF8=1"), (b"~nobody-of-this-name/x", "home")]
)
def test_a_folder_that_libraries_could_not_name(key, flags, folder, message, tmp_path, monkeypatch, capsys):
    """Not UTF-8, as every other letter under an ASCII locale; or in a home that does not exist."""
    monkeypatch.chdir(tmp_path)
    assert command(*digits("run", *(flag.format(os.fsdecode(folder)) for flag in flags))) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.match(f"{key}='.*{message}", said), said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_folder_that_may_not_be_written(tmp_path):
    """Mounted read-only, since permissions say nothing to root."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs leave to make a user namespace with a mount of its own")
    (tmp_path / "run").mkdir()
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77; shift; exec "$@"'
    program = [sys.executable, "train.py", *digits(tmp_path / "run")]
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", mount, "bash", str(tmp_path / "run"), *program],
        **{"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120},
    )
    if done.returncode == 77:
        pytest.skip("needs leave to mount")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert "Read-only file system" in done.stderr and not list((tmp_path / "run").iterdir())
