"""The claim about BERT with Adam and LAMB: configs, controls, and the verdict for each part of its rule."""

import math

import pytest

from experiments.claims import bert_steps
from experiments.claims.bert_steps import Case
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, SETTINGS, TUNED = bert_steps.EXPERIMENT, bert_steps.SETTINGS, bert_steps.TUNED
# Losses of the claim: 20 % fewer steps cost LAMB alone 0.2 nats, and LAMB with Adasum 0.05.
LOSSES = {
    ("lamb", "mean", 1.0): 2.4,
    ("lamb", "mean", 0.8): 2.6,
    ("lamb", "deltas", 0.8): 2.6,
    ("lamb", "adasum", 0.8): 2.45,
    ("adam", "mean", 1.0): 2.4,
    ("adam", "deltas", 1.0): 2.4,
    ("adam", "adasum", 1.0): 2.2,
}


def rows(changes=None, *, scale="laptop"):
    """Rows of these losses, but for the cases in ``changes``; seeds are 0.01 apart, and a grid's middle is best."""

    def measured(labels):
        case = Case(**{key: labels[key] for key in Case._fields})
        grid = sorted(SETTINGS[scale].rates[case.optimizer, case.reducer])
        away = abs(math.log2(labels["rate"] / grid[len(grid) // 2])) / 10
        base = LOSSES.get((case.optimizer, case.reducer, case.share), 2.5)
        loss = (changes or {}).get(case, base) + 0.01 * labels["seed"] + away
        return {"step": [50, 100], bert_steps.METRIC: [loss + 1, loss]}

    return complete(CLAIM, measured, scale=scale)


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("scale", CLAIM.hours)
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, labels = run.config, run.labels
        steps, parts = SETTINGS[scale].batches[labels["batch"]]
        assert config["num_workers"] * config["batch_size_per_worker"] == labels["batch"]
        assert config["accumulation"]["count"] == parts
        assert config["train_steps"] == round(labels["share"] * steps)
        assert config["optimizer"]["name"] == {"lamb": "lamb", "adam": "adamw"}[labels["optimizer"]]
        expected = {"mean": ("mean", "gradients"), "deltas": ("mean", "updates"), "adasum": ("adasum", "updates")}
        assert (config["reducer"]["name"], config["reducer_on"]) == expected[labels["reducer"]]
        assert config["seed"] == labels["seed"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({Case("lamb", "adasum", 256, 0.8): 2.54}, FAILS),  # fewer steps cost too much
        ({Case("lamb", "adasum", 64, 0.8): 2.54}, FAILS),  # one batch is enough
        ({Case("lamb", "mean", 256, 0.8): 2.45}, FAILS),  # LAMB alone does as well with as few steps
        ({Case("lamb", "deltas", 256, 0.8): 2.45}, FAILS),  # and so does the mean of deltas
        ({Case("adam", "mean", 64, 1.0): 2.2}, FAILS),
        ({Case("adam", "deltas", 256, 1.0): 2.2}, FAILS),
        ({Case("adam", "mean", 256, 1.0): math.nan}, HOLDS),  # Adam alone diverges
        ({Case("adam", "adasum", 256, 1.0): math.nan}, FAILS),
        ({Case("lamb", "mean", 256, 1.0): math.nan}, UNTESTED),
        ({Case("lamb", "adasum", 256, 0.7): 9.0}, HOLDS),  # reported, and no part of the rule
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(changes))
    assert verdict.word == word
    assert len(verdict.contrasts) in ((0, 10) if word == UNTESTED else (10,))
    assert verdict.because.count("Not shown") == (word == FAILS)


ALONE, ADASUM = (Case("adam", reducer, 16384, 1.0) for reducer in ("mean", "adasum"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({ALONE: 4.0}, HOLDS),
        ({ALONE: math.nan}, HOLDS),
        ({}, UNTESTED),  # Adam alone does not fail
        ({ALONE: 2.8}, UNTESTED),
        ({ALONE: 4.0, ADASUM: 3.5}, FAILS),  # better, but it fails, too
        ({ALONE: 4.0, ADASUM: 4.0}, FAILS),
    ],
)
def test_a_gpu_tests_where_adam_fails(changes, word):
    found = rows(changes, scale="gpu")
    assert {row["optimizer"] for row in found} == {"adam"} and len({row["batch"] for row in found}) == 4
    assert CLAIM.verdict(found).word == word
    assert "16,384" in whole_report(CLAIM, found)


def test_shorter_runs_have_the_rate_of_the_longest():
    finals = TUNED.tests(rows(), optimizer="lamb", reducer="adasum", batch=256)
    assert {(row["share"], row["rate"]) for row in finals} == {(1.0, 0.01), (0.8, 0.01), (0.7, 0.01)}
    assert {row["share"] for row in TUNED.tried(rows(), optimizer="lamb")} == {1.0}


def test_a_missing_run_is_named():
    gone = Case("lamb", "mean", 64, 0.8)._asdict()
    verdict = CLAIM.verdict(without(rows(), split="test", **gone))
    assert verdict.word == UNTESTED and "reducer=mean,batch=64,share=0.8" in verdict.because


def test_it_is_reported_beside_the_papers_steps():
    found = rows()
    text = whole_report(CLAIM, found)
    assert "| LAMB with Adasum, 20 % fewer | 5,639 [MEM-lo] / 100 steps, 2.475 ± 0.019 nats (n=6) |" in text
    assert "6,137 [READ: table 1 of VRGD's paper, citing] /" in text
    assert len(CLAIM.table(found).cells) == 2 * (7 + 3) == len(CLAIM.findings(found)) + 4
    assert "(MLSys)" not in text and "20 % fewer epochs at the same quality [READ: abstract, MLSys] | +0.050" in text


def test_runs_under_other_labels_are_not_enough():
    old = [{key: value for key, value in row.items() if key != "batch"} for row in rows()]
    assert CLAIM.verdict(old).word == UNTESTED and not CLAIM.enough(old)
