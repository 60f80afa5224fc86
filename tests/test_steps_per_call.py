"""Several steps of one call: which steps a call takes, and that nothing else depends on it."""

import functools
import itertools
import json
import signal

import jax
import numpy as np
import pytest

import runs
from parallel import resolve_steps_per_call
from tests.grid import each
from tests.in_process import keys
from tests.stepper import Stepper, after_each_call, largest_difference, same_bits, setup_of
from tests.test_async_training import RULED
from tests.test_async_training import run as run_asynchronously
from tests.test_nonfinite import BAD_BATCH, KERNEL, command, error_line, poison, records, state_at
from tests.test_train import assert_same_run, digits, final_state, uninterrupted
from tests.test_train import command as train_digits
from training.step_plan import StepPlan, plan_calls, synchronous_waves

assert poison and uninterrupted  # fixtures


# ---- which steps a call takes ------------------------------------------------------------------------------------


def plans(first, last, *, size, stops=(100, 100)):
    waves = synchronous_waves(first, last, num_workers=2)
    return list(plan_calls(waves, steps_per_call=size, num_steps=last, eval_every=stops[0], checkpoint_every=stops[1]))


def sizes(first, last, *, size, stops=(100, 100)):
    found = plans(first, last, size=size, stops=stops)
    assert [wave.steps.start for plan in found for wave in plan.waves] == list(range(first + 1, last + 1))
    return [len(plan.waves) for plan in found]


@pytest.mark.parametrize("size", [1, 2, 4, 7])
@pytest.mark.parametrize("stops", [(10, 10), (6, 10), (4, 100), (100, 100)])
def test_no_call_crosses_a_stop_and_all_others_are_full(size, stops):
    found = sizes(0, 50, size=size, stops=stops)
    ends = np.cumsum(found)
    stopped = {end for stop in stops for end in range(stop, 51, stop)} | {50}
    assert stopped <= set(ends)
    assert {count for count, end in zip(found, ends, strict=True) if end not in stopped} <= {size}


def test_evaluations_and_checkpoints_follow_their_steps():
    found = plans(0, 50, size=4, stops=(6, 10))
    assert [plan.last_step for plan in found if plan.evaluate] == [6, 12, 18, 24, 30, 36, 42, 48, 50]
    assert [plan.last_step for plan in found if plan.checkpoint] == [10, 20, 30, 40, 50]
    assert [plan.last_step for plan in found if plan.is_last] == [50]


@pytest.mark.parametrize("size", [2, 4, 7])
def test_after_any_call_the_following_ones_are_the_same(size):
    whole = sizes(0, 50, size=size, stops=(6, 10))
    for number, end in enumerate(np.cumsum(whole), start=1):
        assert sizes(int(end), 50, size=size, stops=(6, 10)) == whole[number:]


def test_how_many_where_it_is_left_open():
    def resolve(platform, *, asked=None, lanes="auto", placement="device"):
        return resolve_steps_per_call(asked, platform=platform, lanes=lanes, placement=placement)

    assert [resolve("gpu"), resolve("tpu"), resolve("cpu")] == [8, 8, 1]
    assert resolve("gpu", lanes="dispatched") == resolve("gpu", placement="stream") == 1
    assert resolve("cpu", asked=3) == resolve("gpu", asked=3, placement="stream") == 3
    with pytest.raises(ValueError, match="steps_per_dispatch=3: must be 1"):
        resolve("gpu", asked=3, lanes="dispatched")


# ---- the step ----------------------------------------------------------------------------------------------------

K = 3
PROGRAMS = {
    "mean": (),
    "adasum": keys("reducer.name=adasum reducer_on=updates"),
    "streamed": keys("data.placement=stream"),
    "waves": keys("server.name=asynchronous arrivals.name=shifted_exponential"),
}


@pytest.mark.parametrize(
    ("name", "lift", "num_devices"),
    each(
        PROGRAMS,
        ["pmap", "shard_map"],
        [4, 1],
        quick={("mean", "shard_map", 4), ("streamed", "pmap", 4), ("waves", "shard_map", 1)},
    ),
)
def test_a_call_of_several_steps_is_those_steps(name, lift, num_devices, compilations):
    setup = setup_of(*PROGRAMS[name], f"--config.mapping={lift}", "--config.model.hidden_sizes=(16,)", train_steps=100)
    alone, together = (Stepper(setup, num_devices=num_devices, steps_per_call=size) for size in (1, K))
    measured = together.calls(1)
    before = len(compilations)
    measured += together.calls(3)
    assert len(compilations) == before
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(near, alone.calls(4 * K), measured)
    assert largest_difference(alone.host(), together.host()) < 1e-6
    assert together.host().step >= 4 * K


@pytest.mark.parametrize("name", ["mean", "waves"])
def test_one_program_takes_any_number_of_steps_with_the_same_bits(name, compilations):
    """Eight waves as calls of 3, 3, 2 and of 1, 2, 3, 2: a call that is not full has the program of one that is."""
    setup = setup_of(*PROGRAMS[name], "--config.model.hidden_sizes=(16,)", train_steps=100)
    waves = [wave for plan in itertools.islice(setup.plans(0, steps_per_call=1), 8) for wave in plan.waves]
    runs = []
    for counts in ((3, 3, 2), (1, 2, 3, 2)):
        run = Stepper(setup, num_devices=2, steps_per_call=K)
        measured = []
        rest = iter(waves)
        measured += run.call(StepPlan(tuple(itertools.islice(rest, counts[0]))))
        before = len(compilations)
        for count in counts[1:]:
            measured += run.call(StepPlan(tuple(itertools.islice(rest, count))))
        assert len(compilations) == before
        runs.append((measured, run.host()))
    assert len(runs[0][0]) == 8 and same_bits(*runs)


# ---- whole runs --------------------------------------------------------------------------------------------------


def test_a_run_is_the_same_and_goes_on_from_a_signal(uninterrupted, tmp_path, monkeypatch, capsys):
    asked = []

    def count_and_signal(state, num_steps):
        asked.append(num_steps)
        if sum(asked) == 24:
            signal.raise_signal(signal.SIGTERM)

    after_each_call(monkeypatch, count_and_signal)
    several = digits(tmp_path, "--steps_per_dispatch=4")
    assert train_digits(*several) == 128 + signal.SIGTERM
    assert final_state(tmp_path)[0] == 24
    assert train_digits(*several) == 0
    assert "going on at step 24" in capsys.readouterr().err
    # Evaluations at multiples of 25, checkpoints of 20: 20 | 24 25 | 29 33 37 40 | 44 48 50 | ...
    assert asked[:13] == [4, 4, 4, 4, 4, 4, 1, 4, 4, 4, 3, 4, 4] and sum(asked) == 120
    assert_same_run(tmp_path, uninterrupted)


def test_a_run_with_a_remainder_compiles_no_more(tmp_path, compilations):
    counts = []
    for number, num_steps in enumerate((8, 8, 11)):  # the first run also compiles what later ones find in memory
        before = len(compilations)
        short = keys(f"train_steps={num_steps} eval_every_steps=100 checkpoint_every_steps=100")
        assert train_digits(*digits(tmp_path / str(number), *short, "--steps_per_dispatch=4")) == 0
        counts.append(len(compilations) - before)
    assert counts[1] == counts[2] > 0


def test_a_number_that_is_not_finite_stops_within_a_call(poison, tmp_path, capsys):
    poison(BAD_BATCH)  # of step 13, the third of a call
    lines = []
    for name, size in (("one", 1), ("several", 5)):
        assert command(tmp_path / name, f"--steps_per_dispatch={size}", "--config.checkpoint_every_steps=24") == 1
        lines.append(error_line(capsys))
    assert lines[0] == lines[1]
    assert lines[0].startswith("step 13: gradient of worker 5")
    assert KERNEL in lines[0]
    assert records(tmp_path / "one") == records(tmp_path / "several")
    assert same_bits(*(state_at(tmp_path / name, 12) for name in ("one", "several")))


def test_a_step_skipped_within_a_call_is_reported(poison, tmp_path, capsys):
    poison(BAD_BATCH)
    assert command(tmp_path, "--steps_per_dispatch=5", "--config.on_nonfinite=skip") == 0
    assert error_line(capsys).startswith("step 13: gradient of worker 5")
    assert [r["step"] for r in records(tmp_path) if r["skipped"]] == [13]


def test_a_run_in_waves_is_the_same(tmp_path):
    for name, size in (("one", 1), ("several", 3)):
        assert run_asynchronously(tmp_path / name, *RULED, f"--steps_per_dispatch={size}") == 0
    assert records(tmp_path / "one") == records(tmp_path / "several")
    assert records(tmp_path / "one", "eval") == records(tmp_path / "several", "eval")


def test_rates_are_of_whole_calls(tmp_path):
    assert train_digits(*digits(tmp_path, "--steps_per_dispatch=5", "--config.log_every_steps=1")) == 0
    rates = [r["steps_per_second"] for r in runs.read(tmp_path / "metrics.jsonl") if r["kind"] == "train"]
    assert len(rates) == 120
    assert all(len(set(rates[i : i + 5])) == 1 for i in range(0, 20, 5))


def test_more_than_lie_between_two_stops_are_as_many(tmp_path, capsys):
    seldom = keys("eval_every_steps=40 checkpoint_every_steps=20 train_steps=40")
    assert train_digits(*digits(tmp_path, "--steps_per_dispatch=1000", *seldom)) == 0
    assert json.loads((tmp_path / "DONE").read_text())["steps_per_dispatch"] == 20
