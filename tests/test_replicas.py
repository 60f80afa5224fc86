"""The devices' copies of the shared state are compared at the first call, and as often as the config asks."""

import jax
import numpy as np
import pytest

from parallel import Layout
from tests import test_own_mistakes as own_mistakes
from tests.in_process import DIGITS, train_py
from tests.own_parts import folder
from training.steps import replicas
from training.train_state import STATE_AXES, TrainState

__all__ = ["folder"]  # a fixture
PARTS = f"{own_mistakes.PARTS}\nlanes_alone = by(lambda u, s, p, axis: (mean(u, 'lane'), s))\n"

SHORT = ("log_every_steps=1", "eval_every_steps=4", "checkpoint_every_steps=4", "train_steps=4", "num_workers=4")
LENGTH = [f"--config.{key}" for key in SHORT]


def command(*arguments: str, config: str = "config.py:smoke") -> int:
    return train_py(f"--config={config}", *LENGTH, *arguments)


def test_a_reducer_that_forgets_the_devices_is_refused_at_the_first_step(folder, capsys):
    own = "--config.reducer.name=parts:lanes_alone"
    assert command(own, "--num_devices=2", "--workdir=run") == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("config.reducer.name='parts:lanes_alone': your reducer") and "Traceback" not in said, (
        said
    )
    assert "params[" in said[-1] and "on device 1 of process 0, at step 1" in said[-1]
    assert not (folder / "run" / "DONE").exists()
    assert command(own, "--num_devices=1", "--workdir=one") == 0  # where it reduces over all workers


def part(state: TrainState) -> TrainState:
    """The state with one bit of one parameter flipped on device 1."""
    leaves, tree = jax.tree.flatten(state.params)
    flipped = np.array(leaves[0])
    flipped.view(np.uint32).reshape(len(flipped), -1)[1, 0] ^= 1
    leaves[0] = jax.device_put(flipped, leaves[0].sharding)
    return state._replace(params=jax.tree.unflatten(tree, leaves))


@pytest.mark.parametrize(("every", "code"), [("2", 3), ("None", 0)])
def test_copies_that_part_later_end_the_run(every, code, tmp_path, monkeypatch, capsys):
    """A cosmic ray: the step after which one bit of one device's parameters is another one is the second."""
    compare, calls = replicas.first_difference, []

    def compare_parted(state, *where):
        calls.append(None)
        return compare(part(state) if len(calls) == 2 else state, *where)

    monkeypatch.setattr(replicas, "first_difference", compare_parted)
    digits = f"{DIGITS}:smoke"
    options = ("--num_devices=2", f"--workdir={tmp_path}/run", f"--config.check_replicas_every_steps={every}")
    assert command(*options, config=digits) == code
    said = capsys.readouterr().err.splitlines()[-1]
    assert (code == 0) == (len(calls) == 1)
    if code:
        assert "params[" in said and "on device 1 of process 0, at step 2" in said, said
        assert command(*options, config=digits) == 0  # the key is no part of the run's identity


def state_of(layout: Layout, **fields) -> TrainState:
    return layout.put(TrainState(**(dict.fromkeys(TrainState._fields) | fields)), STATE_AXES)


def test_bits_are_compared_and_not_numbers():
    """NaN is equal to itself, -0 is not 0, and what is each worker's own may differ; of all dtypes."""
    layout = Layout.of(4, num_devices=4)
    leaves = {
        "nan": np.full(3, np.nan, np.float32),
        "none": np.zeros((2, 0), np.float32),
        "half": np.zeros((), jax.numpy.bfloat16),
        "yes": np.array(True),
    }
    state = state_of(layout, params=leaves, reducer_state=np.arange(4.0, dtype=np.float32))
    assert replicas.first_difference(state, layout) is None
    zeros = np.zeros((4, 2), np.float32)
    zeros[2, 1] = -0.0
    state = state._replace(opt_state={"v": jax.device_put(zeros, layout.sharding)})
    assert replicas.first_difference(state, layout) == "opt_state['v'] on device 2 of process 0"


@pytest.mark.parametrize(
    "mode",
    [
        ["reducer.name=mean", "mapping=shard_map"],
        ["reducer.name=local_sgd", "reducer.every_steps=2", "reducer_on=updates"],
        ["reducer.name=mean", "server.name=asynchronous", "arrivals.name=constant"],
        [
            "reducer.name=mean",
            "server.name=decentralised",
            "arrivals.name=constant",
            "optimizer.momentum=None",
            "ema_decay=None",
        ],
    ],
    ids=lambda mode: mode[-1],
)
def test_every_mode_keeps_its_copies_equal(mode, tmp_path, capsys):
    options = [f"--config.{key}" for key in mode]
    every = ("--config.check_replicas_every_steps=1", f"--workdir={tmp_path}/run", "--num_devices=2")
    assert command(*options, *every, config=f"{DIGITS}:smoke") == 0, capsys.readouterr().err


def test_the_comparison_compiles_nothing(tmp_path):
    layout = Layout.of(4, num_devices=4)
    state = state_of(layout, params={"w": np.ones(5, np.float32)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiles"))
        patch.setattr(jax, "pmap", lambda *_, **__: pytest.fail("compiles"))
        assert replicas.first_difference(state, layout) is None
