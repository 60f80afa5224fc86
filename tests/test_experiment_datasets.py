"""Which images an experiment takes."""

import pytest

from experiments import datasets


@pytest.mark.parametrize("scale", ["laptop", "gpu", "paper"])
def test_mnist_is_taken_where_it_is_prepared(scale, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert datasets.image_set(scale) == {"data.name": "digits"}
    prepared = tmp_path / "mnist" / "3.0.1" / "dataset_info.json"
    prepared.parent.mkdir(parents=True)
    assert datasets.image_set(scale) == {"data.name": "digits"}  # a folder alone is none
    prepared.write_text("{}")
    assert datasets.image_set(scale) == {"data.name": "mnist"}


def test_smoke_takes_digits_whatever_is_prepared(monkeypatch, tmp_path):
    prepared = tmp_path / "mnist" / "3.0.1" / "dataset_info.json"
    prepared.parent.mkdir(parents=True)
    prepared.write_text("{}")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert datasets.image_set("smoke") == {"data.name": "digits"}


def test_a_folder_that_is_none_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="TFDS_DATA_DIR"):
        datasets.image_set("laptop")
