"""A finished run goes on for more steps: the same bits as a run that was to have them from the start."""

import json

import pytest

import runs
from reducers.arrivals import foreign_files
from runs.errors import ConfigError
from tests.in_process import train_digits
from tests.saved import contents, stale_handle
from tests.stepper import act_at, ask_to_stop, checkpoint_of, digits_setup, same_bits
from training.setup import TrainSetup

SHORT, LONG = 20, 45
CONSTANT = (
    *("schedule.name=constant", "model.hidden_sizes=(16,)", "ema_decay=0.9", "log_every_steps=5"),
    *("train_epochs=None", "eval_every_epochs=None", "checkpoint_every_epochs=None"),
    *("eval_every_steps=15", "checkpoint_every_steps=15"),
)
LATE = ("arrivals.name=lognormal", "reducer.num_required=6")
METHODS = {
    "mean": (),
    "backup_workers": (*LATE, "reducer.name=backup_workers"),
    "adasum": ("reducer.name=adasum", "reducer_on=updates"),
    "local": ("reducer.name=local_sgd", "reducer.every_steps=8", "reducer_on=updates"),
    "epochs": ("train_steps=None",),
    "served": ("server.name=asynchronous", "arrivals.name=lognormal", "optimizer.momentum=None"),
}


def overrides(method, steps, *more):
    length = f"train_epochs={steps / 10}" if method == "epochs" else f"train_steps={steps}"
    return [f"--config.{key}" for key in (*CONSTANT, *METHODS[method], length, *more)]


def run(folder, method, steps, *more, flags=()):
    return train_digits(folder, *overrides(method, steps, *more), *flags)


def state_of(folder, method, steps):
    setup = digits_setup(*overrides(method, steps))
    step, found = checkpoint_of(folder, setup)
    assert step == setup.num_steps
    return found


@pytest.mark.parametrize("method", METHODS)
def test_more_steps_are_those_of_a_run_that_had_them_from_the_start(method, tmp_path):
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    assert run(grown, method, SHORT) == 0 and (grown / "DONE").exists()
    assert run(grown, method, LONG) == 0 and run(whole, method, LONG) == 0
    assert same_bits(state_of(grown, method, LONG), state_of(whole, method, LONG))
    records = [
        [(r["step"], r["loss"]) for r in runs.read(folder / "metrics.jsonl") if r["kind"] == "train"]
        for folder in (grown, whole)
    ]
    assert {*records[1]} <= {*records[0]}  # where the short run ended there is one more
    assert json.loads((grown / "config.json").read_text()) == json.loads((whole / "config.json").read_text())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("schedule.name=one_cycle",),
            "was to have 20 steps, not 45, on which the learning rate of config.schedule.name=",
        ),
        (("seed=1",), "holds a run with another config: seed=0 in the folder, 1 now"),
        (("train_steps=None", "train_epochs=9.0"), "holds a run with another config: "),  # which may be fewer
    ],
)
def test_other_runs_do_not_grow(more, message, tmp_path, capsys):
    grown = tmp_path / "grown"
    assert run(grown, "mean", SHORT, *(more if "schedule" in more[0] else ())) == 0
    before = contents(grown)
    capsys.readouterr()
    assert run(grown, "mean", LONG, *more) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert message in line
    assert contents(grown) == before


def refuse(name, folder, monkeypatch):
    """Makes the next command refuse this run after it has looked at its flags."""
    sink = lambda *_: (_ for _ in ()).throw(ConnectionError("no key"))  # noqa: E731
    if name == "a sink":
        monkeypatch.setattr(runs.reporting.sinks, "find", lambda _: sink)
        return ("--sink=mine:Sink",), "no key"
    if name == "the data":
        monkeypatch.setattr(TrainSetup, "load_data", damaged_data)
        return (), "config.data: damaged"
    if name == "all checkpoints":
        for manifest in folder.glob("checkpoints/*/manifest.json"):
            manifest.write_text("{")
        return (), "all its checkpoints are damaged (15.damaged, 20.damaged); --fresh"
    monkeypatch.setattr(foreign_files, "sha256", stale_handle)
    return (), "Stale file handle"


def damaged_data(setup, **_):
    raise ConfigError("config.data: damaged")


def described(folder):
    return {name: (folder / name).read_bytes() for name in ("config.json", "env.json", "metrics.jsonl", "DONE")}


@pytest.mark.parametrize("reason", ["a sink", "the data", "all checkpoints", "a file server"])
def test_a_refused_command_leaves_a_finished_run_finished(reason, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    assert run(folder, "mean", SHORT) == 0
    before = described(folder)
    with monkeypatch.context() as patch:
        more, said = refuse(reason, folder, patch)
        for steps in (LONG, LONG + 5):
            assert run(folder, "mean", steps, "log_every_steps=3", flags=("--accept_code_change", *more)) == 2
            assert said in capsys.readouterr().err.splitlines()[-1]
            assert described(folder) == before
    assert run(folder, "mean", SHORT) == 0 and "finished before" in capsys.readouterr().err
    assert described(folder) == before


def test_a_new_folder_whose_run_was_refused_takes_any_run(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        more, _ = refuse("a sink", tmp_path, patch)
        assert run(tmp_path, "mean", SHORT, "seed=1", flags=more) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}
    assert run(tmp_path, "mean", 1) == 0


@pytest.mark.parametrize("cadences", [(5, 2, 7), (7, 5), (2, 40, 3)])
def test_other_cadences_lose_no_records(cadences, tmp_path, monkeypatch, capsys):
    """Each start logs as often as it is to, and knows of the earlier ones what they were to log."""
    for number, every in enumerate(cadences):
        with monkeypatch.context() as patch:
            if number + 1 < len(cadences):
                act_at(patch, 15 * (number + 1), ask_to_stop)
            assert run(tmp_path, "mean", LONG, f"log_every_steps={every}") in (0, 143)
        assert "has lost" not in capsys.readouterr().err
    records = runs.read(tmp_path / "metrics.jsonl")
    due, step = [], 0
    for number, every in enumerate(cadences):
        end = LONG if number + 1 == len(cadences) else 15 * (number + 1)
        due += [step for step in range(step + 1, end + 1) if step % every == 0 or step == LONG]
        step = end
    assert [record["step"] for record in records if record["kind"] == "train"] == due
    (tmp_path / "DONE").unlink()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = next(record["step"] for record in records if record["kind"] == "train")
    (tmp_path / "metrics.jsonl").write_text("".join(line for line in lines if f'"step": {first},' not in line))
    assert run(tmp_path, "mean", LONG, f"log_every_steps={cadences[-1]}") == 0
    assert f"has lost its records of steps {first} to {first}" in capsys.readouterr().err


def test_a_finished_run_does_not_shrink_and_may_be_recorded_at_other_times(tmp_path, capsys):
    grown = tmp_path / "grown"
    assert run(grown, "mean", LONG) == 0
    capsys.readouterr()
    assert run(grown, "mean", SHORT) == 2
    assert "train_steps=45 in the folder, 20 now" in capsys.readouterr().err
    assert run(grown, "mean", LONG, "log_every_steps=2", "keep_checkpoints=3") == 0
    assert "finished before" in capsys.readouterr().err
