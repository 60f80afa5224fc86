"""Widths that follow the gradient beside fixed ones: configs, the verdict for each outcome, bytes and the line."""

import math
import random

import pytest

from experiments.claims import dynamic_bits
from experiments.study import report
from experiments.study.encoded_runs import FULL
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, RUNS = dynamic_bits.EXPERIMENT, dynamic_bits.RUNS
D3, D4, D6 = dynamic_bits.DYNAMIC
ENDS = {FULL: 0.97, "2 bits": 0.88, "3 bits": 0.93, "4 bits": 0.95, "6 bits": 0.966, "8 bits": 0.969}
ALIKE = {D3: 0.93, D4: 0.95, D6: 0.966}
BITS = {FULL: 32 / 4, "2 bits": 2, "3 bits": 3, "4 bits": 4, "6 bits": 6, "8 bits": 8, D3: 2.5, D4: 3.5, D6: 5.5}


def rows(ends=None, *, bits=None, spread=0.001):
    """Rows in which a dynamic width ends as the next fixed one does, with less bytes, but for those in ``ends``."""

    def measured(labels):
        name = labels["encoding"]
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        end = {**ENDS, **ALIKE, **(ends or {})}[name] + noise - 0.02 * abs(math.log(labels["rate"] / 0.03))
        end -= 0.1 * (labels["split"] == "validation")  # which no verdict may see
        sent = 1e6 * {**BITS, **(bits or {})}[name]
        return {"step": [1, 2], "epoch": [0.5, 1.0], "accuracy": [0.5, end], "sent_bytes": [sent / 2, sent]}

    return complete(CLAIM, measured)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        sent, name = run.config["communication"], run.labels["encoding"]
        assert sent["name"] == (FULL if name == FULL else "dynamic_bits" if "dynamic" in name else "quantised")
        if name != FULL:
            assert f"{sent.get('bits', sent.get('start_bits'))}" in name
            assert (sent["norm"], sent["exchange"], sent["min_elements"]) == ("l2", "gather", 1)
        assert run.config["num_workers"] == 8 and run.config["optimizer"]["learning_rate"] == run.labels["rate"]
        assert run.config["learning_rate_scaling"] == "none" and run.config["seed"] == run.labels["seed"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, FAILS),  # no gain
        ({"ends": {D6: 0.98}}, HOLDS),
        ({"ends": {D3: 0.94}}, HOLDS),  # above 3 bits with fewer
        ({"ends": {D3: 0.94, D6: 0.94}}, FAILS),  # and one below 4 bits with more
        ({"ends": {D3: 0.85}}, FAILS),  # below 2 bits, which send less
        ({"ends": {D3: 0.935}, "spread": 0.004}, UNTESTED),  # a gain is neither shown nor excluded
        ({"ends": {D6: 0.98}, "bits": {D6: 9}}, FAILS),  # the best of all, but at more bytes than any fixed width
        ({"ends": {D4: 0.951}, "bits": {D4: 4}}, FAILS),  # as many bytes: both above and below count
        ({"ends": {D4: 0.94}, "bits": {D4: 4}}, FAILS),
        ({"ends": {D4: 0.96}, "bits": {D4: 4}}, HOLDS),
        ({"ends": {D3: math.nan}}, FAILS),  # it has learnt nothing
        ({"ends": {"2 bits": 0.97}}, UNTESTED),  # nothing to trade
        ({"ends": {FULL: 0.5}}, UNTESTED),
        ({"ends": {FULL: math.nan}}, UNTESTED),
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and (verdict.contrasts or word == UNTESTED), verdict.because


def test_pairs_are_those_of_the_bytes():
    found = rows()
    above, below, alike = dynamic_bits._contrasts(found)
    assert len(above) == len(alike) == 4 + 3 + 2 and len(below) == 1 + 2 + 3
    assert above[0].compared == f"{D3} above 3 bits" and above[0].corrected == "Holm, 9 tests"
    assert below[0].compared == f"{D3} below 2 bits" and below[0].p > 0.99
    assert alike[0].difference == pytest.approx(above[0].difference) and alike[0].holds and not above[0].holds


def test_all_seeds_of_all_widths_are_needed():
    verdict = CLAIM.verdict(without(rows(), split="test", encoding=D4, seed=3))
    assert verdict.word == UNTESTED and "Runs are missing" in verdict.because


def test_it_is_reported():
    found = [{**row, "data": "mnist"} for row in rows(spread=0)]
    text = whole_report(CLAIM, found)
    assert "| 87.93 % [READ: table 1 of the version submitted to ICLR 2021] / 95.00 ± 0.00 % (n=5) |" in text
    # Full gradients are all-reduced: a gather of them would send four times as much, 32 MB.
    assert dynamic_bits.compression(found, "4 bits") == 8 and dynamic_bits.compression(found, FULL) == 1
    over = [finding.ours for finding in CLAIM.findings(found)]
    assert over == ["+2.50", "+1.00", "+0.40"]  # over the middles of neighbours, 90.5, 94 and 96.2 %
    assert str(CLAIM.basis(found)) == "mnist, MLP of 64 hidden units, 8 workers, n = 5"
    lines = report.draw(CLAIM, found).axes[0].lines
    assert [line.get_xdata()[0] for line in lines[:5]] == [2, 3, 4, 6, 8] and list(lines[5].get_xdata()) == [
        2,
        3,
        4,
        6,
        8,
    ]
    assert list(lines[9].get_xdata()) == [2.5, 3.5, 5.5]


def test_the_line_ends_with_the_widths():
    least, most = (dynamic_bits._on_the_line(rows(bits={D3: bits}, spread=0), D3) for bits in (1, 10))
    assert least == pytest.approx(88) and most == pytest.approx(96.9)
