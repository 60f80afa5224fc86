"""The claim about the steps of real processes: what is predicted, the rule and the report."""

import statistics

import numpy as np
import pytest

from experiments.claims.real_clock import claim as real_clock
from tests.event_loop import event_loop

CLAIM = real_clock.CLAIM
ARRIVALS = [0.10, 0.15, 0.20, 0.25, 0.30, 0.36, 0.45, 0.70]
OWN = 0.02
# Everybody is slow in turn, and no two arrive at once.
DURATIONS = np.stack([np.roll(ARRIVALS, 3 * step) for step in range(90)]) * np.linspace(1, 1.001, 720).reshape(90, 8)
WHOLE = np.tile(DURATIONS, (10, 1))
STEPS = {
    n: statistics.fmean(seconds for _, seconds, _ in event_loop(WHOLE, "backup_workers", needed=np.full(900, n)))
    for n in range(4, 9)
}


def rows():
    """Runs that take the predicted time, but for those that wait for four: these take 1.5 times as long."""
    found = []
    for run in CLAIM.runs("laptop", []):
        required = run.labels["required"]
        if run.labels["delays"] == "none":
            measured = {"step_seconds": 0.03 + OWN, "arrival_seconds": [0.03] * 8, "durations": None}
        else:
            arrived = [seconds if k < required else None for k, seconds in enumerate(ARRIVALS)]
            step = (STEPS[required] + OWN) * (1.5 if required == 4 else 1.0)
            measured = {"step_seconds": step, "arrival_seconds": arrived, "durations": DURATIONS.tolist()}
        found.append({"run": run.name, **run.labels, **measured})
    return found


def test_the_prediction_is_of_workers_that_finish_what_they_began_in_the_run_that_waits_for_all():
    df = CLAIM.frame(rows())
    four = df[df["required"] == 4]
    assert len(four) == 5 and four["predicted"].tolist() == pytest.approx([STEPS[4] + OWN] * 5)
    assert STEPS[4] > 1.05 * 0.25 and STEPS[8] == pytest.approx(0.7, rel=1e-2)
    assert four["interrupted"].tolist() == pytest.approx([0.25 + OWN] * 5, rel=1e-2)
    assert four["ratio"].tolist() == pytest.approx([1.5] * 5)
