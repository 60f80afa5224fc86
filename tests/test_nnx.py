"""Models of one's own that are written with flax.nnx: runs, resumes, layouts, names, refusals."""

import re

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import models
from configs import flags
from reducers.leaves import leaf_names
from tests.in_process import keys, train_py
from tests.own_parts import folder
from tests.stepper import (
    Stepper,
    checkpoint_of,
    largest_difference,
    records,
    same_bits,
    train_whole_and_in_parts,
    without_clock,
)
from tests.test_docs import FILES
from training.setup import make_setup
from training.train_state import to_devices

__all__ = ["folder"]  # a fixture

PARTS = (
    FILES["nets.py"]
    + """

from flax import linen as nn
from jax import numpy as jnp
from models.layers import batch_parts

class Twin(nn.Module):
    '''The net of the page, as a linen module.'''
    num_classes: int
    width: int = 64

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        x = nn.Dense(self.width, name="hidden")(image.reshape(len(image), -1))
        x = nn.BatchNorm(use_running_average=deterministic, name="norm")(x)
        return nn.Dense(self.num_classes, name="head")(nn.relu(x))

class Layers(nnx.Module):
    '''A list of layers, two places for dropout, and BatchNorm over the devices of a worker.'''
    def __init__(self, *, num_classes: int, rngs: nnx.Rngs):
        sizes = [64, 16, 16]
        self.layers = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in zip(sizes, sizes[1:])])
        self.drop = nnx.List([nnx.Dropout(0.5, rngs=rngs) for _ in sizes[1:]])
        self.norm = nnx.BatchNorm(16, axis_name=batch_parts.axis_name(), rngs=rngs)
        self.head = nnx.Linear(16, num_classes, rngs=rngs)

    def __call__(self, image):
        x = image.reshape(len(image), -1)
        for layer, drop in zip(self.layers, self.drop):
            x = drop(nnx.relu(layer(x)))
        return self.head(self.norm(x))

class Calls(nnx.Variable):
    pass

class Noise(nnx.Module):
    '''Two random numbers of streams of its own, the number of calls so far, and a constant.'''
    def __init__(self, *, num_classes: int, rngs: nnx.Rngs):
        self.one, self.other = rngs.noise.fork(), rngs.noise.fork()
        self.calls = Calls(jnp.zeros((), jnp.int32))
        self.offset = jnp.full(num_classes, 100.0)
        self.scale = nnx.Param(jnp.ones(num_classes))

    def __call__(self, image):
        self.calls[...] += 1
        drawn = jnp.stack([jax.random.uniform(stream()) for stream in (self.one, self.one, self.other)])
        return jnp.tile((self.offset + 0 * self.scale + jnp.resize(drawn, self.scale.shape))[None], (len(image), 1))

def make(*, num_classes: int, rngs, width: int = 8):
    return Net(num_classes=num_classes, width=width, rngs=rngs)

class NoRngs(nnx.Module):
    def __init__(self, *, num_classes: int):
        self.head = nnx.Linear(64, num_classes, rngs=nnx.Rngs(0))

class Unreadable(nnx.Module):
    def __init__(self, *, num_classes: "Missing", rngs):
        pass

def nothing(*, num_classes: int, rngs):
    return None

class Adds(Net):
    def __call__(self, image):
        self.seen = nnx.BatchStat(image.sum())
        return super().__call__(image)

class NamesAnAxis(Net):
    def __init__(self, *, num_classes: int, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, rngs=rngs)
        self.norm = nnx.BatchNorm(64, axis_name="device", rngs=rngs)

class TakesMore(Net):
    def __call__(self, image, mask):
        return super().__call__(image)

class Other(Net):
    def __call__(self, image):
        return super().__call__(image)[:, :3]
"""
)

SMALL = keys("num_workers=4 batch_size_per_worker=8 ema_decay=None")
LENGTHS = keys("train_steps=12 eval_every_steps=6 checkpoint_every_steps=6 log_every_steps=1")


def setup_of(name, *overrides):
    return make_setup(flags.load("config.py", [*SMALL, *LENGTHS, f"--config.model.name=parts:{name}", *overrides]))


# ---- a run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapping", ["pmap", "shard_map"])
def test_a_run_is_stopped_and_resumed_bit_for_bit(mapping, folder):
    own = keys(f"model.name=parts:Net model.dropout=0.5 mapping={mapping}")
    arguments = ("--config=config.py", "--num_devices=2", *SMALL, *LENGTHS, *own)
    train_whole_and_in_parts(arguments, folder, stop_after=4)
    setup = setup_of("Net", *own)
    (_, whole), (_, resumed) = (checkpoint_of(folder / name, setup) for name in ("whole", "parts"))
    assert same_bits(whole, resumed)
    assert without_clock(folder / "whole") == without_clock(folder / "parts")
    first, *_, last = records(folder / "whole")
    assert last["loss"] < first["loss"]
    mean = whole["state"].worker.model_state["batch_stats"]["norm"]["mean"]
    assert np.all(np.ptp(mean, axis=0) > 0), "each worker has statistics of its own"


def test_results_do_not_depend_on_the_layout(folder):
    """Dropout draws from the key of a worker and a step, whatever computes it, and however many steps a call takes."""
    drops = keys("model.dropout=0.5 num_workers=8")
    one = Stepper(setup_of("Net", *drops), num_devices=8).steps(0, 6)
    for options in ({"num_devices": 2}, {"num_devices": 1, "lanes": "vmap"}):
        other = Stepper(setup_of("Net", *drops), **options).steps(0, 6)
        assert largest_difference(one.params(), other.params()) < 1e-5
    several = Stepper(setup_of("Net", *drops), num_devices=2, steps_per_call=3)
    several.calls(2)
    assert largest_difference(one.params(), several.params()) < 1e-5
    kept = Stepper(setup_of("Net", *drops, "--config.model.dropout=0"), num_devices=8).steps(0, 6)
    assert largest_difference(one.params(), kept.params()) > 1e-3


@pytest.mark.parametrize("partition", ["none", "state", "parameters"])
def test_several_devices_compute_the_batch_of_a_worker(partition, folder):
    plain = keys("num_workers=2 mapping=shard_map optimizer.name=sgd optimizer.learning_rate=0.05")
    one = Stepper(setup_of("Layers", *plain), num_devices=2).steps(0, 4)
    node = keys(f"devices_per_worker=2 partition={partition}")
    other = Stepper(setup_of("Layers", *plain, *node), num_devices=4).steps(0, 4)
    assert largest_difference(one.params(), other.params()) < 1e-5


def test_it_does_what_the_same_linen_module_does(folder):
    one, twin = (
        Stepper(setup_of(name, "--config.model.width=16", *more), num_devices=2)
        for name, more in (("Net", ["--config.model.dropout=0"]), ("Twin", []))
    )
    assert jax.tree.structure(one.host()) == jax.tree.structure(twin.host())
    twin.state = to_devices(one.host(), twin.layout, twin.setup.state_axes)
    one.steps(0, 8)
    twin.steps(0, 8)
    assert one.metrics["loss"] == pytest.approx(twin.metrics["loss"], abs=1e-5)
    assert largest_difference(one.params(), twin.params()) < 1e-5
    assert one.evaluate()["loss"] == pytest.approx(twin.evaluate()["loss"], abs=1e-5)  # by running averages


# ---- variables, streams, names -----------------------------------------------------------------------------------


def test_names_are_those_of_nnx(folder):
    names = leaf_names(setup_of("Layers").params)
    assert {"layers/0/kernel", "layers/1/bias", "norm/scale", "head/bias"} <= set(names)
    frozen = leaf_names(setup_of("Layers", "--config.freeze=layers/0/*").params)
    assert set(names) - set(frozen) == {"layers/0/kernel", "layers/0/bias"}
    with pytest.raises(ValueError, match="matches no parameter"):
        setup_of("Layers", "--config.freeze=Dense_0/*")


def test_streams_begin_at_the_key_of_a_call(folder):
    setup_of("Noise")  # imports it
    model = models.make("parts:Noise", sizes={"num_classes": 3})
    image = jnp.zeros((1, 8, 8, 1))
    variables = model.init(jax.random.key(0), image)
    assert variables["Calls"]["calls"] == 0 and set(variables) == {"params", "Calls"}

    def call(seed):
        options = {"deterministic": False, "rngs": {"dropout": jax.random.key(seed)}, "mutable": ["Calls"]}
        outputs, changed = model.apply(variables, image, **options)
        assert changed["Calls"]["calls"] == 1
        return outputs - 100

    assert np.array_equal(call(1), call(1))
    draws = [*call(1).ravel().tolist(), *call(2).ravel().tolist()]
    assert len(set(draws)) == 6
    assert same_bits(*[model.apply(variables, image) for _ in range(2)])


def test_a_function_may_return_the_module(folder):
    assert setup_of("make", "--config.model.width=4").params["head"]["kernel"].shape == (4, 10)


def test_parameters_follow_from_the_seed(folder):
    one, same, other = (setup_of("Net", f"--config.seed={seed}").init_worker().params for seed in (0, 0, 1))
    assert same_bits(one, same) and not same_bits(one, other)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoRngs", "an nnx.Module needs a parameter rngs"),
        ("Unreadable", "has a signature that cannot be read .*Missing"),
        ("nothing", "must return an nnx.Module, not NoneType"),
        ("Adds", "model_state that have .*seen.* too"),
        ("NamesAnAxis", "names a worker axis"),
        ("TakesMore", "TypeError: .*'mask'"),
        ("Other", r"returns \(1, 3\), must be \(1, 10\)"),
        ("Net --config.model.rngs=1", "config.model.rngs: unknown key"),
        ("Net --config.model.dropout=1", r"config.model.dropout=1.0: must be float in \[0, 1\)"),
        ("Net --config.model.num_pixels=32", "TypeError"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(name, said, folder, capsys):
    name, *more = name.split()
    assert train_py("--config=config.py", f"--config.model.name=parts:{name}", *more) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1, found
    assert found.err.startswith("config.model.") and re.search(said, found.err), found.err
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["config.py", "parts.py"]
