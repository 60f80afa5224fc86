"""The trainer in a script and in a notebook: the notebook runs, and parameters come out of any run's folder."""

import json

import matplotlib
import numpy as np
import pytest
from absl.testing import flagsaver

from runs.errors import ConfigError
from tests import ROOT
from tests.stepper import records
from tests.test_train import command
from training.checkpoints import restore_params


@pytest.fixture
def as_in_the_repository(tmp_path, monkeypatch):
    """A folder in which a program of the docs finds what it finds in the root of the repository."""
    for name in ("configs", "train.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plotting(monkeypatch):
    before = matplotlib.get_backend()
    matplotlib.use("agg")
    yield
    matplotlib.use(before)


def test_the_notebook_runs_and_prints_what_it_shows(as_in_the_repository, plotting, capsys):
    notebook = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace = {"__name__": "notebook"}
    with flagsaver.flagsaver():
        for number, cell in enumerate(cells, start=1):
            assert cell["execution_count"] == number, "the notebook was not run from its first cell to its last"
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
            printed = capsys.readouterr().out
            shown = "".join("".join(o["text"]) for o in cell["outputs"] if o.get("name") == "stdout")
            assert without_times(printed) == without_times(shown)
    (image,) = (o for cell in cells for o in cell["outputs"] if "image/png" in o.get("data", {}))
    assert len(image["data"]["image/png"]) > 1000
    for name in ("mean", "adasum"):
        assert records(f"out/quickstart/{name}", "eval")[-1]["accuracy"] > 0.5


def without_times(text):
    """Lines but for those that depend on the machine, its folders and its interpreter."""
    machine = ("test accuracy", "speed", "time", "plot")
    return [line for line in text.splitlines() if not line.startswith(machine)]


def test_a_folder_without_parameters_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"must be the folder of a run, with a config\.json"):
        restore_params(tmp_path)
    run = ("--config=configs/digits.py", "--config.model.name=softmax", "--config.train_steps=2", "--num_devices=1")
    assert command(*run, f"--workdir={tmp_path}") == 0
    assert restore_params(str(tmp_path))["Dense_0"]["kernel"].shape == (64, 10)
    assert restore_params(tmp_path, checkpoint=2)["Dense_0"]["kernel"].dtype == np.float32
    with pytest.raises(ConfigError, match=r"checkpoint 1 in .* is missing; the steps with a checkpoint are"):
        restore_params(tmp_path, checkpoint=1)
