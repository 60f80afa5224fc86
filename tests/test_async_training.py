"""Asynchronous runs of the real trainer: limits that are plain SGD, exact resume, records, refusals."""

import itertools
import os
import signal

import jax
import numpy as np
import pytest

import asynchronous
from runs.errors import ConfigError
from tests.in_process import keys, train_digits
from tests.stepper import (
    Stepper,
    after_each_call,
    ask_to_stop,
    checkpoint_of,
    crash,
    digits_setup,
    end_and_go_on,
    largest_difference,
    records,
    same_bits,
    setup_of,
)
from training import dry_run

BASE = keys("""
    model.hidden_sizes=(16,)
    num_workers=4
    batch_size_per_worker=8
    optimizer.learning_rate=0.02
    schedule.name=constant
    train_steps=48
    log_every_steps=1
    eval_every_steps=12
    checkpoint_every_steps=16
""")
CONSTANT = keys("server.name=asynchronous arrivals.name=constant")
EXPONENTIAL = keys("server.name=asynchronous arrivals.name=shifted_exponential")


def load(*more):
    return digits_setup(*BASE, *more)


def run(workdir, *more):
    """Trains; returns the exit code."""
    return train_digits(workdir, *BASE, *more)


def final_state(workdir, *more):
    return checkpoint_of(workdir, load(*more))[1]["state"]


@pytest.fixture(scope="module")
def exponential(tmp_path_factory):
    """A run on 2 devices, with clipping and a rule."""
    workdir = tmp_path_factory.mktemp("exponential")
    assert run(workdir, *RULED) == 0
    return workdir


RULED = (*EXPONENTIAL, *keys("clip_norm=1.0 server.rule={'name':'delay_adaptive','bound':2}"))


IS_UNOPTIMIZED = "--xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", "")  # as in `make test`


def test_one_worker_is_plain_sgd(tmp_path):
    """Bit for bit, unless LLVM may contract multiplications and additions, in two programs at other places."""
    one = keys("num_workers=1 train_steps=20")
    assert run(tmp_path / "plain", *one, "--num_devices=1") == 0
    assert run(tmp_path / "async", *one, *CONSTANT, "--num_devices=1") == 0
    plain = final_state(tmp_path / "plain", *one)
    found = final_state(tmp_path / "async", *one, *CONSTANT)
    for part in ("params", "opt_state", "ema", "step"):
        one, other = getattr(plain, part), getattr(found, part)
        assert largest_difference(one, other) <= 1e-6, part
        assert same_bits(one, other) or not IS_UNOPTIMIZED, part
    shown = ("step", "epoch", "examples", "learning_rate", "accuracy")
    for ours, theirs in zip(records(tmp_path / "async"), records(tmp_path / "plain"), strict=True):
        assert {k: ours[k] for k in shown} == {k: theirs[k] for k in shown}
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert ours["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-5)
        assert ours["staleness"] == 0


@pytest.mark.parametrize(
    ("options", "reducer", "num_updates", "is_same"),
    [
        ({"staleness_bound": 0}, "sum", 48, True),
        ({"staleness_bound": 1}, "sum", 48, False),
        ({"staleness_bound": 0, "gradients_per_update": 8}, "mean", 6, True),
    ],
)
def test_a_round_without_staleness_is_one_synchronous_step(options, reducer, num_updates, is_same):
    plain = keys("model.name=softmax optimizer.momentum=None ema_decay=None schedule.name=constant")
    server = [f"--config.server.{key}={value}" for key, value in options.items()]
    setup = setup_of(*plain, *EXPONENTIAL, *server, train_steps=num_updates)
    found = Stepper(setup, num_devices=2, lanes="vmap")
    while found.calls(1):
        pass
    expected = Stepper(setup_of(*plain, f"--config.reducer.name={reducer}"), num_devices=2).steps(0, 6)
    assert (largest_difference(found.params(), expected.params()) < 1e-6) == is_same
    assert largest_difference(found.params(), setup.init_worker().params) > 1e-2


def test_equal_workers_and_their_records(tmp_path):
    assert run(tmp_path, *CONSTANT, "--config.arrivals.seconds=2.0") == 0
    found = records(tmp_path)
    assert [r["step"] for r in found] == list(range(1, 49))
    assert [r["staleness"] for r in found] == [0, 1, 2] + [3] * 45  # exactly n - 1 after warm-up
    assert [r["simulated_seconds"] for r in found] == [2.0 * (1 + i // 4) for i in range(48)]
    assert [r["examples"] for r in found] == [8 * (1 + i) for i in range(48)]  # one gradient an update
    assert all(r["contributors"] == 1 for r in found)
    assert [r["step"] for r in records(tmp_path, "eval")] == [12, 24, 36, 48]
    lines = (tmp_path / "staleness.csv").read_text().splitlines()
    # Worker w's first gradient is w updates stale, all others 3.
    assert lines == ["worker,staleness,gradients", "0,0,1", "0,3,11", "1,1,1", "1,3,11", "2,2,1", "2,3,11", "3,3,12"]


@pytest.mark.parametrize(
    ("num_devices", "lanes"),
    [
        (1, "dispatched"),
        (4, "auto"),
        (1, "vmap"),
    ],
)
def test_layouts_agree(num_devices, lanes, exponential, tmp_path):
    assert run(tmp_path, *RULED, f"--num_devices={num_devices}", f"--config.lanes={lanes}") == 0
    params = [final_state(workdir, *RULED).params for workdir in (exponential, tmp_path)]
    assert largest_difference(*params) < 1e-6
    first = records(exponential)[0]
    last = records(exponential)[-1]
    assert last["loss"] < first["loss"]
    for ours, theirs in zip(records(tmp_path), records(exponential), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert (ours["staleness"], ours["simulated_seconds"]) == (theirs["staleness"], theirs["simulated_seconds"])


def test_waves_equal_one_at_a_time_bit_for_bit(exponential, tmp_path):
    """An evaluation after each update cuts waves down to single gradients."""
    single = (*RULED, "--config.eval_every_steps=1")
    for overrides, is_cut in ((RULED, False), (single, True)):
        plans = list(load(*overrides).plans(0, steps_per_call=1))
        assert (len(plans) == 48) == is_cut
    assert run(tmp_path, *single) == 0
    assert same_bits(final_state(tmp_path, *RULED), final_state(exponential, *RULED))
    assert records(tmp_path) == records(exponential)


@pytest.mark.parametrize(
    ("after", "end", "placement", "goes_on_at"),
    [
        (22, crash, "stream", "going on at step 16"),  # as after a SIGKILL: from the last checkpoint
        (20, ask_to_stop, "device", "going on at step 2"),  # where the wave ended
        (5, ask_to_stop, "stream", "going on at step"),
    ],
)
def test_ended_and_gone_on_is_bit_for_bit_the_same(after, end, placement, goes_on_at, exponential, tmp_path, capsys):
    command = (*RULED, f"--config.data.placement={placement}")
    end_and_go_on(after, lambda: run(tmp_path, *command), end)
    said = capsys.readouterr()
    assert goes_on_at in said.err and ("stopped by SIGTERM at step" in said.out) == (end is ask_to_stop)
    assert same_bits(final_state(tmp_path, *RULED), final_state(exponential, *RULED))
    assert records(tmp_path) == records(exponential)
    assert records(tmp_path, "eval") == records(exponential, "eval")


def test_a_run_stops_only_where_no_gradient_waits_for_others_of_its_update(tmp_path, monkeypatch):
    soft = (*EXPONENTIAL, *keys("server.gradients_per_update=3 train_steps=12"))
    plans = list(load(*soft).plans(0, steps_per_call=1))
    asked = next(place for place, plan in enumerate(plans) if place > 1 and not plan.none_pending)
    whole = tmp_path / "whole"
    stopped = tmp_path / "stopped"
    calls = itertools.count()
    assert run(whole, *soft) == 0
    with monkeypatch.context() as patch:
        after_each_call(patch, lambda state, k: ask_to_stop() if next(calls) == asked else None)
        assert run(stopped, *soft) == 128 + signal.SIGTERM
    assert run(stopped, *soft) == 0
    assert same_bits(*(final_state(workdir, *soft) for workdir in (stopped, whole)))
    assert records(stopped) == records(whole)


def test_gradients_that_the_server_drops_are_no_used_examples(tmp_path):
    dropping = keys("""
        server.rule={'name':'threshold','max_staleness':1}
        server.gradients_per_update=3
        train_steps=24
    """)
    soft = (*EXPONENTIAL, *dropping)
    kept = np.concatenate([events.staleness <= 1 for events in load(*soft).mode.events()]).reshape(24, 3).sum(1)
    assert {1, 2} & {*kept.tolist()}  # some of an update
    assert run(tmp_path, *soft) == 0
    found = records(tmp_path)
    assert [r["contributors"] for r in found] == kept.tolist()
    assert [r["examples"] for r in found] == (8 * kept.cumsum()).tolist()
    assert [r["dropped_examples"] for r in found] == (8 * (3 - kept).cumsum()).tolist()
    of_each = [int(line.split(",")[2]) for line in (tmp_path / "staleness.csv").read_text().splitlines()[1:]]
    assert sum(of_each) == 24 * 3
    state = final_state(tmp_path, *soft)
    assert int(state.step) == 24 and int(state.server.pending.num_gradients) == 0


def test_dry_run_says_what_moves():
    setup = load(*RULED)
    said = dry_run.describe(setup, num_devices=2)
    params = setup.worker_shapes.params
    count = sum(x.size for x in jax.tree.leaves(params))
    assert setup.traffic == asynchronous.traffic(params, num_workers=4, gradients_per_update=1)
    assert f"{4 * count / 4:,.0f}" in said and "1 push, 1 read" in said and "FLOP" in said
    assert setup.examples_per_step == 8


DECENTRALISED = (*EXPONENTIAL, *keys("server.name=decentralised optimizer.momentum=None ema_decay=None"))


@pytest.mark.parametrize(("served", "num_devices"), [(EXPONENTIAL, 4), (DECENTRALISED, 2)])
def test_a_worker_without_a_gradient_keeps_its_statistics(served, num_devices):
    """A worker whose gradient is in the wave takes the statistics of its own batch."""
    setup = setup_of("--config.model.name=tests.stepper:Normalised", *served)
    stepper = Stepper(setup, num_devices=num_devices, lanes="vmap")
    seen = set()
    means = lambda: stepper.host().worker.model_state["batch_stats"]["BatchNorm_0"]["mean"]  # noqa: E731
    for plan in itertools.islice(setup.plans(0, steps_per_call=1), 8):
        before, _ = means(), stepper.calls(1)
        moved = (means() != before).any(axis=1)
        np.testing.assert_array_equal(moved, plan.inputs["position"][0] >= 0)
        seen |= set(moved.tolist())
    assert seen == {True, False}


def test_a_long_run_is_not_walked_through_before_it_begins():
    """The suite's limit of time ends a pass over 2 10^9 events."""
    load(*EXPONENTIAL, "--config.train_steps=2000000000").mode.check_durations()


def test_a_task_that_takes_no_time_late_in_a_run_is_refused_as_before_it(monkeypatch):
    monkeypatch.setattr("training.modes._CHECKED_EVENTS", 8)
    setup = load(*CONSTANT, *keys("arrivals.name=lognormal arrivals.sigma=26 train_steps=40000"))
    setup.mode.check_durations()
    with pytest.raises(ConfigError, match=r"^config\.arrivals\.name='lognormal': gives seconds"):
        for _ in setup.plans(0, steps_per_call=8):
            pass
