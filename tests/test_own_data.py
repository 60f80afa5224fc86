"""Mistakes in data of one's own: a line each as they are loaded; what is right still works."""

import os
import re
import signal
import subprocess
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
from training.setup import make_setup

__all__ = ["folder"]  # a fixture

PARTS = """
import time
import jax, numpy as np, optax
from jax import numpy as jnp
from data.examples import Arrays, Dataset, Info
from data.sources import source_of
from models.tasks import classification

N, M = 64, 32

def image(count, **kwargs):
    return np.random.default_rng(0).standard_normal((count, 4, 4, 1)).astype(kwargs.get("dtype", "float32"))

def label(count):
    return (np.arange(count) % 3).astype(np.int32)

class Stream:
    def __init__(self, count, mistake):
        self.num_examples, self.mistake, self.calls = count, mistake, 0

    def gather(self, index, batch_index):
        self.calls += 1
        if self.mistake == "stream memory" and self.calls > 1:
            raise MemoryError("Unable to allocate 30 GiB")
        if self.mistake == "stream hangs" and self.calls > 12:
            print("hangs", flush=True)
            time.sleep(600)
        images, labels = image(self.num_examples)[index], label(self.num_examples)[index]
        if self.mistake == "stream shape" or (self.mistake == "stream later" and self.calls > 1):
            images = images[..., 0]
        if self.mistake.startswith("stream label "):
            labels = np.where(labels == 2, np.int32(self.mistake.removeprefix("stream label ")), labels)
        return {"image": images, "labels" if self.mistake == "stream names" else "label": labels}

    def part(self, start, stop, *, mode):
        return Stream(stop - start, self.mistake)

def changed(columns, name, change):
    return {**columns, name: change(columns[name])}

def data(mistake="", evaluate_on="test"):
    def with_at(array, value):
        array = np.array(array)
        array.reshape(-1)[-1] = value
        return array

    changes = {
        "column": ("label", lambda x: x[:, None]),
        "beyond": ("label", lambda x: with_at(x, 3)),
        "negative": ("label", lambda x: with_at(x, -1)),
        "strings": ("label", lambda x: x.astype(str)),
        "objects": ("label", lambda x: x.astype(object)),
        "float labels": ("label", lambda x: x.astype(np.float32)),
        "wide labels": ("label", lambda x: x.astype(np.int64)),
        "list": ("label", lambda x: x.tolist()),
        "none": ("label", lambda x: None),
        "generator": ("label", lambda x: (y for y in x)),
        "scalar": ("label", lambda x: x[0]),
        "shorter": ("label", lambda x: x[:-1]),
        "float64": ("image", lambda x: x.astype(np.float64)),
        "flat": ("image", lambda x: x.reshape(len(x), 16)),
        "nan": ("image", lambda x: with_at(x, np.nan)),
        "inf": ("image", lambda x: with_at(x, -np.inf)),
        "read-only": ("image", lambda x: x.view()),
        "jax": ("image", lambda x: jnp.asarray(x)),
        "one test image": ("image", lambda x: x),
    }

    def split(count, which):
        columns = {"image": image(count), "label": label(count)}
        only_test = mistake.startswith("test ")
        name = mistake.removeprefix("test ")
        if name in changes and (which == "test" or not only_test):
            columns = changed(columns, *changes[name])
        if mistake == "read-only":
            for column in columns.values():
                column.flags.writeable = False
        if mistake == "memory map" and which == "train":
            np.save("images.npy", columns["image"])
            columns["image"] = np.load("images.npy", mmap_mode="r")
        if mistake == "misspelt":
            columns["lable"] = columns.pop("label")
        if mistake == "one more":
            columns["weight"] = np.ones(count, np.float32)
        return columns

    def load(seed):
        if mistake == "raises":
            return {}["x"]
        if mistake.startswith("stream"):
            return Dataset("own", Stream(N, mistake), Stream(M, ""), constants={})
        sizes = {"few": (N - 1, M), "empty test": (N, 0), "test few": (N, M - 1)}.get(mistake, (N, M))
        dataset = Dataset("own", Arrays(split(sizes[0], "train")), Arrays(split(sizes[1], "test")), constants={})
        return {
            "no dataset": lambda: split(N, "train"),
            "none at all": lambda: None,
            "bare columns": lambda: dataset._replace(train=split(N, "train")),
            "constants": lambda: dataset._replace(constants={"mean": np.zeros(3)}),
        }.get(mistake, lambda: dataset)()

    shapes = {"image": jax.ShapeDtypeStruct((4, 4, 1), np.float32), "label": jax.ShapeDtypeStruct((), np.int32)}
    if mistake == "declared column":
        shapes["label"] = jax.ShapeDtypeStruct((1,), np.int32)
    if mistake == "declared float":
        shapes["label"] = jax.ShapeDtypeStruct((), np.float32)
    if mistake == "declared numbers":
        shapes["label"] = (1,)
    sizes = {} if mistake == "no sizes" else {"num_classes": 3}
    num_train = {"declared half": 32.0, "declared none": None, "declared 0": 0}.get(mistake, N)
    info = Info(shapes, sizes, num_train, 0 if mistake == "declared empty" else M, constants={})
    placement = "stream" if mistake.startswith("stream") else "auto"
    return source_of(info, load, evaluate_on=evaluate_on, placement=placement)

def any_labels(*, model, example, sizes):  # a label of -1 is nobody's
    return classification(model=model, example=example, sizes=sizes)

class Wide:
    pass
"""

AT_LOAD = {
    "column": r"train\['label'\]: each example is int32 of shape \(1,\).*declares int32 of \(\)",
    "test column": r"test\['label'\]: each example is int32 of shape \(1,\)",
    "beyond": r"train\['label'\]: has 3, must be in \[0, 2\]",
    "test beyond": r"test\['label'\]: has 3, must be in \[0, 2\]",
    "negative": r"train\['label'\]: has -1, must be in \[0, 2\]",
    "strings": r"train\['label'\]: each example is <U",
    "objects": r"train\['label'\]: each example is object",
    "float labels": r"train\['label'\]: each example is float32",
    "wide labels": r"train\['label'\]: each example is int64",
    "list": "label: is a list, must be an array",
    "none": "label: is None, must be an array",
    "generator": "label: is a generator, must be an array",
    "scalar": "label: is a int32, must be an array",
    "shorter": r"columns have \[63, 64\] examples",
    "float64": r"train\['image'\]: each example is float64",
    "flat": r"train\['image'\]: each example is float32 of shape \(16,\)",
    "test flat": r"test\['image'\]: each example is float32 of shape \(16,\)",
    "nan": r"train\['image'\]: has NaN or infinity",
    "test inf": r"test\['image'\]: has NaN or infinity",
    "misspelt": "train: has 'image', 'lable', and info declares 'image', 'label'",
    "one more": "train: has 'image', 'label', 'weight', and info declares",
    "few": "train: has 63 examples, and info declares 64",
    "test few": "test: has 31 examples, and info declares 32",
    "empty test": "test: has 0 examples, and info declares 32",
    "no dataset": "load returns a dict, must return",
    "none at all": "load returns None, must return",
    "bare columns": "train: is a dict, must be examples",
    "constants": "constants: has 'mean', and info declares nothing",
    "raises": "KeyError: 'x'",
    "stream shape": r"train\['image'\]: each example is float32 of shape \(4, 4\)",
    "stream names": "train: has 'image', 'labels', and info declares",
}

DECLARED = {
    "declared column": r"labels are int32 of shape \(1,\), must be integers",
    "declared float": r"labels are float32 of shape \(\), must be integers",
    "declared numbers": "info.example: is a dict, must be a dict of jax.ShapeDtypeStruct",
    "declared half": "info.num_train=32.0: must be an integer of at least 1",
    "declared none": "info.num_train=None: must be",
    "declared 0": "info.num_train=0: must be",
    "declared empty": "info.num_test=0: must be",
    "no sizes": "num_classes",
}

RIGHT = ["", "read-only", "memory map", "jax", "stream"]


def overrides(mistake, *more):
    given = ("data.name=parts:data", f"data.mistake={mistake}", "train_steps=2", "eval_every_steps=2", *more)
    return [f"--config.{flag}" for flag in given]


def setup_of(mistake, *more):
    return make_setup(flags.load("config.py", overrides(mistake, *more)))


@pytest.mark.parametrize("mistake", AT_LOAD)
def test_what_differs_from_its_declaration_is_refused_as_it_is_loaded(mistake, folder):
    setup = setup_of(mistake)
    with pytest.raises(ConfigError) as refused:
        setup.load_data()
    line = str(refused.value)
    assert line.startswith("config.data.name='parts:data': ") and "\n" not in line
    assert re.search(AT_LOAD[mistake], line), line


@pytest.mark.parametrize("mistake", DECLARED)
def test_a_declaration_that_cannot_be_is_refused_before(mistake, folder):
    with pytest.raises(ConfigError, match=DECLARED[mistake]):
        setup_of(mistake)


@pytest.mark.parametrize("mistake", RIGHT)
@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_what_is_right_is_read(mistake, evaluate_on, folder):
    dataset = setup_of(mistake, f"data.evaluate_on={evaluate_on}").load_data()
    assert dataset.train.num_examples == (64 if evaluate_on == "test" else 58)
    batch = dataset.train.gather(np.array([[0, 5]]), np.array([0]))
    np.testing.assert_array_equal(batch["label"], [[0, 2]])
    assert batch["image"].shape == (1, 2, 4, 4, 1)


@pytest.mark.parametrize("value", [-1, 3, 2**31 - 1])
def test_labels_that_are_read_later_are_in_bounds(value, folder):
    dataset = setup_of(f"stream label {value}").load_data()
    dataset.train.gather(np.array([[0, 1]]), np.array([0]))
    for examples in (dataset.train, dataset.train.part(0, 9, mode="evaluation")):
        with pytest.raises(ValueError, match=rf"data.train\['label'\]: has {value}, must be in \[0, 2\]"):
            examples.gather(np.array([[0, 5]]), np.array([0]))
    setup_of(f"stream label {value}", "task.name=parts:any_labels").load_data().train.gather(
        np.array([[0, 5]]), np.array([0])
    )


def test_a_task_of_ones_own_may_have_labels_of_its_own(folder):
    setup_of("negative", "task.name=parts:any_labels").load_data()


def test_a_run_without_enough_memory_ends_in_one_line(folder, capsys):
    assert train_py("--config=config.py", *overrides("stream memory"), "--num_devices=1") == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("not enough memory: Unable to allocate 30 GiB;")

    def allocate():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.\n  trace")

    assert runs.exit_code(allocate, failures={}) == 1
    assert "RESOURCE_EXHAUSTED: Out of memory" in capsys.readouterr().err.splitlines()[0]

    def breaks():
        raise jax.errors.JaxRuntimeError("INTERNAL: no idea")

    with pytest.raises(jax.errors.JaxRuntimeError):
        runs.exit_code(breaks, failures={})


@pytest.mark.parametrize(("mistake", "code"), [("column", 2), ("stream later", 1), ("", 0)])
def test_a_run_of_it_ends_in_one_line(mistake, code, folder, capsys):
    assert train_py("--config=config.py", *overrides(mistake), "--num_devices=1") == code
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in said and (not code or said[-1].startswith("config.data.")), said


def test_a_reader_that_hangs_does_not_keep_a_signal_from_saving(folder):
    flags_of_it = [*overrides("stream hangs", "train_steps=100"), "--num_devices=1", "--workdir=run"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train.py", "--config=config.py", *flags_of_it],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGTERM)
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    last = max(int(path.name) for path in folder.glob("run/checkpoints/[0-9]*"))
    assert process.returncode == 143 and f"stopped by SIGTERM at step {last};" in said
