"""Lanes in groups: the same numbers as all at once, idle groups are skipped, and the memory says how many fit."""

import json
import re
import signal
import types

import jax
import numpy as np
import pytest

import runs
import train
from configs import flags
from data.assumed import make_or_assume
from tests.grid import each
from tests.hlo import operations
from tests.in_process import keys
from tests.stepper import Stepper, after_each_call, largest_difference, setup_of
from tests.test_train import command, digits
from training import device_memory, dry_run
from training.setup import make_setup

SERVED = keys("server.name=asynchronous arrivals.name=shifted_exponential")
CASES = {
    "dropout": (),
    "momentum of each": keys("reducer.name=adasum reducer_on=updates"),
    "statistics": keys("model.name=tests.stepper:Normalised"),
    "convolutions": keys("model.name=lenet5"),
    "waves": SERVED,
}


# ---- the numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "at_once", "steps_per_call"),
    each(
        CASES,
        [1, 3, 4],
        [1, 2],
        quick={
            ("dropout", 3, 1),
            ("statistics", 3, 2),
            ("waves", 1, 2),
        },
    ),
)
def test_groups_compute_what_all_lanes_at_once_do(name, at_once, steps_per_call):
    """Eight lanes: groups of 3 leave a remainder."""
    small = (*keys("lanes=vmap mapping=shard_map"), *CASES[name])
    one = Stepper(setup_of(*small), num_devices=1)
    setup = setup_of(*small, f"--config.lanes_at_once={at_once}")
    groups = Stepper(setup, num_devices=1, steps_per_call=steps_per_call)
    expected = one.calls(4)
    found = groups.calls(4 // steps_per_call)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5), expected, found)
    one, groups = one.host(), groups.host()
    assert largest_difference(one, groups) < 1e-5
    for leaf in jax.tree.leaves(groups.worker):  # each worker has its own
        assert leaf.shape[0] == 8


# ---- the program -------------------------------------------------------------------------------------------------


def lowered_for_cuda(*overrides):
    setup = setup_of(*keys("model.name=lenet5 mapping=shard_map"), *overrides)
    run = Stepper(setup, num_devices=1)
    shapes = dry_run.call_shapes(dry_run.step_inputs(setup, run.layout), num_devices=1)
    return run.step.lower(*shapes, platforms=("cuda",))["step"][0]


def test_a_lane_without_work_is_skipped():
    """Every convolution for an accelerator is of one lane, inside of the one conditional on that lane's work."""
    program = lowered_for_cuda(*SERVED, "--config.lanes_at_once=1")
    found = operations(program, inside="stablehlo.case")
    assert [name for name, _ in found].count("stablehlo.case") == 1
    convolutions = [within for name, within in found if name == "stablehlo.convolution"]
    assert len(convolutions) >= 4 and all(convolutions)
    assert set(re.findall(r"(?:feature|batch)_group_count = (\d+)", program.as_text())) == {"1"}
    at_once = operations(lowered_for_cuda(*SERVED, "--config.lanes=vmap"), inside="stablehlo.case")
    assert not any(within for name, within in at_once if name == "stablehlo.convolution")


def test_only_one_group_has_activations():
    """With batches so large that activations are most of the memory, groups of 2 of 8 lanes take less than half."""
    large = keys("batch_size_per_worker=256 model.hidden_sizes=(64,64)")
    needed = []
    for more in ((), ("--config.lanes_at_once=2",)):
        run = Stepper(setup_of(*large, *more), num_devices=1)
        program, _ = run.step.lower(*run.shapes())["step"]
        needed.append(program.compile().memory_analysis().temp_size_in_bytes)
    assert needed[1] < 0.5 * needed[0]


# ---- how many ----------------------------------------------------------------------------------------------------


def resolve(setup, *, limit=None, platform="gpu", lanes=8):
    """How many lanes at once on a device with so much memory."""
    memory = None if limit is None else {"bytes_limit": limit}
    device = types.SimpleNamespace(platform=platform, memory_stats=lambda: memory)
    return device_memory.resolve_lanes_at_once(setup, types.SimpleNamespace(lanes=lanes, own_devices=[device]))


def test_the_number_follows_the_memory_and_the_batch():
    small = setup_of()
    large = setup_of("--config.batch_size_per_worker=64")
    assert device_memory.residual_bytes(large) > 10 * device_memory.residual_bytes(small)
    limits = [10**5, 10**6, 3 * 10**6, 10**7, 10**9]
    for setup in (small, large):
        found = [resolve(setup, limit=limit) for limit in limits]
        assert found == sorted(found) and found[0] == 1 and found[-1] == 8
    assert any(resolve(small, limit=limit) > resolve(large, limit=limit) for limit in limits)


def test_recomputed_blocks_need_less():
    """A model that recomputes each block keeps only the activations between blocks."""

    def kept(remat):
        config = flags.load("configs/shakespeare.py", keys(f"model.remat={remat}"))
        return device_memory.residual_bytes(make_setup(config, open_data=make_or_assume))

    assert kept("blocks") < 0.5 * kept("none")


def test_who_decides():
    assert resolve(setup_of()) is None and resolve(setup_of(), platform="cpu") is None
    assert resolve(setup_of("--config.lanes_at_once=3"), limit=10**9) == 3
    assert resolve(setup_of(), limit=1, lanes=1) is None
    assert resolve(setup_of(*SERVED), limit=10**9) == resolve(setup_of(*SERVED)) == 1
    assert resolve(setup_of(*SERVED), platform="cpu") is None
    assert resolve(setup_of(*SERVED, "--config.lanes=vmap"), limit=10**9) == 8
    assert resolve(setup_of("--config.lanes=dispatched"), limit=10**9) is None


def test_a_dry_run_says_how_many():
    assert "lanes at once" not in dry_run.describe(setup_of(), num_devices=1)
    said = dry_run.describe(setup_of("--config.lanes_at_once=3"), num_devices=1)
    assert re.search(r"lanes at once, at most +3\n", said)


# ---- whole runs --------------------------------------------------------------------------------------------------


def test_a_run_keeps_the_number_of_its_first_start(tmp_path, monkeypatch):
    seen, mapping = [], train.worker_mapping

    def noted(*arguments, lanes_at_once, **options):
        seen.append(lanes_at_once)
        return mapping(*arguments, lanes_at_once=lanes_at_once, **options)

    monkeypatch.setattr(train, "worker_mapping", noted)
    short = digits(tmp_path, "--num_devices=2", "--config.train_steps=4")
    with monkeypatch.context() as patched:
        after_each_call(patched, lambda state, num_steps: signal.raise_signal(signal.SIGTERM))
        assert command(*short, "--config.lanes_at_once=3") == 128 + signal.SIGTERM
        assert command(*short) == 128 + signal.SIGTERM
        assert command(*short, "--config.lanes_at_once=2") == 128 + signal.SIGTERM
    assert command(*short) == 0
    assert seen == [3, 3, 2, 3]
    starts = json.loads((tmp_path / "env.json").read_text())["starts"]
    assert [start["resolved"] for start in starts] == [{"lanes_at_once": 3}] * 4


def test_the_folder_asks_once(tmp_path):
    for value in (5, 7):
        with runs.open_run(str(tmp_path), {"seed": 0}, resolve=lambda: {"lanes_at_once": value}) as folder:  # noqa: B023
            assert folder.resolved == {"lanes_at_once": 5}
    env = json.loads((tmp_path / "env.json").read_text())
    env["starts"][1]["resolved"] = {"lanes_at_once": "many"}
    (tmp_path / "env.json").write_text(json.dumps(env))
    with pytest.raises(ValueError, match=r"env\.json is damaged"):
        runs.open_run(str(tmp_path), {"seed": 0})
