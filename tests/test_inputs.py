"""Every file that a config names is part of a run's identity: of its resume, its end, and its live workers."""

import os
import shutil

import numpy as np
import pytest

import runs
from configs import dependencies
from configs import flags as config_flags
from data import sources, tfds_sets
from experiments.execution import results
from experiments.study.run import Run
from live.worker import Worker
from planning import steps_to_target
from tests import ROOT
from tests.data_folders import random_examples, write_set
from tests.in_process import DIGITS, train_digits

SHORT = ("--config.num_workers=2", "--config.train_steps=2", "--config.eval_every_steps=2", "--num_devices=1")


def write_trace(path, seed=0):
    np.savez(path, seconds=np.random.default_rng(seed).uniform(1, 2, (5, 4)).astype(np.float32))


def write_order(path, seed=0):
    rng = np.random.default_rng(seed)
    np.savez(path, worker=rng.integers(0, 2, 40), seconds=np.cumsum(rng.uniform(1, 2, 40)))


BASE = '{"name": "slow_workers", "base": {"name": "trace", "path": "FILE"}}'
NAMED = {
    "arrivals.path": (write_trace, ["arrivals.name=trace", "arrivals.path=FILE"]),
    "arrivals.base.path": (write_trace, ["arrivals.name=slow_workers", 'arrivals.base={"name":"trace","path":"FILE"}']),
    "arrivals.base.base.path": (write_trace, ["arrivals.name=markov", f"arrivals.base={BASE}"]),
    "server.order": (write_order, ["server.name=asynchronous", "server.order=FILE"]),
    "server.latency_seconds.path": (
        write_trace,
        [
            "server.name=decentralised",
            'server.latency_seconds={"name":"trace","path":"FILE"}',
            "arrivals.name=constant",
        ],
    ),
}


@pytest.mark.parametrize("key", NAMED)
def test_a_file_that_a_config_names_is_known_by_its_content(key, tmp_path):
    write, given = NAMED[key]
    path = tmp_path / "file.npz"
    write(path)
    config = config_flags.load(DIGITS, [f"--config.{flag.replace('FILE', str(path))}" for flag in given])
    before = dependencies.describe(config)
    assert list(before) == [f"config.{key}"] and not runs.changed_files(before)
    starts = [{"code": before}]
    assert runs.changed_code(starts, dependencies.describe(config.to_dict())) == []
    write(path, seed=1)
    (line,) = runs.changed_code(starts, dependencies.describe(config))
    assert f"config.{key}=" in line and runs.changed_files(before)
    assert runs.changed_code(starts, {}) == []  # what the run began with may be gone


def run(workdir, *more):
    return train_digits(workdir, *SHORT, *more)


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    examples = {"train": random_examples(40), "test": random_examples(20, seed=1)}
    write_set(tmp_path / "sets", "fashion_mnist", examples)
    return tmp_path / "sets", examples


def changed(examples, folder):
    """Writes the same images with other labels of the same sizes."""
    shutil.rmtree(folder, ignore_errors=True)
    write_set(folder, "fashion_mnist", {split: (x, 9 - labels) for split, (x, labels) in examples.items()})


@pytest.mark.parametrize("options", [{}, {"image_size": 16}])
@pytest.mark.parametrize("most", [2**30, 10])
def test_a_set_is_known_by_its_content(options, most, images, tmp_path, monkeypatch):
    folder, examples = images
    monkeypatch.setattr(tfds_sets, "_MOST_BYTES_READ", most)
    tfds_sets._file_digest.cache_clear()

    def known(at):
        return sources.make("fashion_mnist", dir=str(at), **options).info.fingerprint

    before = known(folder)
    write_set(tmp_path / "copy", "fashion_mnist", examples)
    for file in (tmp_path / "copy").rglob("*"):
        os.utime(file, (1, 1))
    assert before and known(tmp_path / "copy") == before
    changed(examples, tmp_path / "other")
    assert known(tmp_path / "other") != before


def test_changed_labels_are_refused_by_resume_workers_and_sweeps(images, tmp_path, capsys):
    folder, examples = images
    given = ("--config.data.name=fashion_mnist",)
    assert run(tmp_path / "run", *given) == 0
    made = Run(spec=DIGITS, overrides={"data.name": "fashion_mnist"}, labels={"seed": 0})
    at = results.folder_of(made, tmp_path)
    (tmp_path / "run").rename(at)
    results.check_code([made], root=tmp_path, code_change="refuse")
    inputs = runs.Inputs({}, sources.make("fashion_mnist").info.fingerprint)
    config = config_flags.load(DIGITS, given).to_dict()
    Worker(config, inputs=inputs)
    changed(examples, folder)
    assert run(at, *given) == 2
    assert "config.data: changed" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"config\.data: has changed"):
        Worker(config, inputs=inputs)
    with pytest.raises(ValueError, match=r"config\.data changed since this run was started"):
        results.check_code([made], root=tmp_path, code_change="refuse")


def test_a_worker_that_starts_again_compares_the_files(tmp_path):
    write_trace(tmp_path / "trace.npz")
    given = ("--config.arrivals.name=trace", f"--config.arrivals.path={tmp_path / 'trace.npz'}")
    config = config_flags.load(DIGITS, given).to_dict()
    inputs = runs.Inputs(dependencies.describe(config), "")
    write_trace(tmp_path / "trace.npz", seed=1)
    with pytest.raises(ValueError, match=r"trace\.npz' has changed since the server started"):
        Worker(config, inputs=inputs)


PIPES = [
    ["--config.arrivals.name=trace", "--config.arrivals.path=FILE"],
    ["--config.server.name=asynchronous", "--config.server.order=FILE"],
    ["--config=SHAKESPEARE", "--config.data.source=FILE"],
    ["--config=SHAKESPEARE", "--config.data.source=FOLDER/*.np[z]", "--config.data.source=FOLDER/pip*"],
]


@pytest.mark.parametrize("given", PIPES, ids=lambda given: given[-1][-30:])
def test_a_pipe_in_the_place_of_a_file_is_refused(given, tmp_path, capsys):
    """Opening one waits for somebody who writes into it."""
    os.mkfifo(tmp_path / "pipe.npz")
    names = {"FILE": f"{tmp_path}/pipe.npz", "FOLDER": str(tmp_path), "SHAKESPEARE": f"{ROOT}/configs/shakespeare.py"}
    for name, value in names.items():
        given = [flag.replace(name, value) for flag in given]
    assert run(tmp_path / "run", *given) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("config.") and ("regular file" in line or "no file has such a name" in line), line
    with pytest.raises(ValueError, match="is not a regular file"):
        steps_to_target.parse_steps(names["FILE"], num_machines=2)
