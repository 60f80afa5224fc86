"""Staleness without a server: which latencies are compared, and the verdict for each outcome."""

import numpy as np
import pytest

from configs import flags
from experiments.claims.decentralised_staleness import claim as decentralised_staleness
from training.setup import make_setup

CLAIM = decentralised_staleness.CLAIM
TUNED = decentralised_staleness.TUNED
ALIKE, SLOW = "alike", "one slow"
AVERAGE = {0.0: 7.0, 0.5: 10.5, 2.0: 20.8}
LARGEST = {0.0: 12.0, 0.5: 14.0, 2.0: 26.0}  # of workers alike


def test_a_slow_worker_multiplies_the_largest_staleness_alone():
    """What the notes say of S_avg and S_max, from the events of the claim's own configs."""
    stale = {}
    for point in TUNED.points("laptop"):
        run = TUNED.run("laptop", point, 0.02, stage=1, seed=30)
        setup = make_setup(flags.load(run.spec, [*run.overriding, "--config.data.name=digits"]))
        events = np.concatenate([events.staleness for events, *_ in setup.mode.exchange()])
        stale[point["latency"], point["workers"]] = events
    for latency, average in AVERAGE.items():
        alike = stale[latency, ALIKE]
        slow = stale[latency, SLOW]
        assert len(alike) == len(slow) == 5000
        assert alike.mean() == pytest.approx(average, rel=0.02)
        assert 0.92 < slow.mean() / alike.mean() < 1.01
        assert slow.max() > 2 * alike.max() == pytest.approx(2 * LARGEST[latency], rel=0.2)


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
