"""A finished run goes on for more steps: the same bits as a run that was to have them from the start."""

import json

import pytest

import runs
from configs import flags
from tests import ROOT
from tests.stepper import checkpoint_of, same_bits
from tests.test_train import command
from training.setup import make_setup

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


def run(folder, method, steps, *more):
    return command(f"--config={ROOT}/configs/digits.py", *overrides(method, steps, *more), f"--workdir={folder}")


def state_of(folder, method, steps):
    setup = make_setup(flags.load(f"{ROOT}/configs/digits.py", overrides(method, steps)))
    step, found = checkpoint_of(folder, setup)
    assert step == setup.num_steps
    return found


@pytest.mark.quick_cases("backup_workers")
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
    ],
)
def test_other_runs_do_not_grow(more, message, tmp_path, capsys):
    grown = tmp_path / "grown"
    assert run(grown, "mean", SHORT, *(more if "schedule" in more[0] else ())) == 0
    before = {path: path.read_bytes() for path in grown.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(grown, "mean", LONG, *more) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert message in line
    assert {path: path.read_bytes() for path in grown.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_finished_run_does_not_shrink_and_may_be_recorded_at_other_times(tmp_path, capsys):
    grown = tmp_path / "grown"
    assert run(grown, "mean", LONG) == 0
    capsys.readouterr()
    assert run(grown, "mean", SHORT) == 2
    assert "train_steps=45 in the folder, 20 now" in capsys.readouterr().err
    assert run(grown, "mean", LONG, "log_every_steps=2") == 0
    assert "finished before" in capsys.readouterr().err


def test_which_configs_go_on():
    saved = {"seed": 0, "train_steps": 5, "train_epochs": None, "log_every_steps": 1, "model": {"name": "mlp"}}
    goes_on = runs.identity.goes_on
    assert goes_on(saved, {**saved, "train_steps": 6, "log_every_steps": 2, "keep_checkpoints": 3})
    assert goes_on(saved, {**saved, "log_every_steps": None, "log_every_epochs": 2.0})
    assert not goes_on(saved, {**saved, "train_steps": 4})
    assert not goes_on(saved, {**saved, "train_steps": None, "train_epochs": 9.0})  # which may be fewer
    assert not goes_on(saved, {**saved, "train_steps": 6, "seed": 1})
    assert not goes_on({**saved, "train_steps": "5"}, {**saved, "train_steps": 6})  # a damaged file
    assert not goes_on(saved, {**saved, "model": {"name": "lenet5"}})
