"""Local steps: the modelled time, the break-even, picks, runs of every scale, and each verdict."""

import math

import pytest

from experiments import report
from experiments.claims import local_steps
from experiments.claims.local_steps import COUNTS, EXPERIMENT, SLOW


def _row(
    count: int, *, steps: float, rate: float = 0.1, seed: int = 0, split: str = "test", target: float = 0.9
) -> dict:
    """A run that is at 91 % after so many communications, of 1 ms local steps and 10 ms communications."""
    reached = [0.5, 0.91] if math.isfinite(steps) else [0.5, 0.6]
    last = steps if math.isfinite(steps) else 1000
    return {
        "count": count,
        "rate": rate,
        "split": split,
        "seed": seed,
        "data": "mnist",
        "part": 32,
        "num_workers": 16,
        "target": target,
        "step": [last - 1, last],
        "epoch": [(last - 1) * count / 100, last * count / 100],
        "accuracy": reached,
        "bytes_per_worker": SLOW * 0.010 / 8,
        "examples_per_second": count * 32 * 16 / (count * 16 * 0.001 + 0.05),  # 50 ms a step besides
    }


def _rows(one: float, many: float) -> list[dict]:
    tests = [_row(c, steps=n + seed, seed=seed) for c, n in zip(COUNTS, (one, many), strict=True) for seed in range(3)]
    return tests + [_row(c, steps=50.0, split="validation") for c in COUNTS]


def test_modelled_seconds():
    rows = _rows(100, 10)
    assert local_steps.compute_seconds(rows) == pytest.approx(0.001)
    one = local_steps.modelled_seconds(rows[0], compute=0.001, link=SLOW)
    many = local_steps.modelled_seconds(rows[3], compute=0.001, link=SLOW)
    assert one == pytest.approx(100 * (0.001 + 0.010))
    assert many == pytest.approx(10 * (16 * 0.001 + 0.010))


def test_at_break_even_both_take_equally_long():
    few, many = 68.0, 84.0
    ratio = local_steps.break_even(few, many, count=16)
    assert few * (1 + ratio) == pytest.approx(many * (1 + ratio / 16))
    assert local_steps.break_even(10.0, 160.0, count=16) == math.inf  # 16 times the epochs: never
    assert local_steps.break_even(10.0, 9.0, count=16) == 0.0  # fewer epochs: always


@pytest.mark.parametrize(
    ("one", "many", "word"),
    [
        (100, 20, "supported"),  # 1.1 s against 0.5 s
        (100, 80, "not supported"),  # 2.1 s
        (100, 42, "not supported"),  # the difference is within the spread of the seeds
        (100, math.inf, "not supported"),
        (math.inf, 20, "not tested at this scale"),
    ],
)
def test_verdicts(one, many, word):
    verdict = EXPERIMENT.judge(_rows(one, many))
    assert verdict.word == word
    assert len(EXPERIMENT.table(_rows(one, many)).cells) == 2
    assert bool(EXPERIMENT.findings(_rows(one, many))) == (math.isfinite(one) and math.isfinite(many))


def test_speeds_that_give_a_local_step_no_time_decide_nothing():
    rows = [{**row, "examples_per_second": 1e3 * row["count"] ** 2} for row in _rows(100, 20)]
    assert local_steps.compute_seconds(rows) < 0 and EXPERIMENT.judge(rows).word == "not tested at this scale"


def test_half_of_the_runs_can_be_told_and_drawn():
    rows = [row for row in _rows(100, 20) if row["count"] == COUNTS[0]]
    assert len(EXPERIMENT.table(rows).cells) == 2 and EXPERIMENT.findings(rows) == []
    assert report.draw(EXPERIMENT, rows).axes


def test_the_rate_with_the_fewest_epochs_is_picked_and_the_most_accurate_of_those_that_fail():
    tried = [_row(1, steps=steps, rate=rate) for steps, rate in ((30, 0.1), (20, 0.2), (math.inf, 0.3))]
    assert local_steps._picked(tried) == 0.2
    fail = [{**_row(1, steps=math.inf, rate=rate), "accuracy": [0.1, last]} for last, rate in ((0.2, 0.1), (0.3, 0.2))]
    assert local_steps._picked(fail) == 0.2


def test_reduce_takes_evaluations_and_the_median_speed():
    train = [{"kind": "train", "step": i, "examples_per_second": speed} for i, speed in enumerate((1.0, 100.0, 90.0))]
    evaluation = {"kind": "eval", "step": 3, "epoch": 1.0, "accuracy": 0.5, "loss": 1.0, "bytes_per_worker": 7.0}
    row = local_steps._reduce([*train, evaluation])
    assert row == {
        "step": [3],
        "epoch": [1.0],
        "accuracy": [0.5],
        "bytes_per_worker": 7.0,
        "examples_per_second": 90.0,
    }


@pytest.mark.parametrize("scale", list(EXPERIMENT.hours))
def test_runs_tune_first_and_then_take_the_pick(scale):
    tuning = EXPERIMENT.runs(scale, [])
    assert all(run.labels["split"] == "validation" and run.labels["seed"] == 0 for run in tuning)
    for run in tuning:
        config = run.config
        assert config["batch_size_per_worker"] == run.labels["part"] * run.labels["count"]
        assert config["reducer"]["name"] == "adasum" and config["reducer_on"] == "updates"
        assert config["data"]["evaluate_on"] == "validation"
    rows = [{**_row(1, steps=30 if i % 2 else 20), **run.labels} for i, run in enumerate(tuning)]
    finals = EXPERIMENT.runs(scale, rows)[len(tuning) :]
    assert {run.labels["split"] for run in finals} == {"test"}
    assert len(finals) == len(COUNTS) * local_steps.SEEDS[scale]
    assert finals[0].config["data"]["evaluate_on"] == "test"
