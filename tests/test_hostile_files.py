"""Files from elsewhere: whatever they hold is refused in one line or taken for damaged, and nothing in them is run."""

import io
import itertools
import json
import os
import pathlib
import pickle
import re
import struct
import sys
import zipfile

import numpy as np
import pytest

import asynchronous
import runs
import train
from data import cache
from data.texts import corpora
from experiments import __main__ as experiments
from experiments import plot
from experiments.execution import listing, results
from experiments.plots import labels
from experiments.study.run import Run
from planning import balance, parsing
from planning import sources as planned_from
from reducers.arrivals import foreign_files
from reducers.arrivals.traces import read_trace, replays_arrivals
from reducers.registry import components
from runs import identity, saved_runs
from runs.checkpoints import Checkpoints
from runs.errors import ConfigError
from runs.folder import open_run
from runs.reporting import done
from tests.in_process import DIGITS, keys
from tests.refused import line_of, refused
from tests.saved import contents, evaluated, save
from tests.started import in_namespace
from tests.test_architecture import SOURCES, package_of
from tests.test_train import command

SHORT = keys("train_steps=2 log_every_steps=1 eval_every_steps=2")


def digits(workdir, *more: str) -> tuple[str, ...]:
    config = f"--config={DIGITS}"
    return (config, *SHORT, "--config.checkpoint_every_steps=2", f"--workdir={workdir}", *more)


# ---- nothing that could run what it reads ------------------------------------------------------------------------

EXECUTES = re.compile(
    r"^\s*(import|from) (pickle|dill|cloudpickle|joblib|marshal|shelve)\b"
    r"|allow_pickle\s*=\s*True|(?<![\w.])(eval|exec)\(|yaml\.(unsafe_|full_)?load\b|np\.load\((?!.*allow_pickle=False)",
    re.MULTILINE,
)


def where(pattern: re.Pattern[str], *, but: set[str]) -> list[str]:
    """Returns where a pattern is in the sources; ``but`` are rooms and files in which it may be."""
    return [
        f"{path}: {found[0].strip()}"
        for path, text in SOURCES.items()
        if not but & {path, package_of(path)}
        for found in pattern.finditer(text)
    ]


def test_no_source_unpickles_or_evaluates():
    """Configs are Python and are run, as docs/configs.md says; by ``exec_module``, of the file that was named."""
    assert where(EXECUTES, but={"tests"}) == []
    for line in ("import pickle", "x = eval(y)", "np.load(p, allow_pickle=True)", "np.load(p)", "yaml.load(f)"):
        assert EXECUTES.search(line), line
    assert not EXECUTES.search("jax.eval_shape(f)\nmodel.eval()\nnp.load(p, allow_pickle=False)")


# ---- one place that opens what somebody else may have put there --------------------------------------------------

READS = re.compile(r"\.read_(bytes|text)\(|np\.load\(|(?<![\w.])open\([^)\n]*[\"']r?b?\+?[\"']|\.open\(.?[\"']r?b[\"']")
OWN = {  # the one place; sources of this repository and of a config, files of the system, and a map of a checked file
    "reducers/arrivals/foreign_files.py",
    "runs/environment.py",
    "runs/lock.py",
    "data/cache.py",
    "data/texts/corpora.py",
    "launch/compilers.py",
    "experiments/commands.py",
    "experiments/study/report.py",
    "experiments/study/prose.py",
    "experiments/claims/adasum_cost/claim.py",
    "conftest.py",
}


def test_files_are_opened_in_one_place():
    assert where(READS, but={"tests", "benchmarks", "docs"} | OWN) == []
    for line in ("path.read_bytes()", "open(path, 'rb')", 'open(path, "r")', "np.load(path)", "path.open('rb')"):
        assert READS.search(line), line


def follow(path):
    runs.Folder(path=path.parent, state="new", changes=(), lock=None, resolved={}, process=1).follow()


OPENED = {  # file -> its readers, or those who append to it
    "output.log": foreign_files.opened_to_append,
    "mine.py": lambda path: runs.changed_files({"mine": {"path": str(path), "sha256": "0"}}) == [str(path)],
    "process-1.log": follow,
    "a.txt": lambda path: corpora.open_corpus(str(path)),
}
READ_WHOLE = {
    "20/manifest.json": lambda path: Checkpoints(path.parents[1], access="read").names(20),
    "manifest.json": lambda path: cache.stored(path.parent),
    "worker_seconds-1.npz": runs.read_times,
    "events.npz": lambda path: asynchronous.read_order(str(path)),
    "times.npz": lambda path: replays_arrivals(name="trace", path=str(path)),
    "times.csv": read_trace,
    "labels.csv": lambda path: labels.read(path.parent),
    "records.jsonl": runs.read,
    "table.csv": lambda path: parsing.read_csv(str(path), {}, refused="table"),
    "rows.jsonl": lambda path: planned_from.read([str(path)]),
    "config.json": lambda path: train.config_flags.load(str(path)),
}
KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terabyte": lambda path: (path.touch(), os.truncate(path, 2**40)),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "kind"),
    [*itertools.product(READ_WHOLE, KINDS), *itertools.product(OPENED, ["pipe", "device"])],
)
def test_nobody_waits_for_what_is_no_file_nor_fills_the_memory(name, kind, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    KINDS[kind](path)
    try:
        assert (READ_WHOLE | OPENED)[name](path) in ({}, None, True)  # what is damaged is not there
    except (ValueError, OSError) as error:
        assert str(error) and "\n" not in str(error)


# ---- traces ------------------------------------------------------------------------------------------------------


def npy(array) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def npy_of(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def npz(member: bytes, *, claimed: int | None = None) -> bytes:
    """Returns an archive; ``claimed`` is the number of bytes that it says its member has."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("seconds.npy", member)
        archive.filelist[0].file_size = claimed or len(member)
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
    "empty.npz": npz(npy(np.ones((0, 8)))),
    "cut.npz": npz(npy(GOOD))[:-30],
    "short.npz": npz(npy(GOOD)[:-10]),
    "inflated.npz": npz(npy(GOOD), claimed=2**31),
    "nul.csv": b"1,\0,2\n",
    "utf16.csv": "1,2".encode("utf-16"),
    "latin.csv": b"1,\xff\n",
    "long.csv": b"9" * 100_000 + b"x\n",
}


@pytest.mark.parametrize("name", TRACES)
def test_hostile_traces(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(TRACES[name])
    with refused(ValueError, re.escape(f"path={str(path)!r}")):
        read_trace(path)
    late = ("--config.arrivals.name=trace", f"--config.arrivals.path={path}", "--dry_run")
    assert command(*digits(tmp_path / "run", *late)) == 2
    said = line_of(capsys)
    assert said.startswith("config.arrivals.path=") and len(said) <= 401


# ---- the other files of a run ------------------------------------------------------------------------------------

NO_JSON = {
    "nothing": b"",
    "cut": b'{"a": ',
    "list": b"[]",
    "deep lists": b"[" * 100_000,
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "nan": b'{"seed": NaN}',
    "overflow": b'{"seed": [{"a": -1.5E+400}]}',
    "nul": b'{"seed": 1}\0',
    "utf-8": b'{"a": "\xff"}',
    "utf-16": b"\xff\xfe{\x00",
    "pickle": pickle.dumps({"seed": 1}),
}


@pytest.mark.parametrize("name", ["config.json", "env.json"])
@pytest.mark.parametrize("content", NO_JSON)
def test_hostile_files_of_a_run(name, content, tmp_path):
    open_run(str(tmp_path), {"seed": 0}).close()
    (tmp_path / name).write_bytes(NO_JSON[content])
    before = contents(tmp_path)
    with refused(ValueError, f"{name} is damaged"):
        open_run(str(tmp_path), {"seed": 0})
    assert contents(tmp_path) == before


def finished(folder):
    """Writes the folder of a run of a sweep, as it is when it is finished."""
    run = Run(labels={"seed": 0}, spec="configs/digits.py:smoke")
    records = [evaluated(step, loss=1.0, accuracy=0.909) for step in (1, 2, 3)]
    laps = [{"kind": "train", "step": step, "steps_per_second": 2.0} for step in (1, 2, 3)]
    path = save(results.folder_of(run, folder), run.config, [*records, *laps], state="begun")
    (path / "labels.csv").write_text("worker,label,examples\n0,0,9\n")
    (path / "DONE").write_bytes(done.content(path, {"step": 3, "wall_seconds": 1.5}))
    return run, path


def test_a_finished_run_is_read_by_everybody(tmp_path):
    run, path = finished(tmp_path)
    assert "finished" in listing.of_folder(tmp_path) and "damaged" not in listing.of_folder(tmp_path)
    assert plot.find([str(path)])[1] == [] and len(planned_from.read([str(tmp_path)])) == 1
    assert results.row_of(run, path)["accuracy"] == [0.909] * 3
    open_run(str(path), run.config).close()


DAMAGES = {  # of the content of a file
    "a bit of a number": ("metrics.jsonl", lambda text: text.replace("0.909", "0.989", 1)),
    "the last lines": ("metrics.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:3])),
    "the config": ("config.json", lambda text: text.replace('"seed": 0', '"seed": 8')),
    "the labels": ("labels.csv", lambda text: text.replace("9", "8")),
    "the summary": ("DONE", lambda text: text.replace("1.5", "1.4")),
    "a hash": ("DONE", lambda text: re.sub(r'(json": ".*)[0-8]', r"\g<1>9", text, count=1)),
    "the mark of the hashes": ("DONE", lambda text: text.replace('"sha256"', '"sha257"')),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_a_finished_run_is_seen_by_everybody(damage, tmp_path):
    run, path = finished(tmp_path)
    name, change = DAMAGES[damage]
    before = (path / name).read_text()
    (path / name).write_text(change(before))
    assert (path / name).read_text() != before
    table = listing.of_folder(tmp_path).splitlines()
    assert table[1].endswith("damaged") and name in table[2]
    for read in (
        lambda: saved_runs.read(str(path)),
        lambda: plot.find([str(tmp_path)]),
        lambda: planned_from.read([str(tmp_path)]),
        lambda: results.finished([run], root=tmp_path),
        lambda: open_run(str(path), run.config | {"train_steps": 99}),
    ):
        with refused(ValueError, name):
            read()


def test_a_byte_order_mark_is_no_damage(tmp_path):
    open_run(str(tmp_path), {"seed": 0}).close()
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    identity.check_same(tmp_path, {"seed": 0})


@pytest.mark.parametrize("content", [*NO_JSON.values(), b"{}", b'{"step": "x"}', b'{"loss": [1], "step": {}}'])
def test_hostile_mark_of_the_end(content, tmp_path, capsys):
    config = train.config_flags.load(DIGITS, [*SHORT, "--config.checkpoint_every_steps=2"])
    open_run(str(tmp_path), config.to_dict()).close()
    (tmp_path / "DONE").write_bytes(content)
    capsys.readouterr()
    assert command(*digits(tmp_path)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "DONE is damaged" in said.err.splitlines()[-1]
    assert "Traceback" not in said.err


@pytest.mark.parametrize("content", [c for c in NO_JSON.values() if c and b"\n" not in c])
def test_hostile_records_and_rows(content, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1}\n' + content + b'\n{"kind": "train", "step": 3}\n')
    with refused(ValueError, "line 2 is damaged"):
        runs.read(path)
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


# ---- a config.json that names code -----------------------------------------------------------------------------

EVIL = {  # block -> what a file from elsewhere has there
    "model": {"name": "subprocess:getoutput", "cmd": "touch ran"},
    "data": {"name": "os:system", "command": "touch ran"},
    "task": {"name": "beside:run"},
    "optimizer": {
        "name": "configs.config_file:execute",
        "path": "beside.py",
        "learning_rate": 1.0,
    },
    "reducer": {"name": "stale", "delay_steps": 1, "combine": {"name": "beside:run"}},
    "arrivals": {"name": "slowed", "base": "beside:run"},
    "schedule": {"name": "runpy:run_path", "path_name": "beside.py"},
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The working folder, which has a module that leaves a file where it is imported, and a folder for a config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside.py").write_text("open('ran', 'w').close()\ndef run(): pass\ndef get_config(variant): pass\n")
    (tmp_path / "run").mkdir()
    config = train.config_flags.load(f"{DIGITS}:smoke").to_dict()
    yield lambda **blocks: (tmp_path / "run" / "config.json").write_text(json.dumps(config | blocks))
    sys.modules.pop("beside", None)


@pytest.mark.parametrize("block", EVIL)
def test_a_config_from_elsewhere_runs_nothing(block, elsewhere, capsys):
    elsewhere(**{block: EVIL[block]})
    config = "--config=run/config.json"
    name = next(iter(components.names_in(EVIL[block])))
    module = name.partition(":")[0]
    for entrance in (
        lambda: command(config, "--dry_run"),
        lambda: command(config, "--helpconfig"),
        lambda: command(config, "--config.reducer.name=sum", "--workdir=new"),
        lambda: experiments.main(["sweep", config, "--grid=seed=1,2", "--out=new"]),
        lambda: balance.main([config, "--flop_per_second=1", "--bytes_per_second=1"]),
        *([lambda: experiments.main(["export", "run"])] if block in ("model", "data", "task") else []),
    ):
        assert entrance() == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and f"--trust_module={module}" in said.err, said
        assert repr(name) in said.err
    assert not pathlib.Path("ran").exists() and "beside" not in sys.modules
    with pytest.raises(ConfigError, match="--trust_module"):  # what it begins with is another module
        train.config_flags.load("run/config.json", trusted=[module[:-1], f"{module}.a"])


def test_a_config_from_elsewhere_may_name_what_flags_name_and_what_is_ours(elsewhere):
    elsewhere(model={"name": "models.dense:MLP", "hidden_sizes": [3]})
    name = train.config_flags.load("run/config.json").model.name
    elsewhere(task={"name": "beside:run"})
    train.config_flags.load("run/config.json", ["--config.task.name=beside:run"])
    assert name == "models.dense:MLP" and pathlib.Path("ran").exists()


# ---- paths -------------------------------------------------------------------------------------------------------


NAMES = ["with spaces ' \"", "link", "ключ-🙂", "-dash", "n" * 200, "a=b,c;$(x)", "slash/"]


@pytest.mark.parametrize("name", NAMES)
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


def test_a_folder_under_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command(*digits("~/run")) == 0 and (tmp_path / "run" / "DONE").exists()
    assert command(*digits("~/run", "--evaluate_only")) == 0
    assert command(*digits("~/other", "--config.init_from=~/run")) == 0
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("more", [("--evaluate_only",), ("--config.init_from={long}",), ("--config.init_from={file}",)])
@pytest.mark.parametrize("workdir", ["{long}", "{file}", "{file}/x", "/proc/x"])
def test_folders_that_cannot_be(more, workdir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    places = {"file": tmp_path / "file", "long": tmp_path / ("n" * 300)}
    assert command(*digits(workdir.format(**places), *(m.format(**places) for m in more))) == 2
    assert len(line_of(capsys)) <= 401


@pytest.mark.parametrize(
    ("key", "flags"),
    [
        ("workdir", ("--workdir={}",)),
        ("workdir", ("--workdir={}", "--evaluate_only")),
        ("config.init_from", ("--config.init_from={}",)),
        ("compilation_cache", ("--compilation_cache={}",)),
    ],
)
@pytest.mark.parametrize(
    ("folder", "message"), [(b"\xff", "must be UTF-8; .*PYTHONUTF8=1"), (b"~nobody-of-this-name/x", "home")]
)
def test_a_folder_that_libraries_could_not_name(key, flags, folder, message, tmp_path, monkeypatch, capsys):
    """Not UTF-8, as every other letter under an ASCII locale; or in a home that does not exist."""
    monkeypatch.chdir(tmp_path)
    assert command(*digits("run", *(flag.format(os.fsdecode(folder)) for flag in flags))) == 2
    assert re.match(f"{key}='.*{message}", line_of(capsys))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_may_not_be_written(tmp_path):
    """Mounted read-only, since permissions say nothing to root."""
    (tmp_path / "run").mkdir()
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77; shift; exec "$@"'
    done = in_namespace(mount, tmp_path / "run", sys.executable, "train.py", *digits(tmp_path / "run"))
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert "Read-only file system" in done.stderr and not list((tmp_path / "run").iterdir())
