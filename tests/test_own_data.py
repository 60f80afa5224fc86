"""Mistakes in data of one's own: a line each as they are loaded; what is right still works."""

import re
import signal
import sys

import jax
import numpy as np
import pytest

import runs
from configs import flags
from runs.errors import ConfigError
from tests import ROOT
from tests.in_process import train_py
from tests.own_parts import folder
from tests.started import start
from training.setup import make_setup

__all__ = ["folder"]  # a fixture

# What is wrong is an expression: over the columns c of a split, which are the images x and the labels y; over the data
# set d, or its description i; and with a stream over the columns of a batch.
PARTS = """
import time
import jax, numpy as np
from jax import numpy as jnp
from data.examples import Arrays, Dataset, Info
from data.sources import source_of
from models.tasks import classification

N, M = 64, 32

def columns(count):
    images = np.random.default_rng(0).standard_normal((count, 4, 4, 1)).astype(np.float32)
    return {"image": images, "label": (np.arange(count) % 3).astype(np.int32)}

def changed(text, c, **names):
    return eval(text, globals(), {"c": c, "x": c["image"], "y": c["label"], **names})

class Stream:
    def __init__(self, count, text):
        self.num_examples, self.text, self.calls = count, text, 0

    def gather(self, index, batch_index):
        self.calls += 1
        batch = {name: column[index] for name, column in columns(self.num_examples).items()}
        return changed(self.text, batch, calls=self.calls)

    def part(self, start, stop, *, mode):
        return Stream(stop - start, self.text)

def with_at(array, value):
    array = np.array(array)
    array.reshape(-1)[-1] = value
    return array

def read_only(columns):
    for column in columns.values():
        column.flags.writeable = False
    return columns

def mapped(array):
    np.save("images.npy", array)
    return np.load("images.npy", mmap_mode="r")

def fail(error):
    raise error

def hang():
    print("hangs", flush=True)
    time.sleep(600)

def data(train: str = "c", test: str = "c", dataset: str = "d", info: str = "i", stream: str = "", evaluate_on="test"):
    def load(seed):
        splits = Arrays(changed(train, columns(N))), Arrays(changed(test, columns(M)))
        if stream:
            splits = Stream(N, stream), Stream(M, "c")
        return eval(dataset, globals(), {"d": Dataset("own", *splits, constants={})})

    shapes = {"image": jax.ShapeDtypeStruct((4, 4, 1), np.float32), "label": jax.ShapeDtypeStruct((), np.int32)}
    declared = eval(info, globals(), {"i": Info(shapes, {"num_classes": 3}, N, M, constants={})})
    return source_of(declared, load, evaluate_on=evaluate_on, placement="stream" if stream else "auto")

def labelled(info, label):
    return info._replace(example=info.example | {"label": label})

def any_labels(*, model, example, sizes):  # a label of -1 is nobody's
    return classification(model=model, example=example, sizes=sizes)
"""

AT_LOAD = {
    "train=c | {'label': y[:, None]}": r"train\['label'\]: each example is int32 of shape \(1,\).*declares int32 of",
    "test=c | {'label': y[:, None]}": r"test\['label'\]: each example is int32 of shape \(1,\)",
    "train=c | {'label': with_at(y, 3)}": r"train\['label'\]: has 3, must be in \[0, 2\]",
    "test=c | {'label': with_at(y, 3)}": r"test\['label'\]: has 3, must be in \[0, 2\]",
    "train=c | {'label': with_at(y, -1)}": r"train\['label'\]: has -1, must be in \[0, 2\]",
    "train=c | {'label': y.astype(str)}": r"train\['label'\]: each example is <U",
    "train=c | {'label': y.astype(object)}": r"train\['label'\]: each example is object",
    "train=c | {'label': y.astype(np.float32)}": r"train\['label'\]: each example is float32",
    "train=c | {'label': y.astype(np.int64)}": r"train\['label'\]: each example is int64",
    "train=c | {'label': y.tolist()}": "label: is a list, must be an array",
    "train=c | {'label': None}": "label: is None, must be an array",
    "train=c | {'label': (each for each in y)}": "label: is a generator, must be an array",
    "train=c | {'label': y[0]}": "label: is a int32, must be an array",
    "train=c | {'label': y[:-1]}": r"columns have \[63, 64\] examples",
    "train=c | {'image': x.astype(np.float64)}": r"train\['image'\]: each example is float64",
    "train=c | {'image': x.reshape(N, 16)}": r"train\['image'\]: each example is float32 of shape \(16,\)",
    "test=c | {'image': x.reshape(M, 16)}": r"test\['image'\]: each example is float32 of shape \(16,\)",
    "train=c | {'image': with_at(x, np.nan)}": r"train\['image'\]: has NaN or infinity",
    "test=c | {'image': with_at(x, -np.inf)}": r"test\['image'\]: has NaN or infinity",
    "train={'image': x, 'lable': y}": "train: has 'image', 'lable', and info declares 'image', 'label'",
    "train=c | {'weight': np.ones(N)}": "train: has 'image', 'label', 'weight', and info declares",
    "train={'image': x[:-1], 'label': y[:-1]}": "train: has 63 examples, and info declares 64",
    "test={'image': x[:-1], 'label': y[:-1]}": "test: has 31 examples, and info declares 32",
    "test={'image': x[:0], 'label': y[:0]}": "test: has 0 examples, and info declares 32",
    "dataset=columns(N)": "load returns a dict, must return",
    "dataset=None": "load returns None, must return",
    "dataset=d._replace(train=columns(N))": "train: is a dict, must be examples",
    "dataset=d._replace(constants={'mean': np.zeros(3)})": "constants: has 'mean', and info declares nothing",
    "dataset={}['x']": "KeyError: 'x'",
    "stream=c | {'image': x[..., 0]}": r"train\['image'\]: each example is float32 of shape \(4, 4\)",
    "stream={'image': x, 'labels': y}": "train: has 'image', 'labels', and info declares",
}

DECLARED = {
    "info=labelled(i, jax.ShapeDtypeStruct((1,), np.int32))": r"labels are int32 of shape \(1,\), must be integers",
    "info=labelled(i, jax.ShapeDtypeStruct((), np.float32))": r"labels are float32 of shape \(\), must be integers",
    "info=labelled(i, (1,))": "info.example: is a dict, must be a dict of jax.ShapeDtypeStruct",
    "info=i._replace(num_train=32.0)": "info.num_train=32.0: must be an integer of at least 1",
    "info=i._replace(num_train=None)": "info.num_train=None: must be",
    "info=i._replace(num_train=0)": "info.num_train=0: must be",
    "info=i._replace(num_test=0)": "info.num_test=0: must be",
    "info=i._replace(sizes={})": "num_classes",
}

RIGHT = [
    [],
    ["train=read_only(c)", "test=read_only(c)"],
    ["train=c | {'image': mapped(x)}"],
    ["train=c | {'image': jnp.asarray(x)}", "test=c | {'image': jnp.asarray(x)}"],
    ["stream=c"],
]


def overrides(wrong, *more):
    """Flags of a run of two steps, on data with keys of theirs."""
    given = ("data.name=parts:data", *(f"data.{key}" for key in wrong), "train_steps=2", "eval_every_steps=2", *more)
    return [f"--config.{flag}" for flag in given]


def setup_of(wrong, *more):
    return make_setup(flags.load("config.py", overrides(wrong, *more)))


@pytest.mark.parametrize("wrong", AT_LOAD)
def test_what_differs_from_its_declaration_is_refused_as_it_is_loaded(wrong, folder):
    setup = setup_of([wrong])
    with pytest.raises(ConfigError) as refused:
        setup.load_data()
    line = str(refused.value)
    assert line.startswith("config.data.name='parts:data': ") and "\n" not in line
    assert re.search(AT_LOAD[wrong], line), line


@pytest.mark.parametrize("wrong", DECLARED)
def test_a_declaration_that_cannot_be_is_refused_before(wrong, folder):
    with pytest.raises(ConfigError, match=DECLARED[wrong]):
        setup_of([wrong])


@pytest.mark.parametrize("given", RIGHT)
@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_what_is_right_is_read(given, evaluate_on, folder):
    dataset = setup_of([*given, f"evaluate_on={evaluate_on}"]).load_data()
    assert dataset.train.num_examples == (64 if evaluate_on == "test" else 58)
    batch = dataset.train.gather(np.array([[0, 5]]), np.array([0]))
    np.testing.assert_array_equal(batch["label"], [[0, 2]])
    assert batch["image"].shape == (1, 2, 4, 4, 1)


@pytest.mark.parametrize("value", [-1, 3, 2**31 - 1])
def test_labels_that_are_read_later_are_in_bounds(value, folder):
    stream = f"stream=c | {{'label': np.where(y == 2, np.int32({value}), y)}}"
    dataset = setup_of([stream]).load_data()
    dataset.train.gather(np.array([[0, 1]]), np.array([0]))
    for examples in (dataset.train, dataset.train.part(0, 9, mode="evaluation")):
        with pytest.raises(ValueError, match=rf"data.train\['label'\]: has {value}, must be in \[0, 2\]"):
            examples.gather(np.array([[0, 5]]), np.array([0]))
    own = setup_of([stream], "task.name=parts:any_labels").load_data()
    own.train.gather(np.array([[0, 5]]), np.array([0]))


def test_a_task_of_ones_own_may_have_labels_of_its_own(folder):
    setup_of(["train=c | {'label': with_at(y, -1)}"], "task.name=parts:any_labels").load_data()


def test_a_run_without_enough_memory_ends_in_one_line(folder, capsys):
    small = "stream=c if calls == 1 else fail(MemoryError('Unable to allocate 30 GiB'))"
    assert train_py("--config=config.py", *overrides([small]), "--num_devices=1") == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("not enough memory: Unable to allocate 30 GiB;")

    def allocate():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.\n  trace")

    assert runs.exit_code(allocate, failures={}) == 1
    assert "RESOURCE_EXHAUSTED: Out of memory" in capsys.readouterr().err.splitlines()[0]

    def breaks():
        raise jax.errors.JaxRuntimeError("INTERNAL: no idea")

    with pytest.raises(jax.errors.JaxRuntimeError):
        runs.exit_code(breaks, failures={})


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("train=c | {'label': y[:, None]}", 2),
        ("stream=c if calls == 1 else c | {'image': x[..., 0]}", 1),
        ("test=c", 0),
    ],
)
def test_a_run_of_it_ends_in_one_line(given, code, folder, capsys):
    assert train_py("--config=config.py", *overrides([given]), "--num_devices=1") == code
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in said and (not code or said[-1].startswith("config.data.")), said


def test_a_reader_that_hangs_does_not_keep_a_signal_from_saving(folder):
    given = overrides(["stream=c if calls <= 12 else hang()"], "train_steps=100")
    command = [sys.executable, ROOT / "train.py", "--config=config.py", *given, "--num_devices=1", "--workdir=run"]
    process = start(command, stderr=None, cwd=folder, JAX_PLATFORMS="cpu")
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGTERM)
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    last = max(int(path.name) for path in folder.glob("run/checkpoints/[0-9]*"))
    assert process.returncode == 143 and f"stopped by SIGTERM at step {last};" in said
