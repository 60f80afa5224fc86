"""Staleness without a server: which latencies are compared, and the verdict for each outcome."""

import math
import random

import numpy as np
import pytest

from configs import flags
from experiments.claims import decentralised_staleness
from experiments.study import datasets, report
from experiments.study import rows as ask
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without
from training.setup import make_setup

CLAIM, TUNED = decentralised_staleness.EXPERIMENT, decentralised_staleness.TUNED
ALIKE, SLOW = "alike", "one slow"
STEPS = {0.0: 1600, 0.5: 1900, 2.0: 2700}
AVERAGE = {0.0: 7.0, 0.5: 10.5, 2.0: 20.8}
LARGEST = {ALIKE: {0.0: 12.0, 0.5: 14.0, 2.0: 26.0}, SLOW: {0.0: 45.0, 0.5: 48.0, 2.0: 57.0}}
NEVER = 99_999


def cell_rows(changed=None, *, average=None, largest=None, spread=0.05):
    """Rows whose steps to the target are those of STEPS, whoever is slow, but for the cells that are changed."""
    changed, average, largest = changed or {}, average or {}, largest or {}

    def measured(labels):
        cell = labels["latency"], labels["workers"]
        noise = random.Random(str(sorted(labels.items()))).gauss(0, spread)
        at = changed.get(cell, STEPS[labels["latency"]]) * (1 + noise)
        at *= 1 + abs(math.log2(labels["rate"] / 0.02))
        if labels["split"] == "validation":
            at += 400  # which no verdict may see
        steps = range(50, 5001, 50)
        return {
            "step": list(steps),
            "accuracy": [0.95 if step >= at else 0.3 for step in steps],
            "simulated_seconds": [step / (8 if labels["workers"] == ALIKE else 7.2) for step in steps],
            "staleness_mean": average.get(cell, AVERAGE[labels["latency"]]),
            "staleness_max": largest.get(cell, LARGEST[labels["workers"]][labels["latency"]]),
        }

    return complete(CLAIM, measured)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, labels = run.config, run.labels
        assert config["server"] == {"name": "decentralised", "latency_seconds": labels["latency"]}
        assert (config["arrivals"]["name"] == "slow_workers") == (labels["workers"] == SLOW)
        assert config["optimizer"]["momentum"] is None and config["ema_decay"] is None
        assert config["optimizer"]["learning_rate"] == labels["rate"] and config["schedule"]["name"] == "constant"
        assert config["data"]["name"] == labels["data"] and config["seed"] == labels["seed"]


def test_one_rate_is_tuned_at_latency_0_with_workers_alike_and_taken_by_all():
    found = cell_rows()
    assert {(row["latency"], row["workers"]) for row in TUNED.tried(found)} == {(0.0, ALIKE)}
    assert {row["rate"] for row in ask.select(found, split="test")} == {0.02}
    assert len(ask.select(found, split="test")) == 6 * 30


def test_a_slow_worker_multiplies_the_largest_staleness_alone():
    """What the notes say of S_avg and S_max, from the events of the claim's own configs."""
    stale = {}
    for run in (run for run in CLAIM.runs("laptop", cell_rows()) if run.labels["split"] == "test"):
        cell = run.labels["latency"], run.labels["workers"]
        if run.labels["seed"] == 0:
            with datasets.stand_in("digits"):
                setup = make_setup(flags.load(run.spec, [*run.overriding, "--config.data.name=digits"]))
            stale[cell] = np.concatenate([events.staleness for events, *_ in setup.mode.exchange()])
    for latency, average in AVERAGE.items():
        alike, slow = stale[latency, ALIKE], stale[latency, SLOW]
        assert len(alike) == len(slow) == 5000
        assert alike.mean() == pytest.approx(average, rel=0.02) and 0.92 < slow.mean() / alike.mean() < 1.01
        assert slow.max() > 2 * alike.max() == pytest.approx(2 * LARGEST[ALIKE][latency], rel=0.2)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"changed": {(2.0, SLOW): 2600}}, HOLDS),  # less, but by less than the margin
        ({"changed": {(2.0, SLOW): 3300}}, FAILS),  # shown to be more
        ({"changed": {(0.0, SLOW): 1300}}, FAILS),  # shown to be fewer
        ({"changed": {(2.0, SLOW): 2970}}, UNTESTED),  # a tenth more: neither shown nor refuted
        ({"spread": 0.5}, UNTESTED),  # too noisy to show anything but the trend
        ({"changed": {(2.0, SLOW): NEVER}}, FAILS),  # the slow worker ruins training
        ({"changed": dict.fromkeys(((0.5, SLOW), (2.0, SLOW)), NEVER)}, FAILS),
        ({"changed": {cell: 1600 for cell in ((0.5, ALIKE), (0.5, SLOW), (2.0, ALIKE), (2.0, SLOW))}}, FAILS),  # a tie
        # Not compared at latency 2, where S_avg differs; steps grow with workers alike alone.
        ({"average": {(2.0, SLOW): 18.0}, "changed": {(2.0, SLOW): 1500}}, FAILS),
        ({"changed": {(2.0, ALIKE): NEVER, (2.0, SLOW): NEVER}}, HOLDS),  # latencies 0 and 0.5 are compared
        ({"changed": {(0.5, ALIKE): NEVER, (2.0, ALIKE): NEVER}}, UNTESTED),
        ({"average": {(2.0, SLOW): 18.0}, "changed": {(2.0, SLOW): 2000}}, HOLDS),  # S_avg differs: not compared
        ({"average": {(0.5, SLOW): 9.0, (2.0, SLOW): 18.0}}, UNTESTED),
        ({"largest": {(0.5, SLOW): 14.5, (2.0, SLOW): 27.0}}, UNTESTED),  # S_max hardly differs
    ],
)
def test_verdicts(changes, word):
    verdict = CLAIM.verdict(cell_rows(**changes))
    assert verdict.word == word


def test_which_tests_decide():
    verdict = CLAIM.verdict(cell_rows())
    assert [contrast.method.partition(",")[0] for contrast in verdict.contrasts] == [
        *["equivalence"] * 3,
        *["Page's trend test"] * 2,
    ]
    assert {contrast.corrected for contrast in verdict.contrasts} == {"Holm, 5 tests"}
    two = CLAIM.verdict(cell_rows({(2.0, ALIKE): NEVER, (2.0, SLOW): NEVER}))
    assert {contrast.corrected for contrast in two.contrasts} == {"Holm, 4 tests"}
    assert "Latency 2 is not compared" in two.because and "not compared" not in verdict.because


def test_a_run_that_does_not_get_there_is_told_and_counts_to_its_end():
    rows = cell_rows({(2.0, SLOW): NEVER})
    late = next(c for c in CLAIM.verdict(rows).contrasts if c.compared.endswith("latency 2"))
    assert late.difference == pytest.approx(5000 - 2700, abs=100)
    assert "(30 of 30 runs with it do not get there) at latency 2" in CLAIM.verdict(rows).because
    cells = {tuple(line[:2]): line[4] for line in CLAIM.table(rows).cells}
    assert cells["one worker 5 times as slow", "2"] == "0 of 30 runs get there in 5,000"
    assert cells["all workers alike", "2"].endswith("(n=30)")


def test_all_seeds_are_needed():
    rows = cell_rows()
    verdict = CLAIM.verdict(without(rows, split="test", latency=0.5, workers=SLOW, seed=7))
    assert verdict.word == UNTESTED and "Runs are missing" in verdict.because


def test_it_is_reported():
    rows = [{**row, "data": "mnist"} for row in cell_rows()]
    text = whole_report(CLAIM, rows)
    assert (
        "as S_avg, if gradients are bounded [MEM: abstract] / 1.0" in text and "| 0.5 | ? / 1.00 | ? / 3.43 |" in text
    )
    assert str(CLAIM.basis(rows)) == "mnist, MLP of 64 hidden units, 8 workers, n = 30"
    average, largest = report.draw(CLAIM, rows).axes
    assert [list(line.get_xdata()) for line in average.lines] == [list(AVERAGE.values())] * 2
    assert [list(line.get_xdata()) for line in largest.lines] == [
        list(LARGEST[name].values()) for name in (ALIKE, SLOW)
    ]


def test_measurements_are_the_accuracies_and_the_staleness_of_the_whole_run():
    records = [
        {"kind": "eval", "step": step, "simulated_seconds": 0.5 * step, "accuracy": 0.9, "loss": 1.0, **stale}
        for step, stale in (
            (2, {"staleness": 1, "staleness_mean": 1.0, "staleness_max": 2}),
            (4, {"staleness": 3, "staleness_mean": 1.5, "staleness_max": 3}),
        )
    ]
    measured = CLAIM.reduce([{"kind": "train", "step": 1}, *records])
    assert measured == {
        "step": [2, 4],
        "simulated_seconds": [1.0, 2.0],
        "accuracy": [0.9, 0.9],
        "staleness_mean": 1.5,
        "staleness_max": 3,
    }
    assert not set(measured) & set(CLAIM.runs("laptop", [])[0].labels)
