"""The summary of a finished run names the method that the run used."""

import pathlib

import pytest

import runs

SUMMARY = {
    "num_devices": 8,
    "lanes": 1,
    "step": 120,
    "loss": 0.5,
    "accuracy": 0.975,
    "epoch": 2.0,
    "wall_seconds": 3.0,
    "simulated_seconds": 4.0,
    "steps_per_second": 10.0,
    "examples_per_second": 1280.0,
}
CONFIG = {
    "num_workers": 8,
    "data": {"name": "digits", "evaluate_on": "test"},
    "model": {"name": "mlp"},
    "reducer": {"name": "mean"},
    "server": {"name": "synchronous"},
}


def _summary(config):
    options = {"metric": "accuracy", "path": pathlib.Path("out/run"), "spec": "configs/digits.py", "overrides": ()}
    return runs.summarise(SUMMARY, config=config, **options)


def test_a_synchronous_run_names_its_reducer():
    text = _summary(CONFIG)
    assert "digits, mlp: 8 workers = 8 devices x 1, synchronous, reducer mean, 120 steps" in text
    assert "test accuracy  97.50%  (loss 0.5000, epoch 2.0)" in text and "--config.reducer.name=sum" in text


@pytest.mark.parametrize("rule", ["inverse", {"name": "inverse"}])
def test_an_asynchronous_run_names_its_rule_and_no_reducer(rule):
    text = _summary({**CONFIG, "server": {"name": "asynchronous", "rule": rule}})
    assert "8 devices x 1, asynchronous, rule inverse, 120 steps" in text
    assert "reducer" not in text and "--config.server.name=synchronous" in text


def test_a_damaged_summary_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^workdir='out/run': DONE is damaged \(.*\); remove it$"):
        runs.summarise({}, metric="accuracy", config=CONFIG, path=pathlib.Path("out/run"), spec="", overrides=())
