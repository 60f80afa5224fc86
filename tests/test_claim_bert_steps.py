"""BERT with Adam and LAMB: runs of every scale, picks, and each verdict."""

import math

import pytest

from experiments.claims import bert_steps
from experiments.claims.bert_steps import ADAM, BASELINE, EXPERIMENT, FEWER, POINTS


def _row(point: bert_steps.Point, loss: float, *, seed: int = 0, split: str = "test", rate: float = 0.1) -> dict:
    tells = dict(zip(("optimizer", "reducer", "times", "share"), point, strict=True))
    more = {"rate": rate, "seed": seed, "split": split, "sequences": 64 * point[2]}
    return {**tells, **more, "step": [50, 100], bert_steps.METRIC: [loss + 1, loss]}


def _rows(**losses: float) -> list[dict]:
    """Runs whose last loss is 5, seeds 0.02 apart, but for those of the points that are given."""
    named = {"baseline": BASELINE, "fewer": FEWER[0], "adam": ADAM[0], "adam_adasum": ADAM[1]}
    given = {named[name]: loss for name, loss in losses.items()}
    rows = [_row(p, given.get(p, 5.0) + 0.02 * seed, seed=seed) for p in POINTS for seed in range(3)]
    return rows + [_row(point, 5.0, split="validation") for point in POINTS]


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ({"fewer": 5.01, "adam_adasum": 4.0}, "supported"),
        ({"fewer": 4.0, "adam": math.nan}, "supported"),  # Adam alone diverges
        ({"fewer": 5.2, "adam_adasum": 4.0}, "not supported"),  # fewer steps are worse
        ({"fewer": 5.0, "adam_adasum": 4.97}, "not supported"),  # within the spread
        ({"fewer": 5.0, "adam_adasum": math.nan}, "not supported"),
        ({"fewer": math.nan, "adam_adasum": 4.0}, "not supported"),
        ({"baseline": math.nan, "fewer": math.nan, "adam_adasum": 4.0}, "not tested at this scale"),
    ],
)
def test_verdicts(losses, word):
    rows = _rows(**losses)
    assert EXPERIMENT.judge(rows).word == word
    assert len(EXPERIMENT.findings(rows)) == len(EXPERIMENT.table(rows).cells) == len(POINTS)


def test_no_verdict_without_the_baseline():
    rows = [row for row in _rows() if bert_steps._of([row], BASELINE, split="test") == []]
    assert EXPERIMENT.judge(rows).word == "not tested at this scale"


def test_fewer_steps_have_the_rate_of_the_longest_run():
    assert {bert_steps._tuned_at(point) for point in FEWER} == {("lamb", "adasum", 1, 1.0)}
    rates = bert_steps.SETTINGS["laptop"].rates["lamb"]
    losses = [5.0, 4.0, *[5.0] * (len(rates) - 2)]
    longest = ("lamb", "adasum", 1, 1.0)
    rows = [_row(longest, at, split="validation", rate=rate) for rate, at in zip(rates, losses, strict=True)]
    finals = [run for run in EXPERIMENT.runs("laptop", rows) if run.labels["split"] == "test"]
    assert {run.labels["rate"] for run in finals} == {rates[1]}
    assert {run.labels["share"] for run in finals} == {1.0, 0.8, 0.7}


@pytest.mark.parametrize("scale", list(EXPERIMENT.hours))
def test_runs_tune_first_and_then_take_the_pick(scale):
    setting = bert_steps.SETTINGS[scale]
    tuning = EXPERIMENT.runs(scale, [])
    for run in tuning:
        config, tells = run.config, run.labels
        assert tells["split"] == config["data"]["evaluate_on"] == "validation"
        assert config["batch_size_per_worker"] == tells["times"] * setting.batch
        assert config["train_steps"] == round(tells["share"] * setting.steps)
        assert config["reducer_on"] == ("updates" if tells["reducer"] == "adasum" else "gradients")
        assert config["optimizer"]["name"] == {"lamb": "lamb", "adam": "adamw"}[tells["optimizer"]]
    rows = [{"step": [1], bert_steps.METRIC: [5.0], **run.labels} for run in tuning]
    finals = EXPERIMENT.runs(scale, rows)[len(tuning) :]
    assert len(finals) == len(POINTS) * bert_steps.SEEDS[scale]
    assert len({run.name for run in finals}) == len(finals)
