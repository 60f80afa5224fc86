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
from models.tasks.base import Task, initialise, predict, train
from models.tasks import classification

mean = lambda u, axis: lax.pmean(u, axis)

def by(update, init=lambda params: ()):
    return lambda axis_name: optax.GradientTransformation(init, lambda u, s, p=None: update(u, s, p, axis_name))

def optimizer(update):
    return lambda learning_rate: optax.GradientTransformation(lambda p: (), lambda u, s, p=None: update(u, s))

class Counted(NamedTuple):
    count: object
    metrics: object

class Metrics(NamedTuple):
    metrics: object

def task(returned, measured=lambda found: found):
    def make(*, model, example, sizes):
        made = classification(model=model, example=example, sizes=sizes)
        def loss(params, model_state, batch, key):
            value, (sums, state) = made.loss(params, model_state, batch, key)
            return returned(value, sums, state, batch)
        return made._replace(loss=loss, metrics=lambda sums: measured(made.metrics(sums)))
    return make
"""

# How a part of each block is written, around what is wrong with it.
TEMPLATES = {
    "reducer": "part = by(lambda u, s, p, axis: WRONG)",
    "optimizer": "part = optimizer(lambda u, s: WRONG)",
    "model": """
class part(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        x = nn.Dense(8)(image.reshape(len(image), -1))
        WRONG
        return nn.Dense(self.num_classes)(x)
""",
    "task": "part = task(lambda value, sums, state, batch: WRONG)",
}
WITHOUT_MODES = TEMPLATES["model"].replace("deterministic=True", "train=True").replace("WRONG", "")
MORE = {"optimizer": ["optimizer.learning_rate=0.1"]}  # flags

MISTAKES = {
    "reducer": {
        "(mean(u, 'device'), s)": "your reducer leaves its updates different",
        "(u, s)": "your reducer leaves its updates different",
        "(jax.tree.map(lambda x: x if x.ndim == 1 else mean(x, axis), u), s)": "leaves its updates different",
        "None": "your reducer's update returns None, must return",
        "(None, s)": "returns updates that are None",
        "mean(u, axis)": "your reducer's update returns a dict, must return",
        "(mean(u, axis), s, s)": "your reducer's update returns a tuple of 3",
        "(jax.tree.leaves(mean(u, axis)), s)": "returns updates that lack",
        "(jax.tree.map(jnp.sum, mean(u, axis)), s)": r"updates that have shape \(\) at \['Dense_0'\]\['bias'\]",
        "(jax.tree.map(lambda x: 0.0, u), s)": r"updates that have shape \(\)",
        "(jax.tree.map(jnp.ravel, mean(u, axis)), s)": r"updates that have shape .* at \['Dense_0'\]\['kernel'\]",
        "(jax.tree.map(lambda x: x.astype(jnp.float16), mean(u, axis)), s)": "updates that have dtype float16",
        "(jax.tree.map(lambda x: 'x', u), s)": "must be an array",
        "(mean(u, axis), (*s, jnp.zeros(())))": "returns a state that have",
        "(mean(u, axis), None), lambda params: jnp.zeros(3)": "returns a state that are None",
        "(mean(u, axis), s / 1), lambda params: jnp.zeros((), jnp.int32)": "returns a state that have dtype float32",
        "(mean(u, axis), s), lambda params: Metrics({'norms': jnp.zeros(3)})": "your reducer reports .* metric 'norms'",
        "(mean(u, axis), s['x'])": "TypeError",
        "(mean(u, axis), s), lambda params: params['no_such']": "KeyError: 'no_such'",
        "(mean(u, 'workers'), s)": "workers",
        "part = lambda axis_name: optax.GradientTransformation(lambda p, key: (), None)": "TypeError.*'key'",
        "part = lambda axis_name: lambda u, s: (u, s)": "must return a GradientTransformation, not function",
        "part = lambda axis_name: {}['x']": "KeyError: 'x'",
    },
    "optimizer": {
        "part = lambda learning_rate: optax.lbfgs(learning_rate)": "value",
        "part = lambda learning_rate: optax.inject_hyperparams(optax.polyak_sgd)(1.0)": "value",
        "part = lambda learning_rate: optax.sgdd(learning_rate)": "AttributeError",
        "u": r"returns a dict, must return \(updates, state\)",
        "(jax.tree.map(jnp.sum, u), s)": r"shape \(\)",
        "(mean(u, 'device'), s)": "only a reducer has axes",
    },
    "model": {
        "x = nn.BatchNorm(deterministic, axis_name='device', name='norm')(x)": "names a worker axis.*axis_name=None",
        "x = nn.BatchNorm(deterministic, axis_name='worker')(x)": "names a worker axis",
        "x = x * lax.axis_index('device')": "names a worker axis",
        "x = x if deterministic else x + jax.random.normal(self.make_rng('noise'), x.shape)": "InvalidRngError",
        "self.variable('seen', 'x', lambda: jnp.zeros(1)).value = jnp.zeros(2)": "ModifyScopeVariableError",
        "self.sow('losses', 'x', x.sum())": "model_state that have .* too",
        "x = x * float(x.sum())": "ConcretizationTypeError|TracerArrayConversionError|float",
        "x = x @ jnp.ones((3, 3))": "TypeError",
        WITHOUT_MODES: "deterministic",
    },
    "task": {
        "(jnp.stack([value] * 2), (sums, state))": r"an array of shape \(2,\) as the mean loss",
        "value": r"loss returns an array of shape \(\), must return",
        "(value, sums)": "must return",
        "(value, ({'loss': sums['loss']}, state))": "lacks 'count'",
        "(value * lax.psum(1, 'device'), (sums, state))": "names a worker axis",
        "(lax.pmean(value, 'lane'), (sums, state))": "names a worker axis",
        "(value + batch['target'], (sums, state))": "KeyError: 'target'",
        "(value, (sums, state)), lambda found: {'loss': found['loss']}": "metrics returns what lacks 'accuracy'",
        "part = lambda *, model, example, sizes: classification": "must return a Task, not function",
    },
    "schedule": {"part = lambda total_steps: lambda step: jnp.ones(2)": r"shape \(2,\)"},
    "arrivals": {
        "part = lambda: lambda key, step, num_workers: jnp.ones(3)": r"shape \(3,\)",
        "part = lambda: lambda key, step, workers, more: jnp.ones(8)": "TypeError",
    },
    "data": {"part = lambda: None + 1": "TypeError"},
}

RIGHT = [
    ("reducer", "(mean(u, axis), s)"),
    ("reducer", "(lax.pmean(lax.pmean(u, 'lane'), 'device'), s)"),
    (
        "reducer",
        "(mean(u, axis), Counted(s.count + 1, {'seen': s.count.astype(jnp.float32)})), "
        "lambda params: Counted(jnp.zeros((), jnp.int32), {'seen': jnp.zeros(())})",
    ),
    ("reducer", "[mean(u, axis), s]"),
    ("optimizer", "part = lambda learning_rate: optax.sgd(learning_rate)"),
    ("model", "x = nn.relu(x)"),
    ("model", "x = nn.BatchNorm(deterministic)(x)"),
    ("task", "(value, (sums, state))"),
]


def written(folder, block, text):
    """Writes a part; returns the flags that name it."""
    part = text if "part" in text else TEMPLATES[block].replace("WRONG", text)
    (folder / "parts.py").write_text(f"{PARTS}\n{part}\n")
    return [f"--config.{flag}" for flag in (f"{block}.name=parts:part", *MORE.get(block, []))]


@pytest.mark.parametrize(
    ("block", "text", "said"), [(block, *row) for block, rows in MISTAKES.items() for row in rows.items()]
)
def test_a_mistake_is_refused_in_one_line(block, text, said, folder, capsys):
    assert train_py("--config=config.py", *written(folder, block, text)) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1, found
    assert found.err.startswith(f"config.{block}.") and "parts:" in found.err and re.search(said, found.err), found.err
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["config.py", "parts.py"]


@pytest.mark.parametrize(("block", "text"), RIGHT)
def test_what_is_right_works(block, text, folder):
    make_setup(flags.load("config.py", written(folder, block, text)))
