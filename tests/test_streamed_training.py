"""Whole runs on images that are decoded as they are needed."""

import numpy as np
import pytest

import runs
from data import streams
from tests.data_folders import random_images
from tests.prepared_sets import write_images
from tests.refused import line_of
from tests.test_train import command, digits, without_clock

SHORT = ("--config.train_steps=6", "--config.log_every_steps=1", "--config.eval_every_steps=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    splits = {"train": random_images(80, seed=0), "validation": random_images(30, seed=1)}
    folder = tmp_path_factory.mktemp("sets")
    write_images(folder, "imagenet2012", splits)
    return folder


def arguments(workdir, folder, *more):
    data = ("--config.data.name=imagenet2012", f"--config.data.dir={folder}", "--config.data.image_size=12")
    return digits(workdir, *SHORT, "--config.checkpoint_every_steps=3", *data, "--config.data.processes=0", *more)


@pytest.mark.parametrize("evaluate_on", ["validation", "test"])
def test_a_run_and_the_same_run_in_two_parts(evaluate_on, folder, tmp_path, monkeypatch, capsys):
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    key = f"--config.data.evaluate_on={evaluate_on}"
    assert command(*arguments(whole, folder, key)) == 0
    gather, calls = streams.Images.gather, []

    def failing(self, index, batch_index):
        calls.append(batch_index)
        if len(calls) > 4 and (batch_index >= 0).all():
            raise ValueError("data.name='imagenet2012': the disk is gone")
        return gather(self, index, batch_index)

    with monkeypatch.context() as patch:
        patch.setattr(streams.Images, "gather", failing)
        assert command(*arguments(parts, folder, key)) == 1
    said = capsys.readouterr().err
    assert "config.data.name='imagenet2012': the disk is gone; the same command goes on" in said
    assert "Traceback" not in said
    assert command(*arguments(parts, folder, key)) == 0
    assert without_clock(whole) == without_clock(parts)
    records = runs.read(whole / "metrics.jsonl")
    assert [r["step"] for r in records if r["kind"] == "eval"] == [3, 6]
    assert np.isfinite([record["loss"] for record in records]).all()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--config.data.placement=device",),
            "config.data.image_size=12: crops are made as images are read, which placement='device' does not allow",
        ),
        (("--config.data.name=digits", "--config.data.dir="), "which name='digits' does not allow"),
        (("--config.data.image_size=0",), "config.data.image_size=0: must be int in [1, 4096] or None"),
    ],
)
def test_refused(folder, tmp_path, more, message, capsys):
    assert command(*arguments(tmp_path / "run", folder, *more)) == 2
    assert message in line_of(capsys) and not (tmp_path / "run").exists()
