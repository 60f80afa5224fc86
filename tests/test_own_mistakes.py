"""Mistakes in code of one's own: a line each, before anything is compiled or written; what is right still works."""

import re

import pytest

from configs import flags
from tests.in_process import train_py
from tests.own_parts import folder
from training.setup import make_setup

__all__ = ["folder"]  # a fixture

PARTS = """
from typing import NamedTuple
import jax, optax
from flax import linen as nn
from jax import lax, numpy as jnp
import reducers
from models.tasks.base import Task, begin, predict, train
from models.tasks import classification

mean = lambda u, axis: lax.pmean(u, axis)

def by(update, init=lambda params: ()):
    return lambda axis_name: optax.GradientTransformation(init, lambda u, s, p=None: update(u, s, p, axis_name))

class Counted(NamedTuple):
    count: object
    metrics: object

class Metrics(NamedTuple):
    metrics: object

# reducers
right = by(lambda u, s, p, axis: (mean(u, axis), s))
by_hand = by(lambda u, s, p, axis: (lax.pmean(lax.pmean(u, "lane"), "device"), s))
counting = by(
    lambda u, s, p, axis: (mean(u, axis), Counted(s.count + 1, {"seen": s.count.astype(jnp.float32)})),
    lambda params: Counted(jnp.zeros((), jnp.int32), {"seen": jnp.zeros(())}),
)
as_a_list = by(lambda u, s, p, axis: [mean(u, axis), s])
lanes_alone = by(lambda u, s, p, axis: (mean(u, "lane"), s))
devices_alone = by(lambda u, s, p, axis: (mean(u, "device"), s))
nothing = by(lambda u, s, p, axis: (u, s))
biases_left = by(lambda u, s, p, axis: (jax.tree.map(lambda x: x if x.ndim == 1 else mean(x, axis), u), s))
gives_none = by(lambda u, s, p, axis: None)
none_and_state = by(lambda u, s, p, axis: (None, s))
updates_alone = by(lambda u, s, p, axis: mean(u, axis))
three = by(lambda u, s, p, axis: (mean(u, axis), s, s))
leaves = by(lambda u, s, p, axis: (jax.tree.leaves(mean(u, axis)), s))
scalars = by(lambda u, s, p, axis: (jax.tree.map(lambda x: x.sum(), mean(u, axis)), s))
zeros = by(lambda u, s, p, axis: (jax.tree.map(lambda x: 0.0, u), s))
flat = by(lambda u, s, p, axis: (jax.tree.map(jnp.ravel, mean(u, axis)), s))
halves = by(lambda u, s, p, axis: (jax.tree.map(lambda x: x.astype(jnp.float16), mean(u, axis)), s))
texts = by(lambda u, s, p, axis: (jax.tree.map(lambda x: "x", u), s))
state_grows = by(lambda u, s, p, axis: (mean(u, axis), (*s, jnp.zeros(()))))
state_parts = by(lambda u, s, p, axis: (mean(u, axis), None), lambda params: jnp.zeros(3))
state_dtype = by(lambda u, s, p, axis: (mean(u, axis), s.astype(jnp.float32)), lambda params: jnp.zeros((), jnp.int32))
vector_metric = by(lambda u, s, p, axis: (mean(u, axis), s), lambda params: Metrics({"norms": jnp.zeros(3)}))
raises = by(lambda u, s, p, axis: (mean(u, axis), s["x"]))
begins_wrong = by(lambda u, s, p, axis: (mean(u, axis), s), lambda params: params["no_such"])
needs_more = lambda axis_name: optax.GradientTransformation(lambda params, key: (), lambda u, s, p=None: (u, s))
other_axis = by(lambda u, s, p, axis: (mean(u, "workers"), s))

def function(axis_name):
    return lambda u, s, p=None: (mean(u, axis_name), s)

def fails(axis_name):
    return {}["x"]

# optimizers
sgd = lambda learning_rate: optax.sgd(learning_rate)
lbfgs = lambda learning_rate: optax.lbfgs(learning_rate)
polyak = lambda learning_rate: optax.chain(optax.trace(0.9), optax.inject_hyperparams(optax.polyak_sgd)(1.0))
no_state = lambda learning_rate: optax.GradientTransformation(lambda p: (), lambda u, s, p=None: u)
shrinks = lambda learning_rate: optax.GradientTransformation(
    lambda p: (), lambda u, s, p=None: (jax.tree.map(jnp.sum, u), s)
)
reduces = lambda learning_rate: optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (mean(u, "device"), s))
typo = lambda learning_rate: optax.sgdd(learning_rate)

# models
class Net(nn.Module):
    num_classes: int
    mistake: str = "none"

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        x = nn.Dense(8)(image.reshape(len(image), -1))
        if self.mistake == "norm":
            x = nn.BatchNorm(use_running_average=deterministic, axis_name="device", name="norm")(x)
        if self.mistake == "worker":
            x = nn.BatchNorm(use_running_average=deterministic, axis_name="worker")(x)
        if self.mistake == "index":
            x = x * jax.lax.axis_index("device")
        if self.mistake == "stream" and not deterministic:
            x = x + jax.random.normal(self.make_rng("noise"), x.shape)
        if self.mistake == "grows":
            self.variable("seen", "x", lambda: jnp.zeros(1)).value = jnp.zeros(2)
        if self.mistake == "sow":
            self.sow("losses", "x", x.sum())
        if self.mistake == "numpy":
            x = x * float(x.sum())
        if self.mistake == "shape":
            x = x @ jnp.ones((3, 3))
        if self.mistake == "plain norm":
            x = nn.BatchNorm(use_running_average=deterministic)(x)
        return nn.Dense(self.num_classes)(x)

class Trains(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, image, train=True):
        return nn.Dense(self.num_classes)(image.reshape(len(image), -1))

# tasks
def task(mistake="none"):
    def make(*, model, example, sizes):
        made = classification(model=model, example=example, sizes=sizes)
        def loss(params, model_state, batch, key):
            value, (sums, state) = made.loss(params, model_state, batch, key)
            wrong = {
                "vector": lambda: (jnp.stack([value] * 2), (sums, state)),
                "alone": lambda: value,
                "no state": lambda: (value, sums),
                "no count": lambda: (value, ({"loss": sums["loss"]}, state)),
                "device": lambda: (value * lax.psum(1, "device"), (sums, state)),
                "lane": lambda: (lax.pmean(value, "lane"), (sums, state)),
                "key": lambda: (value + batch["target"], (sums, state)),
            }
            return wrong[mistake]() if mistake in wrong else (value, (sums, state))
        def metrics(sums):
            found = made.metrics(sums)
            return {"loss": found["loss"]} if mistake == "metrics" else found
        return made._replace(loss=loss, metrics=metrics)
    return make

fine, vector, alone, no_state_task, no_count = map(task, ("none", "vector", "alone", "no state", "no count"))
in_device, in_lane, wrong_key, lacks_best = map(task, ("device", "lane", "key", "metrics"))

def half_task(*, model, example, sizes):
    return classification(model=model, example=example, sizes=sizes).loss

# schedules, arrivals, data
warm = lambda total_steps: lambda step: jnp.ones(2)
slow = lambda: lambda key, step, num_workers: jnp.ones(3)
late = lambda: lambda key, step, workers, more: jnp.ones(8)

def data():
    return None + 1
"""

MISTAKES = {
    # reducers: what they return
    **{
        f"reducer.name=parts:{name}": said
        for name, said in {
            "lanes_alone": None,  # right on one device: see test_replicas.py
            "devices_alone": "your reducer leaves its updates different",
            "nothing": "your reducer leaves its updates different",
            "biases_left": "your reducer leaves its updates different",
            "gives_none": "your reducer's update returns None, must return",
            "none_and_state": "returns updates that are None",
            "updates_alone": "your reducer's update returns a dict, must return",
            "three": "your reducer's update returns a tuple of 3",
            "leaves": "returns updates that lack",
            "scalars": r"updates that have shape \(\) at \['Dense_0'\]\['bias'\]",
            "zeros": r"updates that have shape \(\)",
            "flat": r"updates that have shape .* at \['Dense_0'\]\['kernel'\]",
            "halves": "updates that have dtype float16",
            "texts": "must be an array",
            "state_grows": "returns a state that have",
            "state_parts": "returns a state that are None",
            "state_dtype": "returns a state that have dtype float32",
            "vector_metric": "your reducer reports .* as the metric 'norms'",
            "raises": "TypeError",
            "begins_wrong": "KeyError: 'no_such'",
            "needs_more": "TypeError.*'key'",
            "other_axis": "workers",
            "function": "must return a GradientTransformation, not function",
            "fails": "KeyError: 'x'",
        }.items()
    },
    **{
        f"optimizer.name=parts:{name} optimizer.learning_rate=0.1": said
        for name, said in {
            "lbfgs": "value",
            "polyak": "value",
            "no_state": r"returns a dict, must return \(updates, state\)",
            "shrinks": r"shape \(\)",
            "reduces": "only a reducer has axes",
            "typo": "AttributeError",
        }.items()
    },
    **{
        f"model.name=parts:Net model.mistake={name!r}": said
        for name, said in {
            "norm": "names a worker axis.*axis_name=None",
            "worker": "names a worker axis",
            "index": "names a worker axis",
            "stream": "InvalidRngError",
            "grows": "ModifyScopeVariableError",
            "sow": "model_state that have .* too",
            "numpy": "ConcretizationTypeError|TracerArrayConversionError|float",
            "shape": "TypeError",
        }.items()
    },
    "model.name=parts:Trains": "deterministic",
    **{
        f"task.name=parts:{name}": said
        for name, said in {
            "vector": r"an array of shape \(2,\) as the mean loss",
            "alone": r"loss returns an array of shape \(\), must return",
            "no_state_task": "must return",
            "no_count": "lacks 'count'",
            "in_device": "names a worker axis",
            "in_lane": "names a worker axis",
            "wrong_key": "KeyError: 'target'",
            "lacks_best": "metrics returns what lacks 'accuracy'",
            "half_task": "must return a Task, not function",
        }.items()
    },
    "schedule.name=parts:warm": r"shape \(2,\)",
    "arrivals.name=parts:slow": r"shape \(3,\)",
    "arrivals.name=parts:late": "TypeError",
    "data.name=parts:data": "TypeError",
}


def overrides(given: str) -> list[str]:
    return [f"--config.{flag}".replace("'", "") for flag in re.findall(r"\S+='[^']*'|\S+", given)]


@pytest.mark.parametrize("given", [given for given, said in MISTAKES.items() if said])
def test_a_mistake_is_refused_in_one_line(given, folder, capsys):
    assert train_py("--config=config.py", *overrides(given)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said
    assert said.err.startswith(f"config.{given.split('.')[0]}.") and "parts:" in said.err, said.err
    assert re.search(MISTAKES[given], said.err), said.err
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["config.py", "parts.py"]


@pytest.mark.parametrize(
    "given",
    [
        *(f"reducer.name=parts:{name}" for name in ("right", "by_hand", "counting", "as_a_list")),
        "optimizer.name=parts:sgd optimizer.learning_rate=0.1",
        "model.name=parts:Net",
        "model.name=parts:Net model.mistake='plain norm'",
        "task.name=parts:fine",
    ],
)
def test_what_is_right_works(given, folder):
    make_setup(flags.load("config.py", overrides(given)))
