"""Checkpoints: bit for bit what was saved, or reported and passed over; the last few and the best stay."""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from reducers.arrivals import foreign_files
from runs import SaveError, files
from runs.checkpoints import Checkpoints
from runs.reporting import records
from tests.refused import refused
from tests.saved import contents, stale_handle
from tests.started import start
from tests.stepper import before_first_call

MANIFEST = "manifest.json"


class Pair(NamedTuple):
    first: jax.Array
    second: tuple


def _state(step):
    params = {"Dense_0": {"kernel": jnp.full((4, 3), step, jnp.float32), "bias": jnp.arange(3.0) + step}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3), optax.trace(0.9))
    return {
        "step": np.int32(step),
        "params": params,
        "optimizer": optimizer.init(params),
        "key": jax.random.key_data(jax.random.key(step)),
        "local": Pair(first=np.full((8, 2), step, jnp.bfloat16), second=(np.zeros((8, 0), np.float32), None)),
        "flag": np.bool_(True),
        "wide": np.array([step / 3, np.nan, -0.0, np.inf], np.float64),
        "half": np.float16(0.1),
    }


def _abstract():
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _state(0))


def _assert_bits(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@pytest.fixture
def opened():
    """Opens checkpoints and returns them with the lines that they report; closes them at the end of the test."""
    with contextlib.ExitStack() as stack:

        def open_one(directory, **options):
            lines = []
            return stack.enter_context(Checkpoints(directory, report=lines.append, **options)), lines

        yield open_one


@pytest.fixture
def saved(tmp_path):
    """Checkpoints of steps 10, 20, 30."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (10, 20, 30):
        checkpoints.save(step, _state(step), metrics={"accuracy": 1.0 / step})
    checkpoints.close()
    return tmp_path / "checkpoints"


def test_bits_come_back_in_the_callers_classes(saved, opened):
    checkpoints, lines = opened(saved)
    step, tree = checkpoints.restore(_abstract())
    assert step == 30 and lines == []
    _assert_bits(tree, _state(30))
    assert isinstance(tree["local"], Pair) and tree["local"].second[1] is None
    assert all(type(leaf) is np.ndarray and leaf.flags.writeable for leaf in jax.tree.leaves(tree))
    assert checkpoints.restore(_abstract(), which="best")[0] == 10
    assert checkpoints.restore(_abstract(), which=20)[0] == 20


def test_state_may_be_donated_or_overwritten_once_save_returns(tmp_path, opened):
    checkpoints, _ = opened(tmp_path)
    change = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    state = {"on_device": jnp.arange(1e6), "on_host": np.arange(1e6)}
    expected = jax.tree.map(np.array, state)
    checkpoints.save(1, state)
    state["on_host"][:] = -1
    for _ in range(6):
        state["on_device"] = change(state["on_device"])
    _, tree = checkpoints.restore(expected)
    _assert_bits(tree, expected)


class Metrics(dict):
    """Metrics that are read in the background, after Orbax has written its files and before the manifest is."""

    def __init__(self, while_read):
        super().__init__(accuracy=0.5)
        self.while_read = while_read

    def items(self):
        self.while_read()
        return super().items()


def full(*_):
    """Fails as on a disk without room."""
    raise OSError("No space left on device")


def test_save_does_not_wait_for_the_disk(tmp_path, opened):
    go_on = threading.Event()
    checkpoints, _ = opened(tmp_path)
    checkpoints.save(1, _state(1), metrics=Metrics(lambda: go_on.wait(60)))
    assert checkpoints.steps() == [], "save has returned, and the checkpoint is not in its place yet"
    go_on.set()
    checkpoints.wait()
    assert checkpoints.steps() == [1]


@pytest.mark.parametrize(
    ("accuracies", "options", "kept", "best"),
    [
        ([0.9, 0.1, 0.2, 0.3, 0.4], {}, [1, 3, 4, 5], 1),
        ([0.1, 0.2, 0.3, 0.4, 0.5], {}, [3, 4, 5], 5),
        ([0.9, 0.1, 0.2, 0.3, 0.4], {"best_mode": "min"}, [2, 3, 4, 5], 2),
        ([0.9, 0.9, 0.2, 0.3, 0.4], {"keep_last": 1}, [1, 5], 1),  # of equals the earlier
        ([None, 0.1, float("nan"), None, None], {"keep_last": 1}, [2, 5], 2),
        ([None, None, None, None, None], {"keep_last": 2}, [4, 5], None),
        ([0.9, 0.1, 0.2, 0.3, 0.4], {"best_metric": "loss"}, [3, 4, 5], None),
    ],
)
def test_last_and_best_stay(tmp_path, accuracies, options, kept, best, opened):
    checkpoints, _ = opened(tmp_path, **options)
    for step, accuracy in enumerate(accuracies, start=1):
        checkpoints.save(step, {"x": np.ones(2)}, metrics=None if accuracy is None else {"accuracy": accuracy})
    checkpoints.close()
    assert checkpoints.steps() == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == [".scratch", *map(str, kept)]
    assert list((tmp_path / ".scratch").iterdir()) == []
    reopened, _ = opened(tmp_path, **options)  # what was best is known after a restart
    assert reopened.steps() == kept
    found = reopened.restore({"x": np.ones(2)}, which="best")
    assert best is None if found is None else found[0] == best


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ((shutil, "rmtree"), [10, 40]),
        ((os, "rename"), [10, 20, 30, 40]),
        ((foreign_files, "content"), [10, 20, 30, 40]),
    ],
)
def test_a_checkpoint_is_saved_even_if_older_ones_cannot_be_removed(where, kept, saved, opened, monkeypatch):
    checkpoints, _ = opened(saved, keep_last=1)
    works = getattr(*where)

    def busy(path, *arguments, ignore_errors=False):
        if "/40" in str(path):
            return works(path, *arguments)
        return None if ignore_errors else stale_handle(path)

    with monkeypatch.context() as patch:
        patch.setattr(*where, busy)
        checkpoints.save(40, _state(40))
        checkpoints.wait()
        assert checkpoints.steps() == kept
        if where[0] is shutil:
            assert opened(saved)[0].steps() == kept, "another start, which cannot empty the scratch folder"
    checkpoints.save(50, _state(50))
    checkpoints.wait()
    assert checkpoints.steps() == [10, 50] and checkpoints.restore(_abstract(), which="best")[0] == 10


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _largest(folder):
    return max((p for p in folder.glob("ocdbt.process_0/d/*")), key=lambda p: p.stat().st_size)


DAMAGES = {
    "flipped bit": (_flip, "was changed|not readable"),
    "emptied": (lambda path: path.write_bytes(b""), "bytes instead of|not readable"),
    "removed": (lambda path: path.unlink(), "missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_file_is_noticed(saved, damage):
    harm, reason = DAMAGES[damage]
    names = [name for name, content in contents(saved / "30").items() if content is not None]
    assert len(names) >= 6 and any(name.startswith("ocdbt.process_0/d/") for name in names)
    whole = saved.parent / "whole"
    shutil.copytree(saved / "30", whole)
    for name in names:
        harm(saved / "30" / name)
        with pytest.raises(ValueError, match=reason) as caught, Checkpoints(saved, access="read") as reader:
            reader.restore(_abstract(), which=30)
        assert name in str(caught.value)
        shutil.rmtree(saved / "30")
        shutil.copytree(whole, saved / "30")


def test_damaged_newest_is_reported_moved_aside_and_passed_over(saved, opened):
    victim = _largest(saved / "30")
    _flip(victim)
    damaged = contents(saved / "30")
    checkpoints, lines = opened(saved)
    step, tree = checkpoints.restore(_abstract())
    assert step == 20
    _assert_bits(tree, _state(20))
    (line,) = lines
    assert "checkpoint 30" in line and victim.name in line and "30.damaged" in line and "\n" not in line
    assert contents(saved / "30.damaged") == damaged, "never deleted"
    checkpoints.save(30, _state(30))  # the resumed run comes to that step again
    checkpoints.wait()
    assert checkpoints.restore(_abstract())[0] == 30 and len(lines) == 1
    _flip(saved / "30" / MANIFEST)
    assert checkpoints.restore(_abstract())[0] == 20
    assert (saved / "30.damaged").is_dir() and (saved / "30.damaged-2").is_dir()


def forge(folder, change):
    """Changes a manifest and makes its hash right again, as anybody can."""
    body = json.loads((folder / MANIFEST).read_text())
    del body["sha256"]
    change(body)
    (folder / MANIFEST).write_bytes(files.to_json(files.sealed(body)))


MANIFESTS = {  # what is wrong with a checkpoint's manifest -> what makes it so, given the checkpoint's folder
    "was changed": lambda folder: (folder / MANIFEST).write_text((folder / MANIFEST).read_text().replace("0.0", "0.9")),
    "is not a checkpoint manifest": lambda folder: forge(folder, lambda body: body.pop("files")),
    "is that of step 20": lambda folder: shutil.copy(folder.parent / "20" / MANIFEST, folder),
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_damaged_manifest_is_a_damaged_checkpoint(damage, saved, opened):
    MANIFESTS[damage](saved / "30")
    checkpoints, lines = opened(saved)
    assert checkpoints.restore(_abstract(), which="best")[0] == 10
    assert checkpoints.restore(_abstract())[0] == 20
    assert len(lines) == 1 and "checkpoint 30" in lines[0] and f"{MANIFEST} {damage}" in lines[0]


def test_names_that_are_no_steps(saved, opened):
    for name in ("٣", "007", "1e3", "40.damaged", "9" * 40, "-1", " 5"):
        (saved / name).mkdir()
    (saved / "99").write_text("a file")
    checkpoints, lines = opened(saved)
    assert checkpoints.steps() == [10, 20, 30, 99] and checkpoints.restore(_abstract())[0] == 30
    assert len(lines) == 1 and "checkpoint 99" in lines[0]


def test_scratch_that_is_a_file(saved):
    (saved / ".scratch").rmdir()
    (saved / ".scratch").write_text("")
    with pytest.raises(SaveError, match="could not be saved"):
        Checkpoints(saved)


@pytest.mark.parametrize(
    ("damaged", "which", "found"),
    [((30, 20, 10), "latest", None), ((10,), "best", 20), ((10, 20, 30), "best", None), ((30, 20), "latest", 10)],
)
def test_damaged_ones_give_way_to_the_next(damaged, which, found, saved, opened):
    for step in damaged:
        (saved / str(step) / "_METADATA").unlink()
    checkpoints, lines = opened(saved)
    step, _ = checkpoints.restore(_abstract(), which=which) or (None, None)
    assert step == found and [int(line.split()[1]) for line in lines] == list(damaged)


@pytest.mark.parametrize(
    ("where", "name"), [((foreign_files, "content"), MANIFEST), ((foreign_files, "sha256"), "_CHECKPOINT_METADATA")]
)
@pytest.mark.parametrize("which", ["latest", "best", 30])
def test_an_error_of_reading_is_no_damage(where, name, which, saved, opened, monkeypatch):
    checkpoints, lines = opened(saved)
    before = contents(saved)
    with monkeypatch.context() as patch:
        patch.setattr(*where, stale_handle)
        with pytest.raises(
            ValueError, match=rf"^checkpoint [13]0 in .* cannot be read: {name}: Stale file h"
        ) as caught:
            checkpoints.restore(_abstract(), which=which)
    assert "\n" not in str(caught.value) and lines == []
    assert contents(saved) == before
    assert checkpoints.restore(_abstract(), which=which)[0] == (10 if which == "best" else 30)


def test_reading_changes_nothing(saved, opened):
    _flip(saved / "30" / "_METADATA")
    (saved / ".scratch" / "40").mkdir()  # a run is writing just now
    before = contents(saved)
    checkpoints, lines = opened(saved, access="read")
    assert checkpoints.restore(_abstract())[0] == 20 and len(lines) == 1
    assert checkpoints.restore(_abstract(), which="best")[0] == 10
    with pytest.raises(ValueError, match="opened for reading"):
        checkpoints.save(50, _state(50))
    with pytest.raises(ValueError, match="is damaged: the content of _METADATA was changed"):
        checkpoints.restore(_abstract(), which=30)
    with pytest.raises(ValueError, match="is missing; the steps with a checkpoint are"):
        checkpoints.restore(_abstract(), which=40)
    checkpoints.close()
    assert contents(saved) == before
    reader, _ = opened(saved / "nowhere", access="read")
    assert reader.restore(_abstract()) is None and not (saved / "nowhere").exists()


def test_kill_while_writing_leaves_no_checkpoint(saved, opened):
    """What a kill can leave: Orbax's half-written folder, its finished one without manifest, half a deleted one."""
    for name in ("40.orbax-checkpoint-tmp", "40", "deleted-5"):
        shutil.copytree(saved / "30", saved / ".scratch" / name)
        (saved / ".scratch" / name / MANIFEST).unlink()
    checkpoints, lines = opened(saved)
    assert checkpoints.steps() == [10, 20, 30] and lines == []
    assert list((saved / ".scratch").iterdir()) == []
    checkpoints.save(40, _state(40))
    checkpoints.close()
    assert checkpoints.steps() == [10, 20, 30, 40]


def test_no_checkpoint_is_in_place_before_its_manifest(tmp_path, opened):
    checkpoints, _ = opened(tmp_path)
    checkpoints.save(1, _state(1), metrics=Metrics(full))
    with pytest.raises(SaveError, match="checkpoint 1 could not be saved: No space left on device"):
        checkpoints.wait()
    assert checkpoints.steps() == []
    checkpoints.save(1, _state(1))
    checkpoints.close()
    assert checkpoints.steps() == [1]


def test_closing_raises_the_error_of_the_save_alone(tmp_path, opened, monkeypatch):
    checkpoints, _ = opened(tmp_path)
    checkpoints.save(1, _state(1), metrics=Metrics(full))
    monkeypatch.setattr("orbax.checkpoint.AsyncCheckpointer.close", full)  # as it does where its own threads failed
    with pytest.raises(SaveError, match="checkpoint 1 could not be saved: No space left on device"):
        checkpoints.close()


def test_a_step_that_has_a_checkpoint_keeps_it(saved, opened):
    checkpoints, _ = opened(saved)
    before = contents(saved)
    checkpoints.save(30, _state(99), metrics={"accuracy": 0.0})
    checkpoints.close()
    assert contents(saved) == before


def test_checkpoint_of_other_code_is_refused(saved, opened):
    checkpoints, _ = opened(saved)
    tree = _abstract()
    tree["params"]["Dense_0"]["kernel"] = jax.ShapeDtypeStruct((5, 3), jnp.float32)
    tree["params"]["Dense_1"] = tree["params"]["Dense_0"].pop("bias")
    tree["key"] = jax.ShapeDtypeStruct((2,), jnp.int32)
    with pytest.raises(ValueError) as caught:
        checkpoints.restore(tree)
    assert str(caught.value) == (
        f"checkpoint 30 in {str(saved)!r} does not fit the model: key is uint32 (2,) in the checkpoint, int32 (2,) in "
        "the model; params/Dense_0/bias is in the checkpoint but not in the model; params/Dense_0/kernel is float32 "
        "(4, 3) in the checkpoint, float32 (5, 3) in the model; and 1 more"
    )
    assert checkpoints.steps() == [10, 20, 30], "a misfit is no damage"
    tree = _abstract()
    tree["local"] = Pair(tree["local"].first, (jax.ShapeDtypeStruct((4, 0), jnp.float32), None))
    with pytest.raises(ValueError, match=r"local/second/0 is float32 \(8, 0\) in the checkpoint"):
        checkpoints.restore(tree)
    forge(saved / "30", lambda body: body["leaves"].update(step={"shape": [10**6, 10**6, 10], "dtype": "float32"}))
    with refused(ValueError, "checkpoint 30 in .*does not fit the model"):  # before it is read
        checkpoints.restore(_abstract())


@pytest.mark.parametrize("form", [None, 2, 9])
def test_checkpoint_of_another_version_is_refused(form, saved, opened):
    forge(saved / "30", lambda body: body.update(format=form))
    checkpoints, lines = opened(saved)
    for options in ({}, {"which": 30}, {"part": "params"}):
        tree = _abstract()["params"] if options.get("part") else _abstract()
        with pytest.raises(ValueError, match=r"^checkpoint 30 in .* another version of this program") as caught:
            checkpoints.restore(tree, **options)
        assert "--fresh" in str(caught.value)
        assert "--workdir" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert lines == [] and checkpoints.steps() == [10, 20, 30], "it is not damaged"


def test_a_part_is_restored_by_itself(saved):
    with Checkpoints(saved, access="read") as checkpoints:
        step, params = checkpoints.restore(_abstract()["params"], part="params")
        _assert_bits(params, _state(30)["params"])
        assert step == 30
        for parts in (("ema", "params"), ("params", "ema"), ("par", "params")):
            assert checkpoints.restore(_abstract()["params"], part=parts)[0] == 30
        with pytest.raises(ValueError, match="other/params/Dense_0/bias is in the model but not in the checkpoint"):
            checkpoints.restore({"params": {"Dense_0": {"bias": np.zeros(3)}}}, part="other")


def test_states_that_cannot_be_saved_are_refused(tmp_path, opened):
    checkpoints, _ = opened(tmp_path)
    with pytest.raises(ValueError, match="two leaves of one name"):
        checkpoints.save(1, {"a/b": np.ones(1), "a": {"b": np.ones(1)}})
    with pytest.raises(ValueError, match="'key': is a typed PRNG key"):
        checkpoints.save(1, {"key": jax.random.key(0)})


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "uint16", "complex64", "int64", "bool"])
def test_dtypes(tmp_path, dtype, opened):
    checkpoints, _ = opened(tmp_path)
    state = {"x": np.arange(6).reshape(2, 3).astype(jnp.dtype(dtype)), "number": 3, "real": 0.1}
    checkpoints.save(1, state)
    _, tree = checkpoints.restore(state)
    _assert_bits(tree, jax.tree.map(np.asarray, state))


def test_orbax_is_quiet_and_the_process_is_left_as_it_was(tmp_path, capfd, caplog, opened):
    """A failed save too; Orbax logs a page of it."""
    absl = logging.getLogger("absl")
    absl.addHandler(caplog.handler)
    before = sys.unraisablehook, list(absl.filters)
    try:
        checkpoints, _ = opened(tmp_path / "c")
        with caplog.at_level(logging.WARNING, logger="absl"):
            checkpoints.save(1, _state(1))
            assert checkpoints.restore(_abstract())[0] == 1
            assert (sys.unraisablehook, absl.filters) == before
            checkpoints.save(2, _state(2))
            absl.error("not of a checkpoint")
            checkpoints.wait()
            shutil.rmtree(tmp_path / "c" / ".scratch")
            (tmp_path / "c" / ".scratch").touch()
            with pytest.raises(SaveError):
                checkpoints.save(3, _state(3))
                checkpoints.wait()
            assert (sys.unraisablehook, absl.filters) == before
            checkpoints.close()
    finally:
        absl.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"not of a checkpoint"}
    assert capfd.readouterr().out == ""


WRITER = """
import sys
import numpy as np
from pathlib import Path
from runs.checkpoints import Checkpoints
from runs.reporting.records import Records

folder = Path(sys.argv[1])
state = {"x": np.zeros(300_000), "step": np.int32(0)}
checkpoints = Checkpoints(folder / "checkpoints", keep_last=2)
start, state = checkpoints.restore(state) or (0, state)
records = Records(folder / "metrics.jsonl", resume_step=start or None)
print(start, flush=True)
for step in range(start + 1, 1_000_000):
    state = {"x": state["x"] + 1, "step": np.int32(step)}
    records.append({"kind": "train", "step": step})
    records.flush()
    checkpoints.save(step, state)
    print(step, flush=True)
"""


def test_killed_at_any_moment(tmp_path, opened):
    """Killed again and again at random moments, a run loses at most the save under way and one that waited for it."""
    rng = np.random.default_rng(0)
    before = 0
    for _ in range(8):
        with start([sys.executable, "-W", "error", "-c", WRITER, tmp_path], stderr=subprocess.PIPE) as process:
            lines = process.stdout
            first = int(lines.readline())
            last = [int(lines.readline()) for _ in range(int(rng.integers(1, 12)))][-1]
            threading.Event().wait(rng.uniform(0, 0.03))  # to a moment within a save
            process.kill()
            after = lines.read().split()
            assert process.stderr.read() == "", "no damage reported, no chatter"
        assert first >= before
        before = int(after[-1] if after else last) - 2
        checkpoints, damaged = opened(tmp_path / "checkpoints", access="read")
        step, state = checkpoints.restore({"x": np.zeros(300_000), "step": np.int32(0)})
        checkpoints.close()
        assert damaged == [] and step >= before
        assert state["step"] == step and (state["x"] == step).all()
        steps = [record["step"] for record in records.read(tmp_path / "metrics.jsonl")]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) >= step


# ---- the run that is read goes on --------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["verified", "read"])
@pytest.mark.parametrize("which", ["latest", "best"])
def test_a_checkpoint_that_the_run_removes_is_chosen_again(moment, which, tmp_path, opened, monkeypatch):
    run, _ = opened(tmp_path, keep_last=1)
    run.save(10, _state(10), metrics={"accuracy": 0.1})
    run.wait()

    def go_on():
        run.save(20, _state(20), metrics={"accuracy": 0.2})
        run.wait()

    where = {"verified": (foreign_files, "sha256"), "read": (ocp.AsyncCheckpointer, "restore")}[moment]
    before_first_call(monkeypatch, *where, go_on)
    reader, lines = opened(tmp_path, access="read")
    step, tree = reader.restore(_abstract(), which=which)
    assert step == 20 and run.steps() == [20] and lines == [], "a removed checkpoint is not a damaged one"
    _assert_bits(tree, _state(20))


def test_a_run_that_removes_checkpoints_all_the_time_is_not_read_forever(tmp_path, opened):
    reader, _ = opened(tmp_path, access="read")
    (tmp_path / "0").mkdir()
    removed = []

    def read():
        (tmp_path / str(len(removed))).rename(tmp_path / str(len(removed) + 1))
        removed.append(1)
        raise ValueError("it was there a moment ago")

    with pytest.raises(ValueError, match="a run removes them faster than they can be read") as caught:
        reader.choose_again(read)
    assert "\n" not in str(caught.value) and 1 < len(removed) < 1000


# ---- the folder is moved -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_folder_that_is_moved_is_named_and_not_made_again(moment, tmp_path, opened):
    run, _ = opened(tmp_path / "run" / "checkpoints")
    run.save(10, _state(10))
    run.wait()

    def move():
        (tmp_path / "run").rename(tmp_path / "moved")

    with pytest.raises(SaveError, match=r"checkpoint 20 could not be saved: .*No such file"):
        if moment == "before":
            move()
        run.save(20, _state(20), metrics=Metrics(move) if moment == "during" else None)
        run.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    assert opened(tmp_path / "moved" / "checkpoints")[0].restore(_abstract())[0] == 10


def test_checkpoints_that_cannot_be_listed_are_named(saved, opened, monkeypatch):
    checkpoints, _ = opened(saved)
    with (
        monkeypatch.context() as patch,
        pytest.raises(SaveError, match=r"checkpoint 40 could not be saved: .*Stale file"),
    ):
        patch.setattr(os, "listdir", stale_handle)
        patch.setattr(os, "scandir", stale_handle)  # which a later Python uses
        checkpoints.save(40, _state(40))
    checkpoints.save(40, _state(40))
    checkpoints.wait()
    assert checkpoints.restore(_abstract())[0] == 40
