"""The claim about local steps on a slow network: its configs, modelled times, its rule, its report."""

import math

import pytest

from experiments.claims.local_steps import claim as local_steps
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete

INF = math.inf
CLAIM = local_steps.CLAIM


def test_the_gpu_scale_takes_as_little_of_the_data_as_the_paper():
    (run, *_) = [run for run in CLAIM.runs("gpu", []) if run.labels["count"] == 16]
    config = run.config
    assert config["num_workers"] * config["batch_size_per_worker"] == 16 * 8 * 16 < 0.05 * 50_000
    assert config["model"] | {"name": "resnet20", "norm": "group"} == config["model"]
    assert len({run.config["train_epochs"] for run in CLAIM.runs("gpu", [])}) == 1


def rows_of(one, many, *, share=0.04, scale="gpu"):
    """Runs that reach the target after so many communications, of which one with local steps takes so much data."""

    def measured(labels):
        count = labels["count"]
        steps = (one if labels["count"] == 1 else many) + labels["seed"]
        last = steps if steps < INF else 1000
        away = abs(math.log(labels["rate"] / 0.01)) if labels["split"] == "validation" else 0
        epochs = [(last + 100 * away - 1) * count / 16 * share, (last + 100 * away) * count / 16 * share]
        reached = labels["target"] + 0.01 if steps < INF else 0.6
        return {"step": [last - 1, last], "epoch": epochs, "accuracy": [0.5, reached]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize(
    ("one", "many", "word", "fails"),
    [
        (1000, 100, HOLDS, []),  # 2,000 against 1,700 times of a local step, in 1.6 times the epochs
        (1000, 130, FAILS, ["below"]),  # 2,210
        (1000, 117, FAILS, ["below"]),  # 1,989: within the spread of the seeds
        (1000, 50, FAILS, ["above"]),  # faster, in fewer epochs
        (1000, INF, FAILS, None),
        (INF, 100, UNTESTED, None),
    ],
)
def test_each_part_of_the_rule_can_fail(one, many, word, fails):
    rows = rows_of(one, many)
    verdict = CLAIM.verdict(rows)
    assert verdict.word == word
    if fails is not None:
        assert [test.compared.split()[3] for test in verdict.tests if not test.holds] == fails
    df = CLAIM.frame(rows)
    assert len(CLAIM.summary(df)) == 2 and bool(CLAIM.facts(df)) == (INF not in (one, many))


def test_times_are_those_of_local_steps_and_communications():
    times = CLAIM.frame(rows_of(100, 10)).groupby("count")["time, communication / local step = 3"].first()
    assert times.to_dict() == {1: 100 * 4, 16: 10 * 19}


def test_at_break_even_both_take_equally_long():
    few, many = 68.0, 84.0
    ratio = local_steps.break_even(few, many, count=16)
    assert few * (1 + ratio) == pytest.approx(many * (1 + ratio / 16))
    assert local_steps.break_even(10.0, 160.0, count=16) == INF  # 16 times the epochs: never
    assert local_steps.break_even(10.0, 9.0, count=16) == 0.0  # fewer epochs: always
