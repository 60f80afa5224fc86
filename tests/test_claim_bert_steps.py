"""The claim about BERT with Adam and LAMB: configs, controls, and the verdict for each part of its rule."""

import math

import pytest

from experiments.claims.bert_steps import claim as bert_steps
from experiments.claims.bert_steps.claim import Case
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, whole_report

CLAIM, SETTINGS, TUNED = bert_steps.CLAIM, bert_steps.SETTINGS, bert_steps.TUNED
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


def test_runs_under_other_labels_are_not_enough():
    old = [{key: value for key, value in row.items() if key != "batch"} for row in rows()]
    assert CLAIM.verdict(old).word == UNTESTED and not CLAIM.enough(old)
