"""`experiments export`: a safetensors file has the bits at which a run is evaluated."""

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from safetensors import safe_open
from safetensors.numpy import load_file

import models
import runs
from configs.flags import load
from data.augment import as_inputs
from experiments.__main__ import main
from tests.in_process import DIGITS, keys, train_py
from tests.refused import line_of
from tests.stepper import Normalised
from training.checkpoints import restore_params
from training.setup import make_setup


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "run"
    flags = keys("model.name=softmax ema_decay=0.9 train_steps=20 checkpoint_every_steps=10 eval_every_steps=10")
    assert train_py(f"--config={DIGITS}", *flags, "--num_devices=1", f"--workdir={folder}") == 0
    return folder


@pytest.mark.parametrize("checkpoint", ["best", "latest", "20"])
def test_a_file_has_the_parameters_of_a_checkpoint(checkpoint, folder, tmp_path, capsys):
    path = tmp_path / "params.safetensors"
    assert main(["export", str(folder), f"--checkpoint={checkpoint}", f"--output={path}"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    expected = runs.flatten(restore_params(folder, checkpoint=int(checkpoint) if checkpoint == "20" else checkpoint))
    found = load_file(path)
    assert {name: (leaf.dtype, leaf.tobytes()) for name, leaf in found.items()} == {
        name: (leaf.dtype, leaf.tobytes()) for name, leaf in expected.items()
    }
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == set(expected)


@pytest.mark.parametrize("more", ["", "ema_decay=0.9", "num_workers=3 freeze=bias$"])
def test_a_file_has_what_a_model_with_statistics_is_evaluated_with(more, tmp_path, monkeypatch):
    """The accuracy of what is in the file is that of the records, of any number of workers."""
    monkeypatch.setitem(models.MODELS, "normalised", Normalised)
    flags = keys(f"model.name=normalised ema_decay=None train_steps=10 eval_every_steps=10 {more}")
    assert train_py(f"--config={DIGITS}", *flags, "--num_devices=1", f"--workdir={tmp_path}") == 0
    assert main(["export", str(tmp_path)]) == 0
    found = unflatten_dict(load_file(tmp_path / "params.safetensors"), sep="/")
    state = {"batch_stats": found.pop("batch_stats")}
    setup = make_setup(load(DIGITS, flags))
    dataset = setup.source.load(0)
    index = np.arange(dataset.test.num_examples)[None]
    columns = dataset.test.gather(index, np.array([-1]))
    batch = as_inputs({name: column[0] for name, column in columns.items()}, dataset.constants)
    sums = setup.task.evaluate(found, state, batch, np.ones(index.size, np.float32))
    (recorded,) = (r["loss"] for r in runs.read(tmp_path / "metrics.jsonl") if r["kind"] == "eval" and r["step"] == 10)
    assert float(setup.task.metrics(sums)["loss"]) == pytest.approx(recorded, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint=7"], "7"),
        (["--checkpoint=first"], "checkpoint='first': must be latest, best or a step"),
        (["--output=/dev/null/params"], "/dev/null/params"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(arguments, message, folder, capsys):
    assert main(["export", str(folder), *arguments]) == 2
    assert message in line_of(capsys)


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 2
    assert "must be the folder of a run" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
