"""Runs that begin with another run's state, and parameters that stay as they are."""

import contextlib
import json
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest

import models
import runs
from configs import flags
from optim.frozen import join
from reducers.arrivals import foreign_files
from runs.errors import ConfigError
from tests.in_process import DIGITS, keys, train_digits, train_py
from tests.refused import line_of
from tests.stepper import (
    Crash,
    Normalised,
    Stepper,
    act_at,
    before_first_call,
    checkpoint_of,
    crash,
    digits_setup,
    largest_difference,
    records,
    same_bits,
    setup_of,
)
from training.checkpoints import initial_of, restore_params
from training.setup import make_setup

STEPS = keys("batch_size_per_worker=4 train_steps=12 log_every_steps=1 eval_every_steps=12 checkpoint_every_steps=6")
COMMON = ("--config.model.hidden_sizes=(16,)", *STEPS)
FREEZE = "--config.freeze=^Dense_0"
OTHER_STATE = "its optimizer's state is that of another config.optimizer, config.freeze, config.reducer_on or "


def run(workdir, *more):
    """Trains; returns the exit code."""
    return train_digits(workdir, *COMMON, *more)


def load(*more):
    return digits_setup(*COMMON, *more)


def end_of(workdir, *more):
    return checkpoint_of(workdir, load(*more))[1]["state"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("first") / "run"
    assert run(workdir) == 0
    return workdir


# ---- another run's state -----------------------------------------------------------------------------------------


def test_what_is_shared_goes_on_with_other_workers(first):
    what = (f"--config.init_from={first}", "--config.init_what=shared")
    ended = end_of(first)
    setup = load("--config.num_workers=3", *what)
    begun = setup.init_worker(initial_of(setup, str(first)))
    for name in ("params", "opt_state", "ema"):
        assert same_bits(getattr(begun, name), getattr(ended, name)), name
    assert begun.step == 0 and begun.averaged == 12  # its decay goes on, and is not low again
    anew = load("--config.num_workers=3")
    of_params = anew.init_worker(initial_of(anew, str(first)))
    assert same_bits(of_params.params, ended.ema) and of_params.averaged is None  # where it is evaluated
    momentum = jax.tree.leaves(of_params.opt_state)
    assert not any(np.any(x) for x in momentum)
    assert any(np.any(x) for x in jax.tree.leaves(ended.opt_state))


def test_a_run_on_gradients_goes_on_as_if_its_workers_were_the_same(tmp_path):
    """With all 1,437 examples in each step it does not matter how many workers there are."""
    plain = keys(
        "model.dropout_rate=0.0 schedule.name=constant ema_decay=0.9 optimizer.momentum=0.9 checkpoint_every_steps=4 "
        "eval_every_steps=4"
    )
    three, one = (keys(f"num_workers={count} batch_size_per_worker={1437 // count}") for count in (3, 1))
    half, third = ((f"--config.init_from={tmp_path}/{name}", "--config.init_what=shared") for name in ("half", "third"))
    runs = {
        "whole": (*three, "--config.train_steps=8"),
        "half": (*three, "--config.train_steps=4"),
        "third": (*one, "--config.train_steps=2", *half),
        "rest": (*three, "--config.train_steps=2", *third),
        "anew": (*one, "--config.train_steps=4", half[0]),
        "unaveraged": (*one, *keys("train_steps=4 ema_decay=None")),
    }
    ends = {}
    for name, more in runs.items():
        assert run(tmp_path / name, *plain, *more, "--num_devices=1") == 0
        ends[name] = end_of(tmp_path / name, *plain, *more)
    for field in ("params", "ema"):
        whole, rest, anew = (getattr(ends[name], field) for name in ("whole", "rest", "anew"))
        assert largest_difference(whole, rest) < 1e-5
        assert largest_difference(whole, anew) > 1e-3  # without its momentum, and with low decays again
    setup = load(*plain, *one, f"--config.init_from={tmp_path}/unaveraged", "--config.init_what=shared")
    assert setup.init_worker(initial_of(setup, f"{tmp_path}/unaveraged")).averaged == 0


def test_the_schedule_goes_on():
    rate = load("--config.schedule_from_step=12").learning_rate
    of_both = load("--config.train_steps=24").learning_rate
    assert [float(rate(step)) for step in (0, 5, 11)] == [float(of_both(step)) for step in (12, 17, 23)]


def test_statistics_of_batch_norm_begin_with_their_mean(tmp_path, monkeypatch):
    monkeypatch.setitem(models.MODELS, "normalised", Normalised)
    network = (*keys("model.name=normalised ema_decay=None"), *STEPS)
    shared = (f"--config.init_from={tmp_path}", *keys("init_what=shared num_workers=2"))
    config = DIGITS
    assert train_py(f"--config={config}", *network, f"--workdir={tmp_path}", "--num_devices=2") == 0
    first, second = (make_setup(flags.load(config, [*network, *more])) for more in ((), shared))
    begun = second.init_worker(initial_of(second, str(tmp_path))).worker.model_state
    own = checkpoint_of(tmp_path, first)[1]["state"].worker.model_state
    assert largest_difference(begun, jax.tree.map(lambda x: x.mean(0), own)) < 1e-6
    assert largest_difference(begun, jax.tree.map(lambda x: x[0], own)) > 1e-4


# ---- another run that goes on ------------------------------------------------------------------------------------


@pytest.fixture
def training(first, tmp_path):
    """The folder of another run that has a checkpoint of step 6; and what gives it the one of step 12."""
    folder = shutil.copytree(first, tmp_path / "training")
    later = tmp_path / "later"
    (folder / "checkpoints" / "12").rename(later)
    return folder, lambda: later.exists() and later.rename(folder / "checkpoints" / "12")


def recorded(workdir):
    """The step whose checkpoint the last start of a run that took one has recorded."""
    starts = json.loads((workdir / "env.json").read_text())["starts"]
    files = [start["code"]["config.init_from"] for start in starts if "config.init_from" in start["code"]]
    assert not runs.changed_files({"config.init_from": files[-1]}) or not os.path.exists(files[-1]["path"])
    return int(pathlib.Path(files[-1]["path"]).parent.name)


def begins(folder):
    return (f"--config.init_from={folder}", *keys("optimizer.learning_rate=1e-12 ema_decay=None"))


def has_begun_with(workdir, folder, step):
    begun = end_of(workdir, *begins(folder)).params
    taken = restore_params(folder, checkpoint=step)
    assert largest_difference(begun, taken) < 1e-6


@pytest.mark.parametrize("moment", ["open_run", "Stop"])
def test_a_run_records_the_checkpoint_that_it_takes(moment, training, tmp_path, monkeypatch):
    folder, advance = training
    before_first_call(monkeypatch, runs, moment, advance)
    assert run(tmp_path / "run", *begins(folder)) == 0
    has_begun_with(tmp_path / "run", folder, recorded(tmp_path / "run"))


@pytest.mark.parametrize(
    ("meanwhile", "killed_at"),
    [
        *(("goes on", 3), ("goes on", 9), ("goes on", 12), ("is removed", 9)),
        *(("loses the checkpoint", 3), ("loses the checkpoint", 9)),
    ],
)
def test_the_same_command_goes_on_whatever_the_other_run_does(meanwhile, killed_at, training, tmp_path, monkeypatch):
    folder, advance = training
    with monkeypatch.context() as patch:
        act_at(patch, killed_at, crash if killed_at < 12 else list)
        with pytest.raises(Crash) if killed_at < 12 else contextlib.nullcontext():
            run(tmp_path / "run", *begins(folder))
    assert recorded(tmp_path / "run") == 6
    advance()
    if meanwhile == "loses the checkpoint":
        shutil.rmtree(folder / "checkpoints" / "6")
    if meanwhile == "is removed":
        folder.rename(tmp_path / "elsewhere")
    assert run(tmp_path / "run", *begins(folder)) == 0
    step = 12 if meanwhile == "loses the checkpoint" and killed_at < 6 else 6
    assert recorded(tmp_path / "run") == step
    if meanwhile == "goes on":
        has_begun_with(tmp_path / "run", folder, step)


def test_each_file_of_a_checkpoint_is_read_once_and_refused_if_it_is_damaged(first, tmp_path, monkeypatch, capsys):
    read, sha256 = [], foreign_files.sha256
    monkeypatch.setattr(foreign_files, "sha256", lambda path: read.append(path) or sha256(path))
    damaged = shutil.copytree(first, tmp_path / "damaged")
    initial_of(load(), str(damaged))
    assert len(read) == len(set(read)) > 0  # a checkpoint may have gigabytes
    (damaged / "checkpoints/12/_METADATA").write_text("")
    assert run(tmp_path / "new", f"--config.init_from={damaged}") == 2
    error = line_of(capsys)
    assert "checkpoint 12" in error and "is damaged" in error


def test_a_pattern_takes_some_parameters_and_lists_the_others(first, tmp_path, capsys):
    begins = (f"--config.init_from={first}", *keys("init_only=^Dense_0 model.hidden_sizes=(16,5)"))
    capsys.readouterr()
    assert run(tmp_path, *begins, *keys("optimizer.learning_rate=1e-12 train_steps=1")) == 0
    said = capsys.readouterr().err
    line = next(line for line in said.splitlines() if "init_only" in line and "anew:" in line)
    assert line.endswith(
        "takes Dense_0/bias, Dense_0/kernel; anew: Dense_1/bias, Dense_1/kernel, Dense_2/bias, Dense_2/kernel"
    )
    setup = load(*begins)
    begun = setup.init_worker(initial_of(setup, str(first))).params
    own = setup.init_worker().params
    assert same_bits(begun["Dense_0"], restore_params(first, checkpoint="latest")["Dense_0"])
    assert same_bits([begun["Dense_1"], begun["Dense_2"]], [own["Dense_1"], own["Dense_2"]])


REFUSED = {  # keys of the config, beside init_from -> the line; `{first}` is the other run's folder
    "init_only=Conv": "config.init_only='Conv': matches no parameter; they are Dense_0/bias, ",
    "init_only=(": "config.init_only='(': is not a regular expression: ",
    "init_only=Dense_1 model.hidden_sizes=(5,)": (
        "Dense_1/kernel is float32 (16, 10) in the checkpoint, float32 (5, 10) in the model"
    ),
    "init_only=Dense_2 model.hidden_sizes=(5,5)": "in the model but not in the checkpoint",
    "init_only=Dense_0 init_what=shared": "must be '' where config.init_what='shared'",
    "init_what=shared optimizer.name=adam optimizer.learning_rate=0.1": f"{{first}}': {OTHER_STATE}",
    "init_what=shared model.hidden_sizes=(16,5)": "does not fit the model: ",
    "init_what=shared freeze=^Dense_0": OTHER_STATE,
    "init_what=shared reducer_on=updates ema_decay=None": OTHER_STATE,
    "model.hidden_sizes=(5,)": "config.init_from='{first}': checkpoint 12 in '{first}/checkpoints' does ",
    "init_what=shared optimizer.name=madgrad optimizer.learning_rate=0.1": (
        "config.init_what='shared': the optimizer corrects its steps by their number, which would begin at 0 again"
    ),
    "init_what=all": "config.init_what='all': must be one of 'params', 'shared'",
    "freeze=Conv": "config.freeze='Conv': matches no parameter; they are Dense_0/bias, ",
    "freeze=.": "config.freeze='.': matches all parameters, which leaves none to train",
}


@pytest.mark.parametrize("given", REFUSED)
def test_refusals(given, first, tmp_path, capsys):
    capsys.readouterr()
    assert run(tmp_path / "new", f"--config.init_from={first}", *keys(given)) == 2
    assert REFUSED[given].format(first=first) in line_of(capsys) and not (tmp_path / "new").exists()


FRAGMENTS = keys(
    "reducer_on=updates ema_decay=None reducer.name=local_sgd reducer.every_steps=4 outer.name=sgd "
    "outer.learning_rate=0.7 outer.momentum=0.9"
)


def test_the_state_of_another_optimizer_is_not_taken(tmp_path):
    """Other fragments, or others frozen, on either side."""
    fragments = {count: (*FRAGMENTS, f"--config.reducer.fragments={count}") for count in (1, 2, 3)}
    rows = [
        ((FREEZE,), [(), ("--config.freeze=^Dense_1",)]),
        (fragments[2], [fragments[1], fragments[3]]),
        (fragments[1], [fragments[2]]),
    ]
    for i, (of_source, refused) in enumerate(rows):
        source = tmp_path / str(i)
        assert run(source, *of_source, "--config.train_steps=6") == 0
        shared = (f"--config.init_from={source}", "--config.init_what=shared")
        initial_of(load(*of_source, *shared), str(source))
        for more in refused:
            with pytest.raises(ConfigError, match=OTHER_STATE):
                initial_of(load(*more, *shared), str(source))


# ---- frozen parameters -------------------------------------------------------------------------------------------


def test_frozen_parameters_keep_their_bits_and_the_others_get_their_own_gradients():
    plain = keys("schedule.name=constant model.hidden_sizes=(16,)")
    frozen, all_trained = (Stepper(setup_of(*plain, *more), num_devices=2) for more in ((FREEZE,), ()))
    before = frozen.host()
    ours = frozen.steps(0, 1).host()
    theirs = all_trained.steps(0, 1).host()
    assert largest_difference(ours.params["Dense_1"], theirs.params["Dense_1"]) < 1e-7
    assert same_bits(ours.frozen["Dense_0"], before.frozen["Dense_0"])
    assert ours.params["Dense_0"] == {"bias": None, "kernel": None}
    assert largest_difference(ours.params["Dense_1"], before.params["Dense_1"]) > 1e-4
    assert largest_difference(ours.frozen["Dense_0"], theirs.params["Dense_0"]) > 1e-4


def test_nothing_is_sent_of_frozen_parameters():
    setup = load(FREEZE)
    assert setup.traffic.bytes_per_worker == 2 * 7 / 8 * 4 * (16 * 10 + 10)
    assert load().traffic.bytes_per_worker == 2 * 7 / 8 * 4 * (64 * 16 + 16 + 16 * 10 + 10)


UPDATES = keys("reducer_on=updates ema_decay=None")
WAYS = {
    "adasum": ("--config.reducer.name=adasum", *UPDATES),
    "clipped": keys("clip_norm=0.5 optimizer.name=adamw optimizer.learning_rate=0.01"),
    "gossip": ("--config.reducer.name=gossip", *UPDATES),
    "streaming": (*keys("reducer.name=local_sgd reducer.every_steps=4 reducer.mix=0.5"), *UPDATES),
    "asynchronous": keys("server.name=asynchronous arrivals.name=lognormal"),
    "decentralised": keys("server.name=decentralised optimizer.momentum=None arrivals.name=lognormal ema_decay=None"),
    "encoded": ("--config.communication.name=top_k",),
    "dispatched": ("--config.lanes=dispatched",),
    "shard_map": ("--config.mapping=shard_map",),
    "scaled": ("--config.loss_scaling.name=dynamic",),
    "micro_batches": ("--config.accumulation.count=2",),
    "local_steps": (*keys("accumulation.name=local_steps accumulation.count=2"), *UPDATES),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_of_training_leaves_them(name, tmp_path):
    assert run(tmp_path, FREEZE, *WAYS[name]) == 0
    ended = end_of(tmp_path, FREEZE, *WAYS[name])
    setup = load(FREEZE, *WAYS[name])
    begun = setup.init_worker()
    assert same_bits(ended.frozen, jax.device_get(begun.frozen))
    losses = [record["loss"] for record in records(tmp_path)]
    assert np.mean(losses[-3:]) < losses[0]
    whole = restore_params(tmp_path, checkpoint="latest")
    assert same_bits(whole["Dense_0"], ended.frozen["Dense_0"]) and jax.tree.structure(whole) == jax.tree.structure(
        join(ended.params, ended.frozen)
    )


def test_a_run_with_frozen_parameters_begins_and_is_begun_with(first, tmp_path):
    """Pretrained, then a part of it trained, then all of it; and each run goes on where it stopped."""
    begins = (f"--config.init_from={first}", FREEZE)
    assert run(tmp_path / "second", *begins) == 0 == run(tmp_path / "second", *begins)
    kept = restore_params(first)["Dense_0"]
    assert same_bits(end_of(tmp_path / "second", *begins).frozen["Dense_0"], kept)
    setup = load(f"--config.init_from={tmp_path}/second")
    begun = setup.init_worker(initial_of(setup, f"{tmp_path}/second")).params
    assert same_bits(begun, restore_params(tmp_path / "second", checkpoint="latest"))
    assert run(tmp_path / "second", *begins, "--evaluate_only") == 0
