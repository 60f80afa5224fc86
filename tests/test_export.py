"""`experiments export`: a safetensors file has the bits at which a run is evaluated."""

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import runs
from experiments.__main__ import main
from tests import ROOT
from tests.in_process import train_py
from training.checkpoints import restore_params


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "run"
    given = (
        "model.name=softmax",
        "ema_decay=0.9",
        "train_steps=20",
        "checkpoint_every_steps=10",
        "eval_every_steps=10",
    )
    flags = [f"--config.{override}" for override in given]
    assert train_py(f"--config={ROOT}/configs/digits.py", *flags, "--num_devices=1", f"--workdir={folder}") == 0
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


def test_a_file_lies_in_the_folder_of_the_run(folder):
    assert main(["export", str(folder)]) == 0
    assert (folder / "params.safetensors").exists()


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
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 2
    assert "must be the folder of a run" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
