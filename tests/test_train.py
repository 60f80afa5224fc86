"""Whole runs: what they leave on disk, how they go on, and that nothing is lost or done twice."""

import json
import re
import signal

import jax
import numpy as np
import pytest

import runs
import train
from configs import flags
from parallel import Layout
from runs.errors import refusing
from tests import ROOT, kills
from tests.in_process import DIGITS, keys
from tests.in_process import train_py as command
from tests.stepper import act_at, ask_to_stop, checkpoint_of, same_bits, without_clock
from training.checkpoints import restore
from training.setup import make_setup

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.py") if "def get_config" in path.read_text())

# Dropout, momentum and a moving average are on in the digits config.
OVERRIDES = keys("""
    train_steps=120
    log_every_steps=7
    eval_every_steps=25
    checkpoint_every_steps=20
""")
FIELDS = {
    *("kind", "step", "epoch", "examples", "dropped_examples", "wall_seconds", "simulated_seconds", "loss", "accuracy"),
    *("step_seconds", "contributors"),
    *("learning_rate", "gradient_norm", "reduced_norm", "update_norm", "bytes_per_worker"),
}


def digits(workdir, *more: str) -> tuple[str, ...]:
    return (f"--config={DIGITS}", *OVERRIDES, f"--workdir={workdir}", *more)


def setup():
    return make_setup(flags.load(DIGITS, OVERRIDES))


def final_state(workdir):
    step, found = checkpoint_of(workdir, setup())
    return step, jax.tree.leaves(found)


def assert_same_run(workdir, reference):
    step, leaves = final_state(workdir)
    expected_step, expected = final_state(reference)
    assert step == expected_step == 120
    assert same_bits(leaves, expected)
    assert without_clock(workdir) == without_clock(reference)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    assert command(*digits(workdir)) == 0
    return workdir


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in CONFIGS])
def test_every_config_runs_small(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(f"--config={path}:smoke") == 0
    said = capsys.readouterr().out
    (folder,) = (tmp_path / "out" / f"{path.stem}-smoke").iterdir()
    assert re.search(r"^test [a-z ]+ \S", said, re.MULTILINE)
    assert str(folder.relative_to(tmp_path)) in said and "experiments.plot" in said
    records = runs.read(folder / "metrics.jsonl")
    assert [(r["kind"], r["step"]) for r in records] == [(kind, step) for step in (2, 4) for kind in ("train", "eval")]
    fields = FIELDS if "accuracy" in records[0] else FIELDS - {"accuracy"}  # models of density and text have their own
    assert all(set(record) >= fields for record in records)
    assert json.loads((folder / "config.json").read_text())["train_steps"] == 4
    assert {"packages", "devices"} <= set(json.loads((folder / "env.json").read_text())["starts"][0])
    assert list((folder / "tensorboard").iterdir()) and (folder / "DONE").exists()


def test_records_and_checkpoints_of_a_run(uninterrupted):
    records = runs.read(uninterrupted / "metrics.jsonl")
    assert [r["step"] for r in records if r["kind"] == "train"] == [*range(7, 120, 7), 120]
    assert [r["step"] for r in records if r["kind"] == "eval"] == [25, 50, 75, 100, 120]
    assert records[-1]["examples"] == 120 * 128
    assert records[-1]["epoch"] == pytest.approx(120 * 128 / 1437)
    kept = sorted(int(path.name) for path in (uninterrupted / "checkpoints").iterdir() if path.name.isdecimal())
    assert kept[-2:] == [100, 120] and len(kept) <= 3  # the last two, and the best


def test_same_command_again_only_reports(uninterrupted, capsys):
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    assert command(*digits(uninterrupted)) == 0
    captured = capsys.readouterr()
    assert "finished before" in captured.err and "test accuracy" in captured.out
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("steps", [(1,), (33, 60, 100, 119)])
def test_stopped_by_a_signal_and_gone_on(steps, uninterrupted, tmp_path, monkeypatch, capsys):
    """Each signal saves first; what follows is bit for bit what would have been."""
    for number, name in zip(steps, ("SIGUSR1", "SIGINT", "SIGHUP", "SIGTERM"), strict=False):
        with monkeypatch.context() as patch:
            act_at(patch, number, lambda name=name: ask_to_stop(signal.Signals[name]))
            assert command(*digits(tmp_path)) == 128 + signal.Signals[name]
        assert f"stopped by {name} at step {number}" in capsys.readouterr().out
        assert final_state(tmp_path)[0] == number
    assert command(*digits(tmp_path)) == 0
    assert f"going on at step {steps[-1]}" in capsys.readouterr().err
    assert_same_run(tmp_path, uninterrupted)


def test_damaged_checkpoint_is_reported_and_the_one_before_used(uninterrupted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train.Run, "finish", lambda self, state: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        command(*digits(tmp_path))
    monkeypatch.undo()
    victim = max((tmp_path / "checkpoints" / "120").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    capsys.readouterr()
    assert command(*digits(tmp_path)) == 0
    said = capsys.readouterr().err
    assert "checkpoint 120" in said and "damaged" in said and "going on at step 100" in said
    assert_same_run(tmp_path, uninterrupted)
    assert (tmp_path / "checkpoints" / "120.damaged").exists()


def test_another_config_or_layout_in_the_same_folder(uninterrupted, capsys):
    assert command(*digits(uninterrupted, "--config.num_workers=4")) == 2
    assert "num_workers=8 in the folder, 4 now" in capsys.readouterr().err
    with refusing():
        other = make_setup(flags.load(DIGITS, [*OVERRIDES, "--config.model.hidden_sizes=(3,)"]))
    with runs.Checkpoints(uninterrupted / "checkpoints", access="read") as checkpoints:
        with pytest.raises(ValueError, match=r"does not fit.*Dense_0/kernel is float32 \(64, 512\)"):
            restore(other, Layout.of(8), checkpoints)
        step, state, counters, _ = restore(setup(), Layout.of(8, num_devices=2), checkpoints)
    assert step == 120 and state.step.shape == (2,) and counters.num_counted == 120 * 8


def test_fresh_starts_over_in_a_subfolder(uninterrupted):
    before = {path: path.read_bytes() for path in uninterrupted.rglob("*") if path.is_file()}
    assert command(*digits(uninterrupted, "--fresh")) == 0
    assert_same_run(uninterrupted / "fresh-1", uninterrupted)
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(("which", "step"), [("latest", 120), ("best", None), ("100", 100)])
def test_evaluate_only(which, step, uninterrupted, capsys):
    before = sorted(uninterrupted.rglob("*"))
    assert command(*digits(uninterrupted, "--evaluate_only", f"--checkpoint={which}")) == 0
    said = capsys.readouterr().out
    evaluations = {r["step"]: r for r in runs.read(uninterrupted / "metrics.jsonl") if r["kind"] == "eval"}
    step = step or int(said.split()[1].rstrip(":"))
    assert f"step {step}: test accuracy {evaluations[step]['accuracy']:.2%}" in said
    assert sorted(uninterrupted.rglob("*")) == before


def test_dry_run_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(f"--config={DIGITS}:smoke", "--dry_run") == 0
    said, progress = capsys.readouterr()
    assert '"num_workers": 8' in said and "8 workers = 8 devices x 1 lane" in said and "FLOP" in said
    assert "tracing" in progress and "compiling" in progress and "dry run" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("devices", [(), ("--num_devices=8",)])
def test_dry_run_without_compiling(devices, compilations, capsys):
    arguments = (f"--config={DIGITS}:smoke", "--dry_run", *devices)
    assert command(*arguments, "--nodry_run_compile") == 0
    compilations.clear()
    assert command(*arguments, "--nodry_run_compile") == 0
    said, progress = capsys.readouterr()
    assert not compilations
    assert said.count("not compiled: --nodry_run_compile") == 2 and "FLOP" not in said
    assert "tracing" in progress and "compiling" not in progress


def test_killed_at_random_moments(tmp_path):
    """SIGKILL at random moments of real processes, start-up and checkpoints included."""
    arguments = (f"--config={DIGITS}", *OVERRIDES)
    kills.train(arguments, tmp_path / "reference", kills=0, records=0)
    reference, killed = (tmp_path / name / "run" for name in ("reference", "killed"))
    total = (reference / "metrics.jsonl").read_bytes().count(b"\n")
    assert kills.train(arguments, tmp_path / "killed", kills=4, records=total) >= 3  # the last may come too late
    assert_same_run(killed, reference)


@pytest.mark.parametrize("used_before", ["fresh", "no checkpoint yet"])
def test_init_from_holds_in_a_folder_that_was_used_before(used_before, tmp_path):
    short = keys("train_steps=20 eval_every_steps=20 checkpoint_every_steps=20")
    assert command(*digits(tmp_path / "first", *short)) == 0
    begins = (*short, f"--config.init_from={tmp_path}/first", "--config.optimizer.learning_rate=1e-12")
    workdir, more = tmp_path / "second", ()
    if used_before == "fresh":
        assert command(*digits(workdir, *begins)) == 0
        workdir, more = workdir / "fresh-1", ("--fresh",)
    else:
        (workdir / "checkpoints").mkdir(parents=True)
        (workdir / "config.json").write_text(json.dumps(flags.load(DIGITS, [*OVERRIDES, *begins]).to_dict()))
    assert command(*digits(tmp_path / "second", *begins, *more)) == 0
    averaged, begun = (checkpoint_of(folder, setup())[1]["state"] for folder in (tmp_path / "first", workdir))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), averaged.ema, begun.params)
