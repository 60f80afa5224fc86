"""The claim about BERT with Adam and LAMB: configs, controls, and the verdict for each part of its rule."""

import math

import pytest

from experiments.claims.bert_steps import claim as bert_steps
from experiments.claims.bert_steps.claim import Case
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, whole_report

CLAIM, SETTINGS = bert_steps.CLAIM, bert_steps.SETTINGS


def rows(changes):
    """Rows at scale gpu, but for the cases in ``changes``; seeds are 0.01 apart, and a grid's middle is best."""

    def measured(labels):
        case = Case(**{key: labels[key] for key in Case._fields})
        _, middle, _ = SETTINGS["gpu"].rates[case.optimizer, case.reducer]
        away = abs(math.log2(labels["rate"] / middle)) / 10
        loss = changes.get(case, 2.4 if case.reducer == "mean" else 2.2) + 0.01 * labels["seed"] + away
        return {"step": [50, 100], bert_steps.METRIC: [loss + 1, loss]}

    return complete(CLAIM, measured, scale="gpu")


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
    found = rows(changes)
    assert {row["optimizer"] for row in found} == {"adam"} and len({row["batch"] for row in found}) == 4
    assert CLAIM.verdict(found).word == word
    assert "16,384" in whole_report(CLAIM, found)
