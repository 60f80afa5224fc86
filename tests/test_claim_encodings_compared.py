"""Encodings with and without error feedback: configs, the verdict for each outcome, the table and the figure."""

import math
import random

import pytest

from experiments.claims import encodings_compared
from experiments.study import report
from experiments.study.encoded_runs import FULL
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, RUNS = encodings_compared.EXPERIMENT, encodings_compared.RUNS
BEHIND, LEVEL = encodings_compared.BEHIND, encodings_compared.LEVEL


def rows(ends=None, *, spread=0.001):
    """Rows that end as the claim has it, but for those in ``ends``."""

    def measured(labels):
        name = labels["encoding"]
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        end = {BEHIND: 0.93, **(ends or {})}.get(name, 0.97) + noise
        end -= 0.02 * abs(math.log(labels["rate"] / RUNS.other_rates.get(name, RUNS.rates)[1]))
        end -= 0.1 * (labels["split"] == "validation")  # which no verdict may see
        sent = 4e8 if name == FULL else 1e7
        return {"step": [1, 2], "epoch": [0.5, 1.0], "accuracy": [0.5, end], "sent_bytes": [sent / 2, sent]}

    return complete(CLAIM, measured)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in CLAIM.runs(scale, []):
        sent, name = run.config["communication"], run.labels["encoding"]
        assert name.startswith(sent["name"])
        if name not in (FULL, "half"):
            assert sent["error_feedback"] == ("on" if name.endswith(" with feedback") else "off")
            assert sent.get("min_elements", 1) == 1 and sent.get("ratio", 0.01) == 0.01
            assert sent.get("bits", 4) == sent.get("start_bits", 4) == sent.get("rank", 4) == 4
    for run in some_runs(CLAIM, scale):
        assert run.config["optimizer"]["learning_rate"] == run.labels["rate"]
        assert run.config["train_steps"] == {"smoke": 40, "laptop": 1000}[scale]


def test_every_encoding_is_there_with_and_without_feedback():
    from reducers.wrappers.communication import COMMUNICATIONS

    names = {block["name"] for block in RUNS.encodings.values()}
    assert names == {*COMMUNICATIONS} - {"by_pattern"}
    assert len(RUNS.encodings) == 2 + 2 * (len(names) - 2)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"ends": {LEVEL: 0.98}}, HOLDS),
        ({"ends": {LEVEL: 0.968}}, HOLDS),  # below, but by less than the margin
        ({"ends": {"sign": 0.5, "low_rank of 4": math.nan}}, HOLDS),  # these are not judged
        ({"ends": {LEVEL: 0.95}}, FAILS),
        ({"ends": {BEHIND: 0.97}}, FAILS),
        ({"ends": {LEVEL: math.nan}}, FAILS),  # it has learnt nothing
        ({"ends": {BEHIND: math.nan}}, HOLDS),
        ({"ends": {BEHIND: 0.966}}, UNTESTED),  # near the margin: neither is shown
        ({"spread": 0.05}, UNTESTED),
        ({"ends": {FULL: 0.5}}, UNTESTED),
        ({"ends": {FULL: math.nan}}, UNTESTED),
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and len(verdict.contrasts) in ((0, 4) if word == UNTESTED else (4,)), verdict.because


def test_all_seeds_of_all_encodings_are_needed():
    verdict = CLAIM.verdict(without(rows(), split="test", encoding="half", seed=2))
    assert verdict.word == UNTESTED and "Runs are missing" in verdict.because


def test_it_is_reported():
    found = [{**row, "data": "mnist"} for row in rows(spread=0)]
    text = whole_report(CLAIM, found)
    assert f"| {BEHIND} | falls behind [READ: the claim alone, no numbers] / 93.00 ± 0.00 % (n=5) |" in text
    assert f"| {BEHIND} | 0.06 | 93.00 ± 0.00 % (n=5) | 10.00 | 0.025 |" in text
    added = {finding.quantity: finding.ours for finding in CLAIM.findings(found)}
    assert added[f"accuracy that feedback adds, points, {BEHIND} (not judged)"] == "+4.00"
    assert added["accuracy that feedback adds, points, sign (not judged)"] == "+0.00"
    figure = report.draw(CLAIM, found)
    shown = figure.legends[0].get_texts()
    assert [text.get_text() for text in shown] == list(RUNS.encodings)
