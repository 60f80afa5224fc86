"""DiLoCo beside AdamW: configs, the verdict for each outcome, and the bytes of rounds."""

import math
import random

import pytest

from experiments.claims import diloco
from experiments.study import report
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, TUNED = diloco.EXPERIMENT, diloco.TUNED
AS_CLAIMED = {(8, 0): 2.0, (8, 1): 2.1, (8, 10): 2.05, (8, 50): 2.01, (1, 0): 2.6, (1, 50): 2.5}


def rows(ends=None, *, spread=0.002):
    """Rows that end as the claim has it, but for those in ``ends``."""

    def measured(labels):
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        end = {**AS_CLAIMED, **(ends or {})}.get((labels["workers"], labels["every"]), 2.6) + noise
        end += 0.1 * abs(math.log(labels["rate"] / 0.002)) * (labels["split"] == "validation")
        end -= 0.5 * (labels["split"] == "validation")  # which no verdict may see
        sent = 0.0 if labels["workers"] == 1 else 5e8 / max(1, labels["every"])
        return {"step": [1500, 3000], "epoch": [1.0, 2.0], "loss": [end + 0.3, end], "sent_bytes": [sent / 2, sent]}

    return complete(CLAIM, measured)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, labels = run.config, run.labels
        assert config["optimizer"]["name"] == "adamw" and config["optimizer"]["learning_rate"] == labels["rate"]
        assert config["num_workers"] == labels["workers"] and config["data"]["name"] == labels["data"] == "text"
        if labels["every"]:
            assert config["reducer"]["name"] == "local_sgd" and config["reducer"]["every_steps"] == labels["every"]
            assert config["reducer_on"] == "updates" and config["outer"].items() >= diloco.OUTER.items()
        else:
            assert config["reducer"] == {"name": "mean"} and config["reducer_on"] == "gradients"
            assert config["outer"] == {"name": "none"}
        assert config["train_steps"] % 50 == 0  # no round is cut off


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"ends": {(8, 50): 1.9}}, HOLDS),  # better is not worse
        ({"ends": {(8, 1): 3.0, (1, 10): 3.0}}, HOLDS),  # these are not judged
        ({"ends": {(8, 50): 2.06}}, FAILS),
        ({"ends": {(1, 50): 2.7}}, FAILS),
        ({"ends": {(8, 50): 2.0401}}, UNTESTED),  # at the margin: neither is shown
        ({"ends": {(1, 50): 2.6001}}, UNTESTED),
        ({"spread": 0.2}, UNTESTED),
        ({"ends": {(8, 10): math.nan}}, UNTESTED),
        ({"ends": {(8, 0): 2.6, (8, 50): 2.6}}, UNTESTED),  # as good as one that learns little
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and len(verdict.contrasts) in ((0, 4) if word == UNTESTED else (4,))


def test_the_margin_is_two_percent_of_eight_workers_and_none_of_one():
    eight, one, *_ = CLAIM.verdict(rows(spread=0.0005)).contrasts
    assert eight.compared == "H = 50 below AdamW and 2 %, 8 workers" and one.compared == "H = 50 below AdamW, 1 worker"
    assert eight.difference == pytest.approx(0.01, abs=2e-3) and one.difference == pytest.approx(-0.1, abs=2e-3)
    assert "against 0.04 nats" in eight.method and "against 0 nats" in one.method


def test_all_seeds_of_all_methods_are_needed():
    verdict = CLAIM.verdict(without(rows(), split="test", every=10, seed=4))
    assert verdict.word == UNTESTED and "Runs are missing" in verdict.because


def test_it_is_reported():
    found = [{**row, "data": "text"} for row in rows(spread=0.0)]
    text = whole_report(CLAIM, found)
    assert "| loss of H = 50 above that of AdamW, 8 workers | less than 2 %" in text and "| +0.5 % |" in text
    sent = {(line[0], line[1]): line[-1] for line in CLAIM.table(found).cells}
    assert sent["8", "AdamW"] == "500.00" and sent["8", "DiLoCo, H = 50"] == "10.00" and sent["1", "AdamW"] == "0.00"
    (ratio,) = (finding.ours for finding in CLAIM.findings(found) if "bytes" in finding.quantity)
    assert ratio == "50"
    panels = report.draw(CLAIM, found).axes
    assert [len(axes.lines) for axes in panels] == [4, 4]
    assert str(CLAIM.basis(found)) == "text, byte transformer of 22 k parameters, n = 5"
