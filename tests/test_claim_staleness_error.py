"""Test error against staleness: runs, pick and verdict."""

import pytest

from experiments import report
from experiments.claims import staleness_error as claim


def tuning(rate, accuracy):
    tells = {"staleness": 50, "start": "ramp-up", "rate": rate, "split": "validation", "seed": 0, "data": "mnist"}
    return {**tells, "accuracy": [0.1, accuracy]}


def finals(staleness, error, *, start="ramp-up", spread=0.05):
    return [
        {
            "staleness": staleness,
            "start": start,
            "rate": 0.005,
            "split": "test",
            "seed": seed,
            "data": "mnist",
            "accuracy": [0.1, 1 - (error + (seed - 1) * spread) / 100],
        }
        for seed in range(3)
    ]


def outcome(errors, *, abrupt=90.2):
    rows = [row for staleness, error in errors.items() for row in finals(staleness, error)]
    return rows + [row for staleness in (20, 50) for row in finals(staleness, abrupt, start="abrupt")]


SUPPORTING = {0: 1.0, 10: 1.05, 20: 1.2, 50: 1.9}


def test_the_claims_outcome_supports_it():
    verdict = claim._judge(outcome(SUPPORTING))
    assert verdict.word == "supported" and "1.90 ± 0.05 % (n=3)" in verdict.because


@pytest.mark.parametrize(
    ("errors", "abrupt"),
    [
        ({**SUPPORTING, 20: 0.9}, 90.2),  # does not rise
        ({**SUPPORTING, 20: 1.01, 50: 1.02}, 90.2),  # rises less than the noise
        ({**SUPPORTING, 50: 90.2}, 90.2),  # the ramp-up does not help
        (SUPPORTING, 2.0),  # the ramp-up is not needed
    ],
)
def test_other_outcomes_do_not(errors, abrupt):
    assert claim._judge(outcome(errors, abrupt=abrupt)).word == "not supported"


@pytest.mark.parametrize("rows", [outcome({0: 40.0, 20: 41.0, 50: 45.0}), outcome(SUPPORTING)[:-3], finals(0, 1.0)])
def test_nothing_is_said_where_nothing_was_learned_or_runs_are_missing(rows):
    assert claim._judge(rows).word == "not tested at this scale"


def test_what_was_measured_takes_no_name_of_what_the_run_tells():
    record = {"kind": "eval", "step": 2, "epoch": 0.5, "accuracy": 0.9, "staleness": 4.0, "learning_rate": 0.1}
    measured = claim.EXPERIMENT.reduce([{"kind": "train", "step": 1}, record])
    assert measured == {"step": [2], "epoch": [0.5], "accuracy": [0.9]}
    assert not set(measured) & set(claim._runs("laptop", [])[0].labels)


def test_the_rate_suits_the_most_stale():
    assert claim._picked([tuning(0.01, 0.1), tuning(0.005, 0.96), tuning(0.001, 0.9), *finals(0, 1.0)]) == 0.005


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_runs_come_in_two_stages_of_configs_that_load(scale):
    first = claim._runs(scale, [])
    assert {run.labels["split"] for run in first} == {"validation"}
    rows = [{**run.labels, "accuracy": [0.5 + run.labels["rate"]]} for run in first]
    second = claim._runs(scale, rows)[len(first) :]
    assert {run.labels["rate"] for run in second} == {claim._picked(rows)}
    assert {run.labels["seed"] for run in second} == set(range(claim.SEEDS[scale]))
    for run in (first[-1], second[0], second[-1]):
        config = run.config
        assert config["reducer"]["delay_steps"] == run.labels["staleness"]
        assert (config["reducer"]["ramp_up_steps"] > 0) == (run.labels["start"] == "ramp-up")
        assert config["data"]["evaluate_on"] == run.labels["split"] and config["train_epochs"] is None


def test_the_report_shows_every_kind():
    rows = [tuning(0.005, 0.97), *outcome(SUPPORTING)]
    origin = {"commit": "0" * 40, "tree": "clean", "jax": "0", "devices": ["cpu"], "wall_seconds": 1.0}
    text = report.section(claim.EXPERIMENT, [{**row, "origin": origin} for row in rows])
    assert text.count("fails to converge from about 15 on [MEM med]") == 2 and "0.36 % [MEM med]" in text
    (axes,) = report.draw(claim.EXPERIMENT, rows).axes
    assert list(axes.lines[0].get_xdata()) == [0, 10, 20, 50] and list(axes.lines[1].get_xdata()) == [20, 50]
