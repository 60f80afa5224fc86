"""The claim about the steps of real processes: what is predicted, the rule and the report."""

import statistics

import numpy as np
import pytest

from experiments.claims.real_clock import claim as real_clock
from tests.event_loop import event_loop

CLAIM = real_clock.EXPERIMENT
ARRIVALS = [0.10, 0.15, 0.20, 0.25, 0.30, 0.36, 0.45, 0.70]
OWN = 0.02
# Everybody is slow in turn, and no two arrive at once.
DURATIONS = np.stack([np.roll(ARRIVALS, 3 * step) for step in range(90)]) * np.linspace(1, 1.001, 720).reshape(90, 8)
WHOLE = np.tile(DURATIONS, (10, 1))
STEPS = {
    n: statistics.fmean(seconds for _, seconds, _ in event_loop(WHOLE, "backup_workers", needed=np.full(900, n)))
    for n in range(4, 9)
}


def rows(*, noise=0.01, **late):
    """Runs of which those that wait for N take so many times the predicted time as ``late`` says of "nN"."""
    found = []
    for run in CLAIM.runs("laptop", []):
        labels = run.labels
        wobble = 1 + noise * (labels["seed"] - 7)
        required = labels["required"]
        if labels["delays"] == "none":
            measured = {"step_seconds": 0.03 + OWN, "arrival_seconds": [0.03] * 8, "durations": None}
        else:
            arrived = [seconds if k < required else None for k, seconds in enumerate(ARRIVALS)]
            step = (STEPS[required] + OWN) * wobble * late.get(f"n{required}", 1.0)
            measured = {"step_seconds": step, "arrival_seconds": arrived, "durations": DURATIONS.tolist()}
        found.append({"run": run.name, **labels, **measured})
    return found


def test_the_prediction_is_of_workers_that_finish_what_they_began_in_the_run_that_waits_for_all():
    assert real_clock.predicted(rows(), 4) == pytest.approx(dict.fromkeys(range(5, 10), STEPS[4] + OWN))
    assert STEPS[4] > 1.05 * 0.25 and STEPS[8] == pytest.approx(0.7, rel=1e-2)
    interrupted = real_clock.predicted(rows(), 4, late_workers="interrupt")
    assert interrupted == pytest.approx(dict.fromkeys(range(5, 10), 0.25 + OWN), rel=1e-2)
    measured = real_clock.measured(rows(noise=0.0, n4=1.5), 4)
    assert measured == pytest.approx(dict.fromkeys(range(5, 10), 1.5 * (STEPS[4] + OWN)))


@pytest.mark.slow
def test_a_live_run_is_measured():
    pytest.importorskip("ray", reason="live runs need Ray: pip install -r requirements-live.txt")
    row = CLAIM.measure(required=2, delays="lognormal", workers=3, steps=10, data="digits", seed=0)
    assert row["step_seconds"] > row["arrival_seconds"][1] > 0.05 and row["durations"] is None
