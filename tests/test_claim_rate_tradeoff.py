"""The learning rate at 100 workers: the runs, and the verdict for each outcome of each part of the rule."""

import pytest

from experiments.claims import rate_tradeoff
from experiments.study import datasets, report
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM = rate_tradeoff.EXPERIMENT
EPOCHS = [15.0, 30.0, 45.0, 60.0]
CURVES = {
    0.25: [0.86, 0.88, 0.8855, 0.8855],
    0.5: [0.84, 0.88, 0.892, 0.893],
    1.0: [0.80, 0.86, 0.890, 0.898],
    2.0: [0.80, 0.85, 0.885, 0.8975],
}


def tradeoff_rows(low=CURVES[0.25], *, scale="gpu", updates=3750):
    def measured(labels):
        curve = {**CURVES, 0.25: low}[labels["factor"]]
        worse = 0.01 * (labels["split"] == "validation" and labels["base"] != 0.004)
        accuracy = [value - worse + (labels["seed"] - 1) * 0.0002 for value in curve]
        return {"accuracy": accuracy, "epoch": EPOCHS, "step": [updates * epoch / 60 for epoch in EPOCHS]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config = run.config
        assert (config["num_workers"], config["reducer"]["num_required"]) == (106, 100)
        assert config["learning_rate_scaling"] == "linear" and config["schedule"]["decay_factor"] == 0.94
        assert config["optimizer"]["learning_rate"] == run.labels["base"] * run.labels["factor"]
        assert config["data"]["name"] == run.labels["data"] and config["seed"] == run.labels["seed"]


def test_digits_stand_in_at_the_laptop_scale_alone():
    with datasets.stand_in("digits"):
        for scale, data in {"smoke": "digits", "laptop": "digits", "gpu": "cifar10"}.items():
            runs = CLAIM.runs(scale, [])
            assert {run.config["data"]["name"] for run in runs} == {run.labels["data"] for run in runs} == {data}
            assert (runs[0].config["train_epochs"] == 400) == (scale == "laptop")


@pytest.mark.parametrize(
    ("low", "word"),
    [
        (CURVES[0.25], HOLDS),
        ([0.80, 0.86, 0.88, 0.8855], FAILS),  # no sooner at the modest accuracy
        ([0.86, 0.88, 0.89, 0.8979], FAILS),  # lower by less than the noise
        ([0.86, 0.88, 0.89, 0.91], FAILS),  # the best itself
        ([0.80, 0.81, 0.82, 0.84], UNTESTED),  # never at the modest accuracy
    ],
)
def test_the_tradeoff(low, word):
    assert CLAIM.verdict(tradeoff_rows(low)).word == word


def test_runs_of_few_updates_decide_nothing():
    assert CLAIM.verdict(tradeoff_rows(updates=3000)).word == HOLDS
    verdict = CLAIM.verdict(tradeoff_rows(updates=2999))
    assert verdict.word == UNTESTED and "has 2999 updates" in verdict.because
    assert CLAIM.judge(tradeoff_rows(scale="laptop", updates=563)).word == UNTESTED


def test_the_target_does_not_depend_on_the_worst_run():
    rows = tradeoff_rows()
    for row in rows:
        if row["factor"] == 2.0:
            row["accuracy"] = [0.1, 0.1, 0.1, 0.1]
    assert CLAIM.verdict(rows).word == HOLDS
    ours = {finding.quantity: finding.ours for finding in CLAIM.findings(rows)}
    assert ours["epochs to 85 %, 2 of the linear rule's rate"] == "3 of 3 runs do not get there"
    assert ours["epochs to 85 %, 1 of the linear rule's rate"].mean == 30.0


def test_the_tradeoff_is_reported():
    rows = tradeoff_rows()
    assert "ends at 88.55 ± 0.02 % (n=3), the whole rate at 89.80 ± 0.02 % (n=3)" in CLAIM.judge(rows).because
    assert CLAIM.verdict(without(rows, split="test")).word == UNTESTED
    assert str(CLAIM.basis(rows)) == "cifar10, ResNet-20, n = 3"
    text = whole_report(CLAIM, rows)
    assert "78.15 % [MEM med-hi] / 89.80 ± 0.02 % (n=3)" in text and "190 [DERIVED from MEM med-hi] / 60.0" in text
    levels, curves = report.draw(CLAIM, rows).axes
    assert list(levels.lines[0].get_xdata()) == list(CURVES) and len(curves.lines) == 5
