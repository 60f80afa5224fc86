"""Staleness without a server: which latencies are compared, and the verdict for each outcome."""

import math
import random

import numpy as np
import pytest

from configs import flags
from experiments.claims.decentralised_staleness import claim as decentralised_staleness
from experiments.study import datasets
from tests.claim_rows import complete
from training.setup import make_setup

CLAIM, TUNED = decentralised_staleness.CLAIM, decentralised_staleness.TUNED
ALIKE, SLOW = "alike", "one slow"
STEPS = {0.0: 1600, 0.5: 1900, 2.0: 2700}
AVERAGE = {0.0: 7.0, 0.5: 10.5, 2.0: 20.8}
LARGEST = {ALIKE: {0.0: 12.0, 0.5: 14.0, 2.0: 26.0}, SLOW: {0.0: 45.0, 0.5: 48.0, 2.0: 57.0}}


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


def test_a_slow_worker_multiplies_the_largest_staleness_alone():
    """What the notes say of S_avg and S_max, from the events of the claim's own configs."""
    stale = {}
    for run in (run for run in CLAIM.runs("laptop", cell_rows()) if run.labels["split"] == "test"):
        cell = run.labels["latency"], run.labels["workers"]
        if run.labels["seed"] == 30:
            with datasets.stand_in("digits"):
                setup = make_setup(flags.load(run.spec, [*run.overriding, "--config.data.name=digits"]))
            stale[cell] = np.concatenate([events.staleness for events, *_ in setup.mode.exchange()])
    for latency, average in AVERAGE.items():
        alike, slow = stale[latency, ALIKE], stale[latency, SLOW]
        assert len(alike) == len(slow) == 5000
        assert alike.mean() == pytest.approx(average, rel=0.02) and 0.92 < slow.mean() / alike.mean() < 1.01
        assert slow.max() > 2 * alike.max() == pytest.approx(2 * LARGEST[ALIKE][latency], rel=0.2)


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
