"""The images that an experiment takes, and the error where they are missing."""

import pytest

from experiments.study import datasets
from experiments.study.run import Run


@pytest.mark.parametrize("scale", ["laptop", "gpu", "paper"])
def test_digits_stand_in_for_mnist_only_where_they_are_asked_for(scale):
    assert datasets.image_set(scale) == {"data.name": "mnist"}
    with datasets.stand_in("digits"):
        assert datasets.image_set(scale) == {"data.name": "digits"}
        with datasets.stand_in(None):
            assert datasets.image_set(scale) == {"data.name": "digits"}
    assert datasets.image_set(scale) == datasets.image_set(scale) == {"data.name": "mnist"}


def test_smoke_takes_digits():
    assert datasets.image_set("smoke") == {"data.name": "digits"}


def trained(**overrides):
    return Run(labels={}, spec="configs/digits.py", overrides={"data.name": "digits", **overrides})


MISSING = [
    (trained(**{"data.name": "mnist"}), "run `python -m data.prepare mnist`, or take digits instead by --data=digits"),
    (Run(labels={"data": "mnist"}), "`python -m data.prepare mnist`, or take digits instead by --data=digits"),
    (trained(**{"data.name": "cifar10"}), "run `python -m data.prepare cifar10`"),
    (
        Run(labels={}, spec="configs/bert_lamb.py:laptop", overrides={"data.source": "imdb_reviews"}),
        "run `python -m data.prepare imdb_reviews`",
    ),
]


@pytest.mark.parametrize(("run", "said"), MISSING)
def test_missing_data_are_refused_in_a_line_with_the_command_that_prepares_them(run, said, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    there = [trained(), Run(labels={"data": "synthetic"}), Run(labels={"seed": 0})]
    datasets.check(there)
    with pytest.raises(ValueError, match="not prepared in") as error:
        datasets.check([*there, run])
    assert str(error.value).endswith(said) and "\n" not in str(error.value)
